@group(0) @binding(0) var<storage, read_write> y: array<vec2<f32>>;
@group(0) @binding(1) var<storage, read> x: array<vec2<f32>>;
@group(0) @binding(2) var<storage, read> turns: array<vec2<f32>>;
fn times(a: vec2<f32>, b: vec2<f32>) -> vec2<f32> { return vec2(a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x); }
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if (id.x >= 128u) { return; }
    let k = id.x & 7u;
    let base = (id.x / 8u) * 16u + k;
    let even = x[base];
    let odd = times(turns[k], x[base + 8u]);
    y[base] = even + odd;
    y[base + 8u] = even - odd;
}
