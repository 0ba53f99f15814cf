#version 450
layout(local_size_x = 64) in;
layout(std430, binding = 0) buffer Y { vec4 y[]; };
layout(std430, binding = 1) readonly buffer X { vec4 x[]; };
void main() {
    uint i = gl_GlobalInvocationID.x % 128u;
    vec4 a = x[i], b = x[i + 1u];
    a.xz = b.wy;
    b = vec4(a.zyx, b.x);
    vec3 c = a.yyw + b.xzw;
    c.zx = c.xz;
    y[i] = vec4(c.xy, a.w, b.w).wzyx;
}
