@group(0) @binding(0) var<storage, read_write> y: array<f32>;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let v = abs(x[id.x]) + 1.0;
    var r = v;
    for (var k = 0; k < 20; k++) {
        let next = 0.5 * (r + v / r);
        if (abs(next - r) < 1e-5) { break; }
        r = next;
    }
    y[id.x] = floor(r * 64.0);
}
