@group(0) @binding(0) var<storage, read_write> y: array<u32>;
@group(0) @binding(1) var<storage, read> x: array<u32>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    var v: array<u32, 9>;
    for (var k = 0u; k < 9u; k++) { v[k] = x[id.x + k]; }
    for (var k = 1; k < 9; k++) {
        let key = v[k];
        var at = k - 1;
        while (at >= 0 && v[at] > key) { v[at + 1] = v[at]; at--; }
        v[at + 1] = key;
    }
    y[id.x] = v[4] ^ v[0] ^ v[8];
}
