#version 450
layout(local_size_x = 64) in;
layout(std430, binding = 0) buffer Y { float y[]; };
layout(std430, binding = 1) readonly buffer X { uint seed[]; };
uint state;
uint next() {
    uint before = state;
    state = state * 747796405u + 2891336453u;
    uint word = ((before >> ((before >> 28) + 4u)) ^ before) * 277803737u;
    return (word >> 22) ^ word;
}
float uniform01() { return float(next() >> 8) / 16777216.0; }
void main() {
    state = seed[gl_GlobalInvocationID.x] ^ gl_GlobalInvocationID.x;
    float sum = 0.0;
    for (int k = 0; k < 10; k++) {
        float u = uniform01();
        if (u < 0.25) continue;
        sum += u;
    }
    y[gl_GlobalInvocationID.x] = sum;
}
