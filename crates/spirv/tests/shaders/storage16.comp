#version 450
#extension GL_EXT_shader_16bit_storage : require
#extension GL_EXT_shader_explicit_arithmetic_types_int16 : require
layout(local_size_x = 64) in;
layout(std430, binding = 0) buffer Y { int16_t y[]; };
layout(std430, binding = 1) readonly buffer X { uint16_t x[]; };
void main() {
    uint i = gl_GlobalInvocationID.x;
    int a = int(x[2u * i]), b = int(x[2u * i + 1u]);
    int sum = clamp(a - b, -1000, 1000);
    y[i] = int16_t(sum);
}
