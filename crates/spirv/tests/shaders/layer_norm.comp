#version 450
layout(local_size_x = 64) in;
layout(std430, binding = 0) buffer Y { float y[]; };
layout(std430, binding = 1) readonly buffer X { float x[]; };
layout(push_constant) uniform P { float epsilon; };
shared vec2 part[64];
void main() {
    uint l = gl_LocalInvocationIndex;
    float v = x[gl_GlobalInvocationID.x];
    part[l] = vec2(v, v * v);
    barrier();
    for (uint s = 32u; s > 0u; s >>= 1) {
        if (l < s) part[l] = part[l] + part[l + s];
        barrier();
    }
    float mean = part[0].x / 64.0, spread = part[0].y / 64.0 - mean * mean;
    y[gl_GlobalInvocationID.x] = (v - mean) * inversesqrt(abs(spread) + abs(epsilon) + 1.0);
}
