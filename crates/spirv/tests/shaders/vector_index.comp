#version 450
layout(local_size_x = 64) in;
layout(std430, binding = 0) buffer Y { float y[]; };
layout(std430, binding = 1) readonly buffer X { vec4 x[]; };
void main() {
    uint i = gl_GlobalInvocationID.x;
    vec4 v = x[i % 128u];
    v[i & 3u] += 1.0;
    float t = v[(i + 1u) & 3u];
    v[(i >> 2) & 3u] = t * 2.0;
    y[i] = v.x + 2.0 * v.y + 3.0 * v.z + 4.0 * v.w;
}
