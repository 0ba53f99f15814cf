struct Inner { a: vec2<f32>, b: array<f32, 3> }
struct Outer { first: Inner, rest: array<Inner, 2>, n: i32 }
@group(0) @binding(0) var<storage, read_write> y: array<f32>;
@group(0) @binding(1) var<storage, read> x: array<Outer, 16>;
fn sum(i: Inner) -> f32 { return i.a.x + i.a.y + i.b[0] + i.b[1] + i.b[2]; }
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    var o = x[id.x % 16u];
    o.rest[1].b[2] = o.first.a.y;
    o.rest[0] = o.first;
    var last = o.rest[1];
    last.a.x += 1.0;
    y[id.x] = sum(o.first) + sum(o.rest[0]) * 2.0 + sum(last) + f32(o.n & 7);
}
