#version 450
layout(local_size_x = 64) in;
layout(std430, binding = 0) buffer Y { uint total[]; };
layout(std430, binding = 1) readonly buffer X { uint x[]; };
shared uint part[64];
void main() {
    uint l = gl_LocalInvocationIndex;
    part[l] = x[gl_GlobalInvocationID.x] & 0xffffu;
    barrier();
    for (uint s = 32u; s > 0u; s >>= 1) {
        if (l < s) part[l] += part[l + s];
        barrier();
    }
    if (l == 0u) total[gl_WorkGroupID.x] = part[0];
}
