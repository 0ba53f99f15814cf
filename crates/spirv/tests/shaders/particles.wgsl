struct Body { at: vec3<f32>, mass: f32, v: vec3<f32>, kind: u32 }
@group(0) @binding(0) var<storage, read_write> bodies: array<Body>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if (id.x >= 32u) { return; }
    var b = bodies[id.x];
    b.v += vec3(0.0, -1.0, 0.0) * b.mass;
    b.at += b.v * 0.125;
    if ((b.kind & 1u) == 0u) { b.at.y = abs(b.at.y); }
    bodies[id.x] = b;
}
