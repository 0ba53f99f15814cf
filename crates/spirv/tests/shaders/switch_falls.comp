#version 450
layout(local_size_x = 64) in;
layout(std430, binding = 0) buffer Y { uint y[]; };
layout(std430, binding = 1) readonly buffer X { uint x[]; };
void main() {
    uint i = gl_GlobalInvocationID.x, v = x[i], r = 0u;
    switch (v % 7u) {
        case 0u: r += 1u;
        case 1u:
        case 2u: r += 10u; if ((v & 8u) != 0u) break;
        case 3u: for (uint k = 0u; k < (v & 3u); k++) r += k + 100u; break;
        case 4u: r = v; 
        default: r += 7u;
    }
    y[i] = r;
}
