@group(0) @binding(0) var<storage, read_write> y: array<u32>;
@group(0) @binding(1) var<storage, read> x: array<u32>;
var<workgroup> t: array<u32, 64>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(local_invocation_index) l: u32) {
    t[l] = x[id.x] % 1000u;
    workgroupBarrier();
    for (var d = 1u; d < 64u; d *= 2u) {
        var v = t[l];
        if (l >= d) { v += t[l - d]; }
        workgroupBarrier();
        t[l] = v;
        workgroupBarrier();
    }
    y[id.x] = t[l];
}
