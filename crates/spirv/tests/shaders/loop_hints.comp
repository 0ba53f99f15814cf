#version 450
#extension GL_EXT_control_flow_attributes : require
layout(local_size_x = 64) in;
layout(std430, binding = 0) buffer Y { float y[]; };
layout(std430, binding = 1) readonly buffer X { float x[]; };
void main() {
    uint i = gl_GlobalInvocationID.x;
    float sum = 0.0;
    [[unroll]] for (uint k = 0u; k < 8u; k++) {
        if (x[i + k] < -7.0) break;
        [[dont_unroll]] for (uint j = 0u; j < 3u + k; j++) sum = sum * 0.5 + x[i + j];
    }
    for (uint k = 0u; k < 5u; k++) sum += x[k] * x[i];
    y[i] = sum;
}
