#version 450
layout(local_size_x = 32) in;
layout(std430, binding = 0) buffer Y { uint y[]; };
layout(std430, binding = 1) readonly buffer X { uint x[]; };
void main() {
    uint step_ = gl_NumWorkGroups.x * gl_WorkGroupSize.x;
    for (uint i = gl_GlobalInvocationID.x; i < 512u; i += step_) {
        uint v = x[i];
        v ^= v >> 7;
        y[i] = v * 9u;
    }
}
