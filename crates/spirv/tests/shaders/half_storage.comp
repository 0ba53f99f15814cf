#version 450
#extension GL_EXT_shader_16bit_storage : require
layout(local_size_x = 64) in;
layout(std430, binding = 0) buffer Y { float16_t y[]; };
layout(std430, binding = 1) readonly buffer X { float16_t x[]; };
void main() {
    uint i = gl_GlobalInvocationID.x;
    float a = float(x[i]), b = float(x[i + 1u]);
    y[i] = float16_t(a * 0.5 + b * 0.25);
}
