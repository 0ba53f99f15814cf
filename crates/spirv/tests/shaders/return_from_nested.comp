#version 450
layout(local_size_x = 64) in;
layout(std430, binding = 0) buffer Y { int y[]; };
layout(std430, binding = 1) readonly buffer X { uint x[]; };
int find(uint from, uint what) {
    for (uint row = 0u; row < 4u; row++) {
        for (uint k = 0u; k < 4u; k++) {
            uint v = x[from + row * 4u + k] & 15u;
            if (v == what) return int(row * 4u + k);
            if (v == 15u) break;
        }
        if ((x[from + row] & 64u) != 0u) return -2;
    }
    return -1;
}
void main() {
    uint i = gl_GlobalInvocationID.x;
    y[i] = find(i, i % 15u) * 100 + find(i + 7u, 3u);
}
