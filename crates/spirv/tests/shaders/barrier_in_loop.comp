#version 450
layout(local_size_x = 16) in;
layout(std430, binding = 0) buffer Y { uint y[]; };
layout(std430, binding = 1) readonly buffer X { uint x[]; };
shared uint best;
void main() {
    uint l = gl_LocalInvocationIndex, mine = x[gl_GlobalInvocationID.x] & 1023u;
    uint order = 0u;
    if (l == 0u) best = 0u;
    barrier();
    for (uint turn = 0u; turn < 4u; turn++) {
        atomicMax(best, (mine << 4) | l);
        barrier();
        if (best == ((mine << 4) | l)) { order = turn + 1u; mine = 0u; }
        barrier();
        if (l == 0u) best = 0u;
        barrier();
    }
    y[gl_GlobalInvocationID.x] = order;
}
