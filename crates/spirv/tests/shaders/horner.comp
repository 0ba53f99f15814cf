#version 450
layout(local_size_x = 64) in;
layout(std430, binding = 0) buffer Y { float y[]; };
layout(std430, binding = 1) readonly buffer X { float x[]; };
void main() {
    uint i = gl_GlobalInvocationID.x;
    float c[6] = float[](1.0, -0.5, 0.25, -0.125, 0.0625, -0.03125);
    float v = x[i] * 0.125, s = c[5];
    s = s * v + c[4]; s = s * v + c[3]; s = s * v + c[2]; s = s * v + c[1]; s = s * v + c[0];
    y[i] = s;
}
