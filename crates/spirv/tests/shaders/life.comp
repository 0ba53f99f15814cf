#version 450
layout(local_size_x = 8, local_size_y = 8) in;
layout(std430, binding = 0) buffer Y { uint y[]; };
layout(std430, binding = 1) readonly buffer X { uint x[]; };
uint cell(int cx, int cy) { return x[(cy & 15) * 16 + (cx & 15)] & 1u; }
void main() {
    ivec2 p = ivec2(gl_GlobalInvocationID.xy) & 15;
    uint n = 0u;
    for (int dy = -1; dy <= 1; dy++) {
        for (int dx = -1; dx <= 1; dx++) {
            if (dx == 0 && dy == 0) continue;
            n += cell(p.x + dx, p.y + dy);
        }
    }
    uint alive = cell(p.x, p.y);
    y[p.y * 16 + p.x] = uint(n == 3u || (n == 2u && alive == 1u));
}
