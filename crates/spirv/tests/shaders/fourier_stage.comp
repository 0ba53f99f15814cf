#version 450
layout(local_size_x = 64) in;
layout(std430, binding = 0) buffer Y { vec2 y[]; };
layout(std430, binding = 1) readonly buffer X { vec2 x[]; };
layout(std430, binding = 2) readonly buffer T { vec2 turns[]; };
vec2 times(vec2 a, vec2 b) { return vec2(a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x); }
void main() {
    uint i = gl_GlobalInvocationID.x & 127u, half_ = 8u;
    uint k = i & (half_ - 1u), base = (i / half_) * half_ * 2u + k;
    vec2 even = x[base], odd = times(turns[k], x[base + half_]);
    if (gl_GlobalInvocationID.x < 128u) {
        y[base] = even + odd;
        y[base + half_] = even - odd;
    }
}
