#version 450
layout(local_size_x = 64) in;
layout(std430, binding = 0) buffer Y { uint y[]; };
layout(std430, binding = 1) readonly buffer X { uvec4 seed[]; };
void main() {
    uint i = gl_GlobalInvocationID.x;
    uvec4 s = seed[i % 64u] | uvec4(1u);
    for (uint k = 0u; k < 16u + i % 5u; k++) {
        uint t = s.x ^ (s.x << 11);
        s = uvec4(s.yzw, s.w ^ (s.w >> 19) ^ t ^ (t >> 8));
    }
    y[i] = s.w + s.x;
}
