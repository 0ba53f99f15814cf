#version 450
layout(local_size_x = 32) in;
layout(std430, binding = 0) buffer V { vec4 v[]; };
layout(std430, binding = 1) readonly buffer P { vec4 p[]; };
shared vec4 tile[32];
void main() {
    uint i = gl_GlobalInvocationID.x & 127u;
    vec3 at = p[i].xyz, force = vec3(0.0);
    for (uint t = 0u; t < 2u; t++) {
        tile[gl_LocalInvocationIndex] = p[t * 32u + gl_LocalInvocationIndex];
        barrier();
        for (uint k = 0u; k < 32u; k++) {
            vec3 d = tile[k].xyz - at;
            float r = dot(d, d) + 0.25;
            force += d * (tile[k].w / (r * r));
        }
        barrier();
    }
    if (gl_GlobalInvocationID.x < 128u) v[i] += vec4(force, 0.0) * 0.01;
}
