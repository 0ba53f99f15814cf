#version 450
layout(local_size_x = 8, local_size_y = 8) in;
layout(std430, binding = 0) buffer Y { float y[]; };
layout(std430, binding = 1) readonly buffer X { float x[]; };
layout(std430, binding = 2) readonly buffer W { float w[9]; };
const int SIZE = 32;
float pixel(ivec2 p) {
    if (p.x < 0 || p.y < 0 || p.x >= SIZE || p.y >= SIZE) return 0.0;
    return x[p.y * SIZE + p.x];
}
void main() {
    ivec2 p = ivec2(gl_GlobalInvocationID.xy);
    if (p.x >= SIZE || p.y >= SIZE) return;
    float sum = 0.0;
    for (int dy = -1; dy <= 1; dy++)
        for (int dx = -1; dx <= 1; dx++)
            sum += pixel(p + ivec2(dx, dy)) * w[(dy + 1) * 3 + dx + 1];
    y[p.y * SIZE + p.x] = max(sum, 0.0);
}
