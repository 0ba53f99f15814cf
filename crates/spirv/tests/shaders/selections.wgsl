@group(0) @binding(0) var<storage, read_write> y: array<f32>;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let a = x[id.x];
    let b = x[id.x + 1u];
    let c = x[id.x + 2u];
    let m = select(select(c, b, b > c), select(c, a, a > c), a > b);
    var v = vec3(c, b, a);
    if (a < 0.0) { v = vec3(a, b, c); }
    let s = v < vec3(m);
    v = select(v, vec3(m), s);
    if (any(s)) { y[id.x] = v.x + v.y; } else if (all(s)) { y[id.x] = v.z; } else { y[id.x] = m; }
}
