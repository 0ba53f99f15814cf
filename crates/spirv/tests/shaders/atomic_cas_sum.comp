#version 450
layout(local_size_x = 32) in;
layout(std430, binding = 0) buffer Y { uint sum; };
layout(std430, binding = 1) readonly buffer X { uint x[]; };
void main() {
    // Addition by compare and exchange, which ends for every invocation.
    uint v = x[gl_GlobalInvocationID.x] & 0xffu;
    uint seen = sum;
    for (;;) {
        uint before = atomicCompSwap(sum, seen, seen + v);
        if (before == seen) break;
        seen = before;
    }
}
