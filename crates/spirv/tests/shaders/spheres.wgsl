struct Hit { found: bool, at: f32, what: u32 }
@group(0) @binding(0) var<storage, read_write> y: array<f32>;
@group(0) @binding(1) var<storage, read> spheres: array<vec4<f32>, 8>;
fn nearest(start: vec3<f32>, along: vec3<f32>) -> Hit {
    var hit = Hit(false, 1e30, 0u);
    for (var k = 0u; k < 8u; k++) {
        let d = start - spheres[k].xyz;
        let b = dot(d, along);
        let q = b * b - (dot(d, d) - spheres[k].w * spheres[k].w);
        if (q < 0.0) { continue; }
        let t = -b - sqrt(q);
        if (t > 0.0 && t < hit.at) { hit = Hit(true, t, k); }
    }
    return hit;
}
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let hit = nearest(vec3(f32(id.x & 15u) - 8.0, f32(id.x >> 4u) - 8.0, -20.0), vec3(0.0, 0.0, 1.0));
    y[id.x] = select(-1.0, floor(hit.at * 16.0) + f32(hit.what), hit.found);
}
