#version 450
layout(local_size_x = 64) in;
struct Inner { vec2 a; float b[3]; };
struct Outer { Inner first; Inner rest[2]; int n; };
layout(std430, binding = 0) buffer Y { float y[]; };
layout(std430, binding = 1) readonly buffer X { Outer x[16]; };
float sum(Inner i) { return i.a.x + i.a.y + i.b[0] + i.b[1] + i.b[2]; }
void main() {
    uint i = gl_GlobalInvocationID.x;
    Outer o = x[i % 16u];
    o.rest[1].b[2] = o.first.a.y;
    o.rest[0] = o.first;
    Inner last = o.rest[1];
    last.a.x += 1.0;
    y[i] = sum(o.first) + sum(o.rest[0]) * 2.0 + sum(last) + float(o.n & 7);
}
