#version 450
#extension GL_EXT_shader_16bit_storage : require
#extension GL_EXT_shader_explicit_arithmetic_types_int16 : require
layout(local_size_x = 64) in;
layout(std430, binding = 0) buffer Y { uint16_t y[]; };
layout(std430, binding = 1) readonly buffer X { uint16_t x[]; };
void main() {
    uint i = gl_GlobalInvocationID.x;
    uint16_t s = uint16_t(1us);
    for (uint k = 0u; k < 8u; k++) s = uint16_t(s * uint16_t(31us) + x[i + k]);
    if (s > uint16_t(30000us)) s = uint16_t(s >> uint16_t(1us));
    y[i] = s;
}
