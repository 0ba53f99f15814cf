#version 450
layout(local_size_x = 64) in;
layout(std430, binding = 0) buffer Y { float y[]; };
layout(std430, binding = 1) readonly buffer X { float x[]; };
float total(float v[4]) { return v[0] + v[1] + v[2] + v[3]; }
float[4] doubled(float v[4]) { for (int k = 0; k < 4; k++) v[k] *= 2.0; return v; }
void main() {
    uint i = gl_GlobalInvocationID.x;
    float v[4];
    for (uint k = 0u; k < 4u; k++) v[k] = x[i + k];
    float w[4] = doubled(v);
    y[i] = total(v) + total(w) * 0.5 + w[i % 4u];
}
