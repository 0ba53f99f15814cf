#version 450
#extension GL_EXT_shader_16bit_storage : require
layout(local_size_x = 64) in;
layout(std430, binding = 0) buffer Y { float16_t y[]; };
layout(std430, binding = 1) readonly buffer X { float x[]; };
// Only the storage has 16 bits: a module may not have constants of them.
void main() {
    uint i = gl_GlobalInvocationID.x;
    float lower = 0.25, upper = 2.0 * lower;
    if (i % 3u == 0u) y[i] = float16_t(upper);
    else if (i % 3u == 1u) y[i] = float16_t(x[i] > 0.0 ? lower : upper);
    else y[i] = float16_t(x[i]);
}
