#version 450
layout(local_size_x = 64) in;
layout(std430, binding = 0) buffer Y { float y[]; };
layout(std430, binding = 1) readonly buffer X { float x[]; };
shared float part[64];
void main() {
    uint l = gl_LocalInvocationIndex, at = gl_GlobalInvocationID.x;
    float v = x[at];
    part[l] = v;
    barrier();
    for (uint s = 32u; s > 0u; s >>= 1) { if (l < s) part[l] = max(part[l], part[l + s]); barrier(); }
    float top = part[0];
    barrier();
    float e = exp(v - top);
    part[l] = e;
    barrier();
    for (uint s = 32u; s > 0u; s >>= 1) { if (l < s) part[l] += part[l + s]; barrier(); }
    y[at] = e / part[0];
}
