const taps = array<f32, 5>(0.0625, 0.25, 0.375, 0.25, 0.0625);
@group(0) @binding(0) var<storage, read_write> y: array<f32>;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    var w = taps;
    var sum = 0.0;
    for (var t = -2; t <= 2; t++) { sum += w[t + 2] * x[abs(i32(id.x) + t)]; }
    y[id.x] = sum;
}
