@group(0) @binding(0) var<storage, read_write> bins: array<atomic<u32>, 16>;
@group(0) @binding(1) var<storage, read> x: array<u32>;
var<workgroup> own: array<atomic<u32>, 16>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(local_invocation_index) l: u32) {
    atomicAdd(&own[(x[id.x] >> 4u) & 15u], 1u);
    workgroupBarrier();
    if (l < 16u) { atomicAdd(&bins[l], atomicLoad(&own[l])); }
}
