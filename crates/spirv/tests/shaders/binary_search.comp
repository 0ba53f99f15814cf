#version 450
layout(local_size_x = 64) in;
layout(std430, binding = 0) buffer Y { uint y[]; };
layout(std430, binding = 1) readonly buffer X { uint x[]; };
void main() {
    uint i = gl_GlobalInvocationID.x, wanted = x[i];
    uint low = 0u, high = 1u << 20;
    while (low < high) {
        uint middle = (low + high) / 2u;
        uint v = middle * 4099u;
        if (v == wanted) { low = middle; break; }
        if (v < wanted) low = middle + 1u; else high = middle;
    }
    y[i] = low;
}
