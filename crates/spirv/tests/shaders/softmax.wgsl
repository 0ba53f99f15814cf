@group(0) @binding(0) var<storage, read_write> y: array<f32>;
@group(0) @binding(1) var<storage, read> x: array<f32>;
var<workgroup> part: array<f32, 64>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(local_invocation_index) l: u32) {
    let v = x[id.x];
    part[l] = v;
    workgroupBarrier();
    for (var s = 32u; s > 0u; s >>= 1u) { if (l < s) { part[l] = max(part[l], part[l + s]); } workgroupBarrier(); }
    let top = part[0];
    workgroupBarrier();
    let e = exp(v - top);
    part[l] = e;
    workgroupBarrier();
    for (var s = 32u; s > 0u; s >>= 1u) { if (l < s) { part[l] += part[l + s]; } workgroupBarrier(); }
    y[id.x] = e / part[0];
}
