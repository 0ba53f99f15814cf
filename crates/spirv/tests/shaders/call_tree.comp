#version 450
layout(local_size_x = 64) in;
layout(std430, binding = 0) buffer Y { float y[]; };
layout(std430, binding = 1) readonly buffer X { float x[]; };
float square(float v) { return v * v; }
float cube(float v) { return square(v) * v; }
float poly(float v) { return cube(v) - 2.0 * square(v) + v; }
float twice(float v) { return poly(v) + poly(v * 0.5); }
float choose(float v) { if (v > 0.0) return twice(v); return poly(-v); }
void main() {
    uint i = gl_GlobalInvocationID.x;
    y[i] = choose(x[i]) + choose(x[i + 1u]);
}
