#version 450
layout(local_size_x = 64) in;
layout(std430, binding = 0) buffer Y { double y[]; };
layout(std430, binding = 1) readonly buffer X { float x[]; };
void main() {
    uint i = gl_GlobalInvocationID.x;
    double sum = 0.0LF, compensation = 0.0LF;
    for (uint k = 0u; k < 8u; k++) {
        double term = double(x[i + k]) - compensation;
        double next = sum + term;
        compensation = (next - sum) - term;
        sum = next;
    }
    y[i] = sum;
}
