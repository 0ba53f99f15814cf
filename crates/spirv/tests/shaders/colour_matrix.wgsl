const to_yuv = mat3x3<f32>(0.25, -0.125, 0.5, 0.5, -0.375, -0.4375, 0.25, 0.5, -0.0625);
@group(0) @binding(0) var<storage, read_write> y: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let i = id.x & 127u;
    let c = x[i];
    var yuv = to_yuv * c.rgb;
    yuv.x = select(yuv.x * 2.0, 1.0, yuv.x > 0.5);
    y[i] = vec4(yuv.x, yuv.y + 0.5, yuv.z + 0.5, c.a);
}
