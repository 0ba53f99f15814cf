@group(0) @binding(0) var<storage, read_write> y: array<u32>;
@group(0) @binding(1) var<storage, read> x: array<u32>;
var<workgroup> best: atomic<u32>;
@compute @workgroup_size(16)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(local_invocation_index) l: u32) {
    var mine = x[id.x] & 1023u;
    var order = 0u;
    for (var turn = 0u; turn < 4u; turn++) {
        atomicMax(&best, (mine << 4u) | l);
        workgroupBarrier();
        if (atomicLoad(&best) == ((mine << 4u) | l)) { order = turn + 1u; mine = 0u; }
        workgroupBarrier();
        if (l == 0u) { atomicStore(&best, 0u); }
        workgroupBarrier();
    }
    y[id.x] = order;
}
