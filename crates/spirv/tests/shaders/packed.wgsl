@group(0) @binding(0) var<storage, read_write> y: array<u32>;
@group(0) @binding(1) var<storage, read> x: array<u32>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let c = unpack4x8unorm(x[id.x]);
    let d = vec4(c.bgr * 0.5, c.a);
    y[id.x] = pack4x8unorm(d) ^ pack2x16float(vec2(d.r + d.g, d.b)) ^ bitcast<u32>(bitcast<f32>(x[id.x + 1u] & 0x7effffffu));
}
