@group(0) @binding(0) var<storage, read_write> y: array<f32>;
@group(0) @binding(1) var<storage, read> x: array<f32>;
fn pixel(p: vec2<i32>) -> f32 {
    if (p.x < 0 || p.y < 0 || p.x >= 32 || p.y >= 32) { return 0.0; }
    return x[p.y * 32 + p.x];
}
@compute @workgroup_size(8, 8)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let p = vec2<i32>(id.xy);
    if (p.x >= 32 || p.y >= 32) { return; }
    let dx = pixel(p + vec2(1, 0)) - pixel(p - vec2(1, 0));
    let dy = pixel(p + vec2(0, 1)) - pixel(p - vec2(0, 1));
    y[p.y * 32 + p.x] = abs(dx) + abs(dy);
}
