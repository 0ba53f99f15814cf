#version 450
layout(local_size_x = 64) in;
layout(std430, binding = 0) buffer Y { vec4 y[]; };
layout(std430, binding = 1) readonly buffer X { vec4 x[]; };
vec4 product(vec4 a, vec4 b) {
    return vec4(a.w * b.xyz + b.w * a.xyz + cross(a.xyz, b.xyz), a.w * b.w - dot(a.xyz, b.xyz));
}
vec4 conjugate(vec4 q) { return vec4(-q.xyz, q.w); }
void main() {
    uint i = gl_GlobalInvocationID.x % 128u;
    vec4 q = x[i], v = vec4(x[i + 1u].xyz, 0.0);
    y[i] = product(product(q, v), conjugate(q));
}
