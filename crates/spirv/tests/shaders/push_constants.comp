#version 450
layout(local_size_x = 64) in;
layout(std430, binding = 0) buffer Y { float y[]; };
layout(push_constant) uniform P { vec4 scale; mat2 turn; uint kind; int shift; } p;
void main() {
    uint i = gl_GlobalInvocationID.x;
    vec2 at = p.turn * vec2(float(i), float(p.shift & 15));
    if ((p.kind & 1u) == 0u) at *= p.scale.xy; else at += p.scale.zw;
    y[2u * i] = at.x;
    y[2u * i + 1u] = at.y;
}
