@group(0) @binding(0) var<storage, read_write> y: array<u32>;
@compute @workgroup_size(8, 8)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) n: vec3<u32>) {
    let c = vec2<f32>(id.xy) * 0.0625 - vec2(1.5, 1.0);
    var z = vec2(0.0);
    var k = 0u;
    while (k < 40u && dot(z, z) <= 4.0) {
        z = vec2(z.x * z.x - z.y * z.y, 2.0 * z.x * z.y) + c;
        k++;
    }
    y[id.y * n.x * 8u + id.x] = k;
}
