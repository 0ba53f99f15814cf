@group(0) @binding(0) var<storage, read_write> y: array<u32>;
@group(0) @binding(1) var<storage, read> x: array<u32>;
fn heavy(start: u32) -> bool { var v = start; for (var k = 0; k < 3; k++) { v = v * 5u + 1u; } return (v & 4u) != 0u; }
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let i = id.x;
    let a = x[i] > 0x40000000u;
    let b = (x[i + 1u] & 2u) == 0u;
    if ((a && heavy(x[i])) || (!b && heavy(x[i + 2u]))) { y[i] = 1u; }
    else if ((a || b) && x[i + 3u] % 3u != 0u && !heavy(i)) { y[i] = 2u; }
    else { y[i] = select(4u, 3u, a != b); }
}
