#version 450
layout(local_size_x = 64) in;
layout(std430, binding = 0) buffer Y { uint y[]; };
void main() {
    uint n = gl_GlobalInvocationID.x + 1u, steps = 0u;
    while (n != 1u) {
        if (steps >= 200u) break;
        n = (n % 2u == 0u) ? n / 2u : 3u * n + 1u;
        steps++;
    }
    y[gl_GlobalInvocationID.x] = steps;
}
