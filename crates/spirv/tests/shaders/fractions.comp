#version 450
layout(local_size_x = 64) in;
layout(std430, binding = 0) buffer Y { float y[]; };
layout(std430, binding = 1) readonly buffer X { float x[]; };
void main() {
    uint i = gl_GlobalInvocationID.x;
    float v = x[i];
    float whole;
    float part = modf(v, whole);
    y[i] = floor(v) + ceil(v) * 2.0 + trunc(v) * 4.0 + fract(v) + sign(v) + mod(v, 3.0) + roundEven(v) + part + whole;
}
