@group(0) @binding(0) var<storage, read_write> y: array<u32>;
@group(0) @binding(1) var<storage, read> x: array<u32>;
fn rotl(v: u32, r: u32) -> u32 { return (v << r) | (v >> (32u - r)); }
fn mixed(h: u32, k: u32) -> u32 {
    let a = rotl(k * 0xcc9e2d51u, 15u) * 0x1b873593u;
    return rotl(h ^ a, 13u) * 5u + 0xe6546b64u;
}
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    var h = mixed(mixed(id.x, x[id.x]), x[id.x + 1u]);
    h ^= h >> 16u; h *= 0x85ebca6bu; h ^= h >> 13u; h *= 0xc2b2ae35u; h ^= h >> 16u;
    y[id.x] = h;
}
