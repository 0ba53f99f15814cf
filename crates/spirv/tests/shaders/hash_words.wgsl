@group(0) @binding(0) var<storage, read_write> y: array<u32>;
@group(0) @binding(1) var<storage, read> x: array<u32>;
fn fnv(start: u32, word: u32) -> u32 {
    var h = start;
    for (var i = 0u; i < 4u; i++) {
        h ^= (word >> (8u * i)) & 0xffu;
        h *= 16777619u;
    }
    return h;
}
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    var h = 2166136261u;
    for (var k = 0u; k <= id.x % 7u; k++) { h = fnv(h, x[id.x + k]); }
    y[id.x] = h;
}
