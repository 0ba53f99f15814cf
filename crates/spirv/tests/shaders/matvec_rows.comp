#version 450
layout(local_size_x = 64) in;
layout(std430, binding = 0) buffer Y { float y[]; };
layout(std430, binding = 1) readonly buffer M { mat4 m[8]; };
layout(std430, binding = 2) readonly buffer X { vec4 x[]; };
void main() {
    uint i = gl_GlobalInvocationID.x;
    vec4 v = m[i % 8u] * x[i % 64u];
    vec4 w = x[i % 64u] * m[(i + 1u) % 8u];
    y[i] = dot(v, w) + v[i % 4u];
}
