#version 450
layout(local_size_x_id = 0, local_size_y = 1) in;
layout(local_size_x = 32) in;
layout(constant_id = 4) const uint N = 8u;
layout(std430, binding = 0) buffer Y { uint y[]; };
layout(std430, binding = 1) readonly buffer X { uint x[]; };
shared uint t[N];
void main() {
    uint l = gl_LocalInvocationIndex;
    if (l < N) t[l] = x[gl_WorkGroupID.x * N + l];
    barrier();
    uint own[N];
    for (uint k = 0u; k < N; k++) own[k] = t[(k + l) % N];
    uint h = gl_WorkGroupSize.x;
    for (uint k = 0u; k < N; k++) h = h * 31u + own[N - 1u - k];
    y[gl_GlobalInvocationID.x] = h;
}
