#version 450
#extension GL_EXT_shader_8bit_storage : require
#extension GL_EXT_shader_explicit_arithmetic_types_int8 : require
layout(local_size_x = 64) in;
layout(std430, binding = 0) buffer Y { uint8_t y[]; };
layout(std430, binding = 1) readonly buffer X { uint8_t x[]; };
void main() {
    uint i = gl_GlobalInvocationID.x;
    uint a = uint(x[3u * i]), b = uint(x[3u * i + 1u]), c = uint(x[3u * i + 2u]);
    y[i] = uint8_t((a * 77u + b * 150u + c * 29u) >> 8);
}
