#version 450
layout(local_size_x = 32) in;
layout(std430, binding = 0) buffer Y { uint y[]; };
shared uint s[64];
void main() {
    uint l = gl_LocalInvocationIndex, g = gl_WorkGroupID.x * 64u;
    s[l] = y[g + l];
    s[l + 32u] = y[g + l + 32u];
    barrier();
    for (uint size = 2u; size <= 64u; size *= 2u) {
        for (uint stride = size / 2u; stride > 0u; stride /= 2u) {
            uint a = 2u * l - (l & (stride - 1u)), b = a + stride;
            bool up = (a & size) == 0u;
            if ((s[a] > s[b]) == up) { uint t = s[a]; s[a] = s[b]; s[b] = t; }
            barrier();
        }
    }
    y[g + l] = s[l];
    y[g + l + 32u] = s[l + 32u];
}
