@group(0) @binding(0) var<storage, read_write> y: array<u32>;
@group(0) @binding(1) var<storage, read> x: array<u32>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    var box_ = array<u32, 16>(12u, 5u, 6u, 11u, 9u, 0u, 10u, 13u, 3u, 14u, 15u, 8u, 4u, 7u, 1u, 2u);
    let v = x[id.x];
    var r = 0u;
    for (var k = 0u; k < 8u; k++) { r |= box_[(v >> (4u * k)) & 15u] << (4u * k); }
    y[id.x] = r ^ box_[3];
}
