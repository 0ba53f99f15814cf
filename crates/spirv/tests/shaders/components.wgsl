@group(0) @binding(0) var<storage, read_write> y: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let i = id.x % 128u;
    var a = x[i];
    var b = x[i + 1u];
    a.x = b.w;
    a.z = b.y;
    b = vec4(a.zyx, b.x);
    let c = a.yyw + b.xzw;
    y[i] = vec4(c.xy, a.w, b.w).wzyx;
}
