#version 450
layout(local_size_x = 64) in;
layout(std430, binding = 0) buffer Y { float y[]; };
layout(std430, binding = 1) readonly buffer X { float x[]; };
void main() {
    uint i = gl_GlobalInvocationID.x;
    precise float sum = x[i] * x[i + 1u] + x[i + 2u];
    precise float d = sum * 0.5 - x[i] * 0.25;
    y[i] = sum + d;
}
