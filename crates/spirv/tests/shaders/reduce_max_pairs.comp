#version 450
layout(local_size_x = 32) in;
struct Best { float value; uint at; };
layout(std430, binding = 0) buffer Y { Best best[]; };
layout(std430, binding = 1) readonly buffer X { float x[]; };
shared Best part[32];
Best better(Best a, Best b) {
    if (a.value > b.value) return a;
    if (b.value > a.value) return b;
    return a.at < b.at ? a : b;
}
void main() {
    uint l = gl_LocalInvocationIndex;
    part[l] = Best(x[gl_GlobalInvocationID.x], gl_GlobalInvocationID.x);
    barrier();
    for (uint s = 16u; s > 0u; s /= 2u) {
        if (l < s) part[l] = better(part[l], part[l + s]);
        barrier();
    }
    if (l == 0u) best[gl_WorkGroupID.x] = part[0];
}
