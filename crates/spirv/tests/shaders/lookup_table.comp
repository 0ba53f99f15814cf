#version 450
layout(local_size_x = 64) in;
layout(std430, binding = 0) buffer Y { uint y[]; };
layout(std430, binding = 1) readonly buffer X { uint x[]; };
const uint SBOX[16] = uint[](12u, 5u, 6u, 11u, 9u, 0u, 10u, 13u, 3u, 14u, 15u, 8u, 4u, 7u, 1u, 2u);
void main() {
    uint i = gl_GlobalInvocationID.x, v = x[i], r = 0u;
    for (int k = 0; k < 8; k++) r |= SBOX[(v >> (4 * k)) & 15u] << (4 * k);
    y[i] = r ^ SBOX[3];
}
