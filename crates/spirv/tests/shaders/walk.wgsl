@group(0) @binding(0) var<storage, read_write> y: array<u32>;
@group(0) @binding(1) var<storage, read> next: array<u32>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    var at = id.x;
    var seen = 1u;
    var ended = false;
    while (!ended) {
        let to = next[at] & 255u;
        seen = seen * 2u + (to & 1u);
        if (to == at || (seen >> 20u) != 0u) { ended = true; continue; }
        at = to;
        if (at % 17u == 0u) { break; }
    }
    y[id.x] = seen;
}
