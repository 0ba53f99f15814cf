#version 450
layout(local_size_x = 64) in;
layout(std430, binding = 0) buffer Y { float y[]; };
layout(std430, binding = 1) readonly buffer X { float x[]; };
void main() {
    uint i = gl_GlobalInvocationID.x;
    float v = x[i], w = x[i + 1u];
    switch (i % 6u) {
        case 0u: v = v + w; break;
        case 1u: v = v - w; break;
        case 2u: v = v * w; break;
        case 3u: v = min(v, w); break;
        case 4u: { if (w > 0.0) v = w; else v = -w; break; }
        default: v = 0.0;
    }
    y[i] = v;
}
