#version 450
layout(local_size_x = 64) in;
layout(std430, binding = 0) buffer Y { uint add; uint lowest; uint highest; uint both; uint either; uint odd; int low; int high; };
layout(std430, binding = 1) readonly buffer X { uint x[]; };
void main() {
    uint v = x[gl_GlobalInvocationID.x];
    atomicAdd(add, v);
    atomicMin(lowest, v);
    atomicMax(highest, v);
    atomicAnd(both, v | 0xff00ffu);
    atomicOr(either, v & 0xff00ffu);
    atomicXor(odd, v);
    atomicMin(low, int(v));
    atomicMax(high, int(v));
}
