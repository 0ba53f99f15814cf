@group(0) @binding(0) var<storage, read_write> c: array<f32>;
@group(0) @binding(1) var<storage, read> a: array<f32>;
@group(0) @binding(2) var<storage, read> b: array<f32>;
@compute @workgroup_size(8, 8)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if (id.x >= 16u || id.y >= 16u) { return; }
    var sum = 0.0;
    for (var k = 0u; k < 16u; k++) { sum += a[id.y * 16u + k] * b[k * 16u + id.x]; }
    c[id.y * 16u + id.x] = sum;
}
