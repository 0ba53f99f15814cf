@group(0) @binding(0) var<storage, read_write> y: array<f32>;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let c = array<f32, 6>(1.0, -0.5, 0.25, -0.125, 0.0625, -0.03125);
    let v = x[id.x] * 0.125;
    var s = c[5];
    s = s * v + c[4]; s = s * v + c[3]; s = s * v + c[2]; s = s * v + c[1]; s = s * v + c[0];
    y[id.x] = s;
}
