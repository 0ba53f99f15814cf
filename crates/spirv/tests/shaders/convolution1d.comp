#version 450
layout(local_size_x = 64) in;
layout(std430, binding = 0) buffer Y { float y[]; };
layout(std430, binding = 1) readonly buffer X { float x[]; };
const float taps[5] = float[](0.0625, 0.25, 0.375, 0.25, 0.0625);
void main() {
    int i = int(gl_GlobalInvocationID.x);
    float sum = 0.0;
    for (int t = -2; t <= 2; t++) {
        int at = i + t;
        if (at < 0) at = -at;
        sum += taps[t + 2] * x[at];
    }
    y[i] = sum;
}
