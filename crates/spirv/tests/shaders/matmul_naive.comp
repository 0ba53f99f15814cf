#version 450
layout(local_size_x = 8, local_size_y = 8) in;
layout(std430, binding = 0) buffer C { float c[]; };
layout(std430, binding = 1) readonly buffer A { float a[]; };
layout(std430, binding = 2) readonly buffer B { float b[]; };
void main() {
    uint row = gl_GlobalInvocationID.y, column = gl_GlobalInvocationID.x;
    if (row >= 16u || column >= 16u) return;
    float sum = 0.0;
    for (uint k = 0u; k < 16u; ++k) sum += a[row * 16u + k] * b[k * 16u + column];
    c[row * 16u + column] = sum;
}
