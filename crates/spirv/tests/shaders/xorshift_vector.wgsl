@group(0) @binding(0) var<storage, read_write> y: array<u32>;
@group(0) @binding(1) var<storage, read> seed: array<vec4<u32>>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    var s = seed[id.x % 64u] | vec4(1u);
    for (var k = 0u; k < 16u + id.x % 5u; k++) {
        let t = s.x ^ (s.x << 11u);
        s = vec4(s.yzw, s.w ^ (s.w >> 19u) ^ t ^ (t >> 8u));
    }
    y[id.x] = s.w + s.x;
}
