@group(0) @binding(0) var<storage, read_write> y: array<f32>;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    var m: mat3x3<f32>;
    for (var c = 0u; c < 3u; c++) { m[c] = vec3(x[id.x + 3u * c], x[id.x + 3u * c + 1u], x[id.x + 3u * c + 2u]) * 0.125; }
    let t = transpose(m);
    let d = m[0][0] * (m[1][1] * m[2][2] - m[2][1] * m[1][2]) - m[1][0] * (m[0][1] * m[2][2] - m[2][1] * m[0][2]) + m[2][0] * (m[0][1] * m[1][2] - m[1][1] * m[0][2]);
    y[id.x] = d + t[1][2] - 0.5 * (t * m)[2][1];
}
