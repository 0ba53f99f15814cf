@group(0) @binding(0) var<storage, read_write> y: array<u32>;
var<workgroup> s: array<u32, 64>;
@compute @workgroup_size(32)
fn main(@builtin(local_invocation_index) l: u32, @builtin(workgroup_id) w: vec3<u32>) {
    let g = w.x * 64u;
    s[l] = y[g + l];
    s[l + 32u] = y[g + l + 32u];
    workgroupBarrier();
    for (var size = 2u; size <= 64u; size *= 2u) {
        for (var stride = size / 2u; stride > 0u; stride /= 2u) {
            let a = 2u * l - (l & (stride - 1u));
            let b = a + stride;
            if ((s[a] > s[b]) == ((a & size) == 0u)) { let t = s[a]; s[a] = s[b]; s[b] = t; }
            workgroupBarrier();
        }
    }
    y[g + l] = s[l];
    y[g + l + 32u] = s[l + 32u];
}
