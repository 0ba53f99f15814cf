#version 450
layout(local_size_x = 64) in;
layout(std430, binding = 0) buffer Y { int y[]; };
layout(std430, binding = 1) readonly buffer X { int x[]; };
void main() {
    uint i = gl_GlobalInvocationID.x;
    int a = x[i], b = (x[i + 1u] & 0xff) + 1;
    uint u = uint(a) / uint(b), m = uint(a) % 10u;
    y[i] = a / b + int(u) + int(m) + (a & 0x7fffffff) % 7 + a / 3;
}
