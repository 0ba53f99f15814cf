#version 450
layout(local_size_x = 16) in;
layout(std430, binding = 0) buffer C { float c[]; };
layout(std430, binding = 1) readonly buffer A { vec4 a[]; };
layout(std430, binding = 2) readonly buffer B { vec4 b[]; };
void main() {
    uint i = gl_GlobalInvocationID.x % 16u;
    vec4 sum[4];
    for (int r = 0; r < 4; r++) sum[r] = vec4(0.0);
    for (uint k = 0u; k < 4u; k++) {
        vec4 x = a[i * 4u + k];
        sum[0] += x.x * b[4u * k];
        sum[1] += x.y * b[4u * k + 1u];
        sum[2] += x.z * b[4u * k + 2u];
        sum[3] += x.w * b[4u * k + 3u];
    }
    vec4 all = sum[0] + sum[1] + sum[2] + sum[3];
    if (gl_GlobalInvocationID.x < 16u) {
        c[i * 4u] = all.x; c[i * 4u + 1u] = all.y; c[i * 4u + 2u] = all.z; c[i * 4u + 3u] = all.w;
    }
}
