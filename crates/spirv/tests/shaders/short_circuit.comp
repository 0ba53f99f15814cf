#version 450
layout(local_size_x = 64) in;
layout(std430, binding = 0) buffer Y { uint y[]; };
layout(std430, binding = 1) readonly buffer X { uint x[]; };
bool heavy(uint v) { for (int k = 0; k < 3; k++) v = v * 5u + 1u; return (v & 4u) != 0u; }
void main() {
    uint i = gl_GlobalInvocationID.x;
    bool a = x[i] > 0x40000000u, b = (x[i + 1u] & 2u) == 0u;
    if (a && heavy(x[i]) || !b && heavy(x[i + 2u])) y[i] = 1u;
    else if ((a || b) && x[i + 3u] % 3u != 0u && !heavy(i)) y[i] = 2u;
    else y[i] = a ^^ b ? 3u : 4u;
}
