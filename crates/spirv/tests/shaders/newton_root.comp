#version 450
layout(local_size_x = 64) in;
layout(std430, binding = 0) buffer Y { float y[]; };
layout(std430, binding = 1) readonly buffer X { float x[]; };
void main() {
    uint i = gl_GlobalInvocationID.x;
    float v = abs(x[i]) + 1.0, r = v;
    for (int k = 0; k < 20; k++) {
        float next = 0.5 * (r + v / r);
        if (abs(next - r) < 1e-5) break;
        r = next;
    }
    y[i] = floor(r * 64.0);
}
