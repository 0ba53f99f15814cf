#version 450
layout(local_size_x = 8, local_size_y = 8) in;
layout(std430, binding = 0) buffer C { float c[]; };
layout(std430, binding = 1) readonly buffer A { float a[]; };
layout(std430, binding = 2) readonly buffer B { float b[]; };
shared float ta[8][8];
shared float tb[8][8];
const uint N = 24u;
void main() {
    uvec2 l = gl_LocalInvocationID.xy;
    uvec2 g = (gl_WorkGroupID.xy % 3u) * 8u + l;
    float sum = 0.0;
    for (uint t = 0u; t < N / 8u; t++) {
        ta[l.y][l.x] = a[g.y * N + t * 8u + l.x];
        tb[l.y][l.x] = b[(t * 8u + l.y) * N + g.x];
        barrier();
        for (uint k = 0u; k < 8u; k++) sum += ta[l.y][k] * tb[k][l.x];
        barrier();
    }
    if (gl_WorkGroupID.x < 3u && gl_WorkGroupID.y < 3u) c[g.y * N + g.x] = sum;
}
