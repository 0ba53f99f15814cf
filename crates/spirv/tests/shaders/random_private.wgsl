@group(0) @binding(0) var<storage, read_write> y: array<f32>;
@group(0) @binding(1) var<storage, read> seed: array<u32>;
var<private> state: u32;
fn next() -> u32 {
    let before = state;
    state = state * 747796405u + 2891336453u;
    let word = ((before >> ((before >> 28u) + 4u)) ^ before) * 277803737u;
    return (word >> 22u) ^ word;
}
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    state = seed[id.x] ^ id.x;
    var sum = 0.0;
    for (var k = 0; k < 10; k++) {
        let u = f32(next() >> 8u) / 16777216.0;
        if (u < 0.25) { continue; }
        sum += u;
    }
    y[id.x] = sum;
}
