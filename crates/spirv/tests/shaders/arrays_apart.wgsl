struct Particles { x: array<f32, 64>, v: array<f32, 64>, alive: array<u32, 64> }
@group(0) @binding(0) var<storage, read_write> p: Particles;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if (id.x >= 64u || (p.alive[id.x] & 1u) == 0u) { return; }
    p.v[id.x] -= 0.5;
    p.x[id.x] += p.v[id.x] * 0.25;
    if (p.x[id.x] < 0.0) { p.x[id.x] = -p.x[id.x]; p.v[id.x] *= -0.5; }
}
