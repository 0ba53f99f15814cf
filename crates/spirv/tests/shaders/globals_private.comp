#version 450
layout(local_size_x = 64) in;
layout(std430, binding = 0) buffer Y { uint y[]; };
layout(std430, binding = 1) readonly buffer X { uint x[]; };
uint stack[16];
int top = 0;
void push(uint v) { if (top < 16) stack[top++] = v; }
uint pop() { return top > 0 ? stack[--top] : 0u; }
void main() {
    uint i = gl_GlobalInvocationID.x;
    for (uint k = 0u; k < 12u; k++) {
        uint v = x[i + k];
        if ((v & 3u) == 0u) { uint a = pop(), b = pop(); push(a * 3u + b); }
        else push(v & 0xffu);
    }
    uint r = uint(top);
    while (top > 0) r = r * 7u + pop();
    y[i] = r;
}
