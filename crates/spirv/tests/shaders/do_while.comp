#version 450
layout(local_size_x = 64) in;
layout(std430, binding = 0) buffer Y { uint y[]; };
layout(std430, binding = 1) readonly buffer X { uint x[]; };
void main() {
    uint i = gl_GlobalInvocationID.x;
    uint a = x[i] % 1000u + 1u, b = i + 1u, turns = 0u;
    do {
        uint r = a % b;
        a = b;
        b = r;
        turns++;
    } while (b != 0u);
    y[i] = a * 100u + turns;
}
