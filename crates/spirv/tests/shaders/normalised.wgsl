@group(0) @binding(0) var<storage, read_write> y: array<f32>;
@group(0) @binding(1) var<storage, read> x: array<f32>;
var<workgroup> part: array<vec2<f32>, 64>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(local_invocation_index) l: u32) {
    let v = x[id.x];
    part[l] = vec2(v, v * v);
    workgroupBarrier();
    for (var s = 32u; s > 0u; s >>= 1u) { if (l < s) { part[l] += part[l + s]; } workgroupBarrier(); }
    let mean = part[0].x / 64.0;
    let spread = part[0].y / 64.0 - mean * mean;
    y[id.x] = (v - mean) * inverseSqrt(abs(spread) + 1.0);
}
