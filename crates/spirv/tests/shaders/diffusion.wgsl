@group(0) @binding(0) var<storage, read_write> y: array<f32>;
@group(0) @binding(1) var<storage, read> x: array<f32>;
var<workgroup> a: array<f32, 64>;
var<workgroup> b: array<f32, 64>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(local_invocation_index) l: u32) {
    a[l] = x[id.x];
    workgroupBarrier();
    for (var turn = 0; turn < 6; turn++) {
        b[l] = 0.5 * a[l] + 0.25 * (a[(l + 1u) & 63u] + a[(l + 63u) & 63u]);
        workgroupBarrier();
        a[l] = b[l];
        workgroupBarrier();
    }
    y[id.x] = a[l];
}
