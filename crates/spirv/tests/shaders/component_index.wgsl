@group(0) @binding(0) var<storage, read_write> y: array<f32>;
@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    var v = x[id.x % 128u];
    v[id.x & 3u] += 1.0;
    let t = v[(id.x + 1u) & 3u];
    v[(id.x >> 2u) & 3u] = t * 2.0;
    y[id.x] = v.x + 2.0 * v.y + 3.0 * v.z + 4.0 * v.w;
}
