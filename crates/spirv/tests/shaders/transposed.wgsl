@group(0) @binding(0) var<storage, read_write> y: array<u32>;
@group(0) @binding(1) var<storage, read> x: array<u32>;
var<workgroup> tile: array<array<u32, 9>, 8>;
@compute @workgroup_size(8, 8)
fn main(@builtin(local_invocation_id) l: vec3<u32>, @builtin(workgroup_id) w: vec3<u32>, @builtin(num_workgroups) n: vec3<u32>) {
    let base = (w.y * n.x + w.x) * 64u;
    tile[l.y][l.x] = x[base + l.y * 8u + l.x];
    workgroupBarrier();
    y[base + l.y * 8u + l.x] = tile[l.x][l.y];
}
