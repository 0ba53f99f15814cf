@group(0) @binding(0) var<storage, read_write> y: array<f32>;
@group(0) @binding(1) var<storage, read> x: array<f32>;
fn square(v: f32) -> f32 { return v * v; }
fn cube(v: f32) -> f32 { return square(v) * v; }
fn poly(v: f32) -> f32 { return cube(v) - 2.0 * square(v) + v; }
fn twice(v: f32) -> f32 { return poly(v) + poly(v * 0.5); }
fn choose(v: f32) -> f32 { if (v > 0.0) { return twice(v); } return poly(-v); }
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) { y[id.x] = choose(x[id.x]) + choose(x[id.x + 1u]); }
