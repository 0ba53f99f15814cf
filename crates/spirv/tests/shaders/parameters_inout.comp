#version 450
layout(local_size_x = 64) in;
layout(std430, binding = 0) buffer Y { float y[]; };
layout(std430, binding = 1) readonly buffer X { float x[]; };
void swap(inout float a, inout float b) { float t = a; a = b; b = t; }
void order(inout float a, inout float b) { if (a > b) swap(a, b); }
void split(float v, out float whole, out float rest) { whole = floor(v); rest = v - whole; }
void main() {
    uint i = gl_GlobalInvocationID.x;
    float a = x[i], b = x[i + 1u], c = x[i + 2u];
    order(a, b); order(b, c); order(a, b);
    float whole, rest;
    split(b, whole, rest);
    y[i] = a + 2.0 * whole + 3.0 * rest + 4.0 * c;
}
