@group(0) @binding(0) var<storage, read_write> y: array<f32>;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let v = x[id.x];
    let parts = modf(v);
    y[id.x] = floor(v) + ceil(v) * 2.0 + trunc(v) * 4.0 + fract(v) + sign(v) + round(v) + parts.fract + parts.whole + f32(i32(v));
}
