#version 450
layout(local_size_x = 64) in;
layout(std430, binding = 0) buffer Y { uint y[]; };
layout(std430, binding = 1) readonly buffer X { uint x[]; };
const bool DEBUG = false;
float never(float v) { return v * 2.0; }
void main() {
    uint i = gl_GlobalInvocationID.x;
    uint unused[32];
    for (uint k = 0u; k < 32u; k++) unused[k] = k * x[i];
    float other = never(float(i));
    if (DEBUG) y[i + 1u] = uint(other);
    uint v = x[i] * 1u + 0u;
    v = (v << 0) | 0u;
    y[i] = v;
}
