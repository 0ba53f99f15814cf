#version 450
layout(local_size_x = 64) in;
layout(std430, binding = 0) buffer Y { uint y[]; };
layout(std430, binding = 1) readonly buffer X { uint x[]; };
void main() {
    uint i = gl_GlobalInvocationID.x;
    if (i >= 200u) return;
    uint v = x[i];
    if (v % 3u == 0u) { y[i] = 3u; return; }
    for (uint k = 0u; k < 8u; k++) {
        if (v % 5u == k) { y[i] = 50u + k; return; }
        v /= 5u;
    }
    y[i] = v;
}
