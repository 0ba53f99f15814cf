#version 450
layout(local_size_x = 64) in;
layout(std430, binding = 0) buffer Y { uint y[]; };
layout(std430, binding = 1) readonly buffer X { uint x[]; };
shared uint ping[2][64];
void main() {
    uint l = gl_LocalInvocationIndex;
    int from = 0;
    ping[0][l] = x[gl_GlobalInvocationID.x];
    barrier();
    for (uint d = 1u; d < 64u; d *= 2u) {
        int to = 1 - from;
        if (l >= d) ping[to][l] = ping[from][l] + ping[from][l - d];
        else ping[to][l] = ping[from][l];
        from = to;
        barrier();
    }
    y[gl_GlobalInvocationID.x] = ping[from][l];
}
