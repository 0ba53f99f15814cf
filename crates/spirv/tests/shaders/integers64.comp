#version 450
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require
layout(local_size_x = 64) in;
layout(std430, binding = 0) buffer Y { uint64_t y[]; };
layout(std430, binding = 1) readonly buffer X { uint x[]; };
void main() {
    uint i = gl_GlobalInvocationID.x;
    uint64_t h = 14695981039346656037ul;
    for (uint k = 0u; k < 4u; k++) {
        h ^= uint64_t(x[i + k]);
        h *= 1099511628211ul;
        h = (h << 13) | (h >> 51);
    }
    y[i] = h;
}
