@group(0) @binding(0) var<storage, read_write> y: array<u32>;
@group(0) @binding(1) var<storage, read> x: array<u32>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    var c = ~0u;
    for (var k = 0u; k < 3u; k++) {
        c ^= x[id.x + k];
        for (var b = 0; b < 32; b++) { c = select(c >> 1u, (c >> 1u) ^ 0xedb88320u, (c & 1u) != 0u); }
    }
    y[id.x] = ~c;
}
