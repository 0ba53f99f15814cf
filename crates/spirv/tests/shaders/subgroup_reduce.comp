#version 450
#extension GL_KHR_shader_subgroup_arithmetic : require
layout(local_size_x = 64) in;
layout(std430, binding = 0) buffer Y { uint y[]; };
layout(std430, binding = 1) readonly buffer X { uint x[]; };
void main() {
    uint i = gl_GlobalInvocationID.x;
    uint v = x[i] & 0xffffu;
    uint sum = subgroupAdd(v);
    uint most = subgroupMax(v);
    uint least = subgroupMin(v);
    uint before = subgroupExclusiveAdd(v);
    y[4u * i] = sum; y[4u * i + 1u] = most; y[4u * i + 2u] = least; y[4u * i + 3u] = before;
}
