#version 450
layout(local_size_x = 64) in;
layout(std430, binding = 0) buffer Y { vec3 y[]; };
layout(std430, binding = 1) readonly buffer X { vec3 x[]; };
void main() {
    uint i = gl_GlobalInvocationID.x % 128u;
    vec3 v = clamp(x[i], vec3(-2.0), vec3(2.0));
    v = mix(v, v.zxy, step(vec3(0.0), v));
    y[i] = v * v * (3.0 - 2.0 * v) + min(v.x, max(v.y, v.z));
}
