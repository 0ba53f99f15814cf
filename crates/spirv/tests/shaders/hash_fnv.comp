#version 450
layout(local_size_x = 64) in;
layout(std430, binding = 0) buffer Y { uint y[]; };
layout(std430, binding = 1) readonly buffer X { uint x[]; };
uint fnv(uint h, uint word) {
    for (int i = 0; i < 4; i++) {
        h ^= (word >> (8 * i)) & 0xffu;
        h *= 16777619u;
    }
    return h;
}
void main() {
    uint i = gl_GlobalInvocationID.x;
    uint h = 2166136261u;
    for (uint k = 0u; k <= i % 7u; k++) h = fnv(h, x[i + k]);
    y[i] = h;
}
