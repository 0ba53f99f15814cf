const N = 24u;
@group(0) @binding(0) var<storage, read_write> c: array<f32>;
@group(0) @binding(1) var<storage, read> a: array<f32>;
@group(0) @binding(2) var<storage, read> b: array<f32>;
var<workgroup> ta: array<array<f32, 8>, 8>;
var<workgroup> tb: array<array<f32, 8>, 8>;
@compute @workgroup_size(8, 8)
fn main(@builtin(local_invocation_id) l: vec3<u32>, @builtin(workgroup_id) w: vec3<u32>) {
    let g = (w.xy % vec2(3u)) * 8u + l.xy;
    var sum = 0.0;
    for (var t = 0u; t < N / 8u; t++) {
        ta[l.y][l.x] = a[g.y * N + t * 8u + l.x];
        tb[l.y][l.x] = b[(t * 8u + l.y) * N + g.x];
        workgroupBarrier();
        for (var k = 0u; k < 8u; k++) { sum += ta[l.y][k] * tb[k][l.x]; }
        workgroupBarrier();
    }
    if (w.x < 3u && w.y < 3u) { c[g.y * N + g.x] = sum; }
}
