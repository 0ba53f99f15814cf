@group(0) @binding(0) var<storage, read_write> y: array<f32>;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    var v = x[id.x];
    let w = x[id.x + 1u];
    switch (id.x % 6u) {
        case 0u: { v = v + w; }
        case 1u, 5u: { v = v - w; }
        case 2u: { v = v * w; }
        case 3u: { v = min(v, w); }
        default: { if (w > 0.0) { v = w; } else { v = -w; } }
    }
    y[id.x] = v;
}
