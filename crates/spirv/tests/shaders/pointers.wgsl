@group(0) @binding(0) var<storage, read_write> y: array<f32>;
@group(0) @binding(1) var<storage, read> x: array<f32>;
fn swap(a: ptr<function, f32>, b: ptr<function, f32>) { let t = *a; *a = *b; *b = t; }
fn order(a: ptr<function, f32>, b: ptr<function, f32>) { if (*a > *b) { swap(a, b); } }
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    var a = x[id.x];
    var b = x[id.x + 1u];
    var c = x[id.x + 2u];
    order(&a, &b);
    order(&b, &c);
    order(&a, &b);
    y[id.x] = a + 2.0 * b + 3.0 * c;
}
