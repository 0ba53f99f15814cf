#version 450
layout(local_size_x = 32) in;
layout(std430, binding = 0) buffer Y { uint y[]; };
layout(std430, binding = 1) readonly buffer X { uint x[]; };
shared uint t[64];
void main() {
    uint l = gl_LocalInvocationIndex, g = gl_WorkGroupID.x * 64u;
    t[2u * l] = x[g + 2u * l] % 1000u;
    t[2u * l + 1u] = x[g + 2u * l + 1u] % 1000u;
    uint offset = 1u;
    for (uint d = 32u; d > 0u; d >>= 1) {
        barrier();
        if (l < d) {
            uint a = offset * (2u * l + 1u) - 1u, b = offset * (2u * l + 2u) - 1u;
            t[b] += t[a];
        }
        offset *= 2u;
    }
    if (l == 0u) t[63] = 0u;
    for (uint d = 1u; d < 64u; d *= 2u) {
        offset >>= 1;
        barrier();
        if (l < d) {
            uint a = offset * (2u * l + 1u) - 1u, b = offset * (2u * l + 2u) - 1u;
            uint keep = t[a];
            t[a] = t[b];
            t[b] += keep;
        }
    }
    barrier();
    y[g + 2u * l] = t[2u * l];
    y[g + 2u * l + 1u] = t[2u * l + 1u];
}
