@group(0) @binding(0) var<storage, read_write> y: array<f32>;
@group(0) @binding(1) var<storage, read> m: array<mat4x4<f32>, 8>;
@group(0) @binding(2) var<storage, read> x: array<vec4<f32>, 64>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let v = m[id.x % 8u] * x[id.x % 64u];
    let w = x[id.x % 64u] * m[(id.x + 1u) % 8u];
    y[id.x] = dot(v, w) + v[id.x % 4u];
}
