#version 450
// The simplest of all: one bound check, one line.
layout(local_size_x = 64) in;
layout(std430, binding = 0) buffer Y { float y[]; };
layout(std430, binding = 1) readonly buffer X { float x[]; };
layout(push_constant) uniform P { uint n; float a; };
void main() {
    uint i = gl_GlobalInvocationID.x;
    if (i < n % 256u) y[i] = a * x[i] + y[i];
}
