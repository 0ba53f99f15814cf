@group(0) @binding(0) var<storage, read_write> v: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> p: array<vec4<f32>>;
var<workgroup> tile: array<vec4<f32>, 32>;
@compute @workgroup_size(32)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(local_invocation_index) l: u32) {
    let i = id.x & 127u;
    let at = p[i].xyz;
    var force = vec3(0.0);
    for (var t = 0u; t < 2u; t++) {
        tile[l] = p[t * 32u + l];
        workgroupBarrier();
        for (var k = 0u; k < 32u; k++) {
            let d = tile[k].xyz - at;
            let r = dot(d, d) + 0.25;
            force += d * (tile[k].w / (r * r));
        }
        workgroupBarrier();
    }
    if (id.x < 128u) { v[i] += vec4(force, 0.0) * 0.01; }
}
