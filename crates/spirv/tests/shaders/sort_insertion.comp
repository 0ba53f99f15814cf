#version 450
layout(local_size_x = 64) in;
layout(std430, binding = 0) buffer Y { uint y[]; };
layout(std430, binding = 1) readonly buffer X { uint x[]; };
void main() {
    uint i = gl_GlobalInvocationID.x, v[9];
    for (uint k = 0u; k < 9u; k++) v[k] = x[i + k];
    for (int k = 1; k < 9; k++) {
        uint key = v[k];
        int at = k - 1;
        while (at >= 0 && v[at] > key) { v[at + 1] = v[at]; at--; }
        v[at + 1] = key;
    }
    y[i] = v[4] ^ v[0] ^ v[8];
}
