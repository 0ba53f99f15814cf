#version 450
layout(local_size_x = 8, local_size_y = 8) in;
layout(std430, binding = 0) buffer Y { float y[]; };
layout(std430, binding = 1) readonly buffer X { float x[]; };
float at(ivec2 p) { p = clamp(p, ivec2(0), ivec2(15)); return x[p.y * 16 + p.x]; }
void main() {
    ivec2 p = ivec2(gl_GlobalInvocationID.xy) & 31;
    vec2 s = (vec2(p) + 0.5) * 0.5 - 0.5;
    ivec2 o = ivec2(floor(s));
    vec2 f = s - vec2(o);
    float top = mix(at(o), at(o + ivec2(1, 0)), f.x), bottom = mix(at(o + ivec2(0, 1)), at(o + ivec2(1, 1)), f.x);
    y[p.y * 32 + p.x] = mix(top, bottom, f.y);
}
