override rounds: u32 = 5u;
override scale: f32 = 1.5;
override flip: bool = true;
@group(0) @binding(0) var<storage, read_write> y: array<f32>;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    var v = x[id.x];
    for (var k = 0u; k < rounds; k++) { v = v * scale - 1.0; }
    if (flip) { v = -v; }
    y[id.x] = v;
}
