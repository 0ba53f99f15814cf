#version 450
layout(local_size_x = 64) in;
layout(std430, binding = 0) buffer Y { uint y[]; };
layout(std430, binding = 1) readonly buffer N { uint next[]; };
void main() {
    uint at = gl_GlobalInvocationID.x, seen = 1u;
    bool ended = false;
    while (!ended) {
        uint to = next[at] & 255u;
        seen = seen * 2u + (to & 1u);
        if (to == at || (seen >> 20) != 0u) { ended = true; continue; }
        at = to;
        if (at % 17u == 0u) break;
    }
    y[gl_GlobalInvocationID.x] = seen;
}
