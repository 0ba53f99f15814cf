@group(0) @binding(0) var<storage, read_write> y: array<u32>;
@group(0) @binding(1) var<storage, read> x: array<u32>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let i = id.x;
    if (i >= 200u) { return; }
    var v = x[i];
    if (v % 3u == 0u) { y[i] = 3u; return; }
    for (var k = 0u; k < 8u; k++) {
        if (v % 5u == k) { y[i] = 50u + k; return; }
        v /= 5u;
    }
    y[i] = v;
}
