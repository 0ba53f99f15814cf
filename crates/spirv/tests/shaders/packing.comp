#version 450
layout(local_size_x = 64) in;
layout(std430, binding = 0) buffer Y { uint y[]; };
layout(std430, binding = 1) readonly buffer X { uint x[]; };
void main() {
    uint i = gl_GlobalInvocationID.x;
    vec4 c = unpackUnorm4x8(x[i]);
    c.rgb = c.bgr * 0.5;
    uint h = packHalf2x16(vec2(c.r + c.g, c.b));
    y[i] = packUnorm4x8(c) ^ h ^ floatBitsToUint(uintBitsToFloat(x[i + 1u] & 0x7effffffu));
}
