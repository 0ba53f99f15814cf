#version 450
#extension GL_KHR_shader_subgroup_shuffle : require
#extension GL_KHR_shader_subgroup_basic : require
layout(local_size_x = 64) in;
layout(std430, binding = 0) buffer Y { uint y[]; };
layout(std430, binding = 1) readonly buffer X { uint x[]; };
void main() {
    uint i = gl_GlobalInvocationID.x;
    uint v = x[i];
    for (uint d = 1u; d < gl_SubgroupSize; d *= 2u) v += subgroupShuffleXor(v, d);
    y[i] = v + subgroupShuffle(x[i], gl_SubgroupInvocationID ^ 1u);
}
