@group(0) @binding(0) var<storage, read_write> y: array<u32>;
@group(0) @binding(1) var<storage, read> x: array<u32>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let wanted = x[id.x];
    var low = 0u;
    var high = 1u << 20u;
    while (low < high) {
        let middle = (low + high) / 2u;
        let v = middle * 4099u;
        if (v == wanted) { low = middle; break; }
        if (v < wanted) { low = middle + 1u; } else { high = middle; }
    }
    y[id.x] = low;
}
