@group(0) @binding(0) var<storage, read_write> y: array<vec3<f32>>;
@group(0) @binding(1) var<storage, read> x: array<vec3<f32>>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let i = id.x % 128u;
    var v = clamp(x[i], vec3(-2.0), vec3(2.0));
    v = mix(v, v.zxy, step(vec3(0.0), v));
    y[i] = v * v * (3.0 - 2.0 * v) + min(v.x, max(v.y, v.z));
}
