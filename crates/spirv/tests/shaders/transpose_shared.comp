#version 450
layout(local_size_x = 8, local_size_y = 8) in;
layout(std430, binding = 0) buffer Y { uint y[]; };
layout(std430, binding = 1) readonly buffer X { uint x[]; };
shared uint tile[8][9];
void main() {
    uvec3 l = gl_LocalInvocationID;
    uint base = (gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x) * 64u;
    tile[l.y][l.x] = x[base + l.y * 8u + l.x];
    memoryBarrierShared();
    barrier();
    y[base + l.y * 8u + l.x] = tile[l.x][l.y];
}
