@group(0) @binding(0) var<storage, read_write> total: array<u32>;
@group(0) @binding(1) var<storage, read> x: array<u32>;
var<workgroup> part: array<u32, 64>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(local_invocation_index) l: u32, @builtin(workgroup_id) w: vec3<u32>) {
    part[l] = x[id.x] & 0xffffu;
    workgroupBarrier();
    for (var s = 32u; s > 0u; s >>= 1u) {
        if (l < s) { part[l] += part[l + s]; }
        workgroupBarrier();
    }
    if (l == 0u) { total[w.x] = part[0]; }
}
