#version 450
layout(local_size_x = 64) in;
layout(std430, binding = 0) buffer Y { uint bins[16]; };
layout(std430, binding = 1) readonly buffer X { uint x[]; };
shared uint local_bins[16];
void main() {
    if (gl_LocalInvocationIndex < 16u) local_bins[gl_LocalInvocationIndex] = 0u;
    barrier();
    uint v = x[gl_GlobalInvocationID.x];
    atomicAdd(local_bins[(v >> 4) & 15u], 1u);
    barrier();
    if (gl_LocalInvocationIndex < 16u) atomicAdd(bins[gl_LocalInvocationIndex], local_bins[gl_LocalInvocationIndex]);
}
