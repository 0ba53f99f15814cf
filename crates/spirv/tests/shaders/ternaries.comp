#version 450
layout(local_size_x = 64) in;
layout(std430, binding = 0) buffer Y { float y[]; };
layout(std430, binding = 1) readonly buffer X { float x[]; };
void main() {
    uint i = gl_GlobalInvocationID.x;
    float a = x[i], b = x[i + 1u], c = x[i + 2u];
    float m = a > b ? (a > c ? a : c) : (b > c ? b : c);
    vec3 v = a < 0.0 ? vec3(a, b, c) : vec3(c, b, a);
    bvec3 s = lessThan(v, vec3(m));
    v = mix(v, vec3(m), s);
    y[i] = any(s) ? v.x + v.y : (all(s) ? v.z : m);
}
