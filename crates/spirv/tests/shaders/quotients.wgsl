@group(0) @binding(0) var<storage, read_write> y: array<i32>;
@group(0) @binding(1) var<storage, read> x: array<i32>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let a = x[id.x];
    let b = (x[id.x + 1u] & 0xff) + 1;
    y[id.x] = a / b + i32(u32(a) / u32(b)) + i32(u32(a) % 10u) + a % 7 + a / 3;
}
