#version 450
layout(local_size_x = 64) in;
layout(std430, binding = 0) buffer Y { uint y[]; };
layout(std430, binding = 1) readonly buffer X { uint x[]; };
void main() {
    uint i = gl_GlobalInvocationID.x, c = ~0u;
    for (uint k = 0u; k < 3u; k++) {
        c ^= x[i + k];
        for (int bit = 0; bit < 32; bit++) c = (c & 1u) != 0u ? (c >> 1) ^ 0xedb88320u : c >> 1;
    }
    y[i] = ~c;
}
