#version 450
#extension GL_KHR_shader_subgroup_ballot : require
#extension GL_KHR_shader_subgroup_vote : require
layout(local_size_x = 64) in;
layout(std430, binding = 0) buffer Y { uint y[]; };
layout(std430, binding = 1) readonly buffer X { uint x[]; };
void main() {
    uint i = gl_GlobalInvocationID.x;
    bool odd = (x[i] & 1u) == 1u;
    uvec4 votes = subgroupBallot(odd);
    uint mine = subgroupBallotExclusiveBitCount(votes);
    uint all = subgroupBallotBitCount(votes);
    uint r = odd ? mine : all - mine;
    if (subgroupAny(odd) && !subgroupAll(odd)) r += 100u;
    if (subgroupElect()) r += 1000u;
    y[i] = r + subgroupBroadcastFirst(x[i]);
}
