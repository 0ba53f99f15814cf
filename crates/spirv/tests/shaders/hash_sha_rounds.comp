#version 450
layout(local_size_x = 32) in;
layout(std430, binding = 0) buffer Y { uint y[]; };
layout(std430, binding = 1) readonly buffer X { uint x[]; };
uint ror(uint v, int n) { return (v >> n) | (v << (32 - n)); }
void main() {
    uint i = gl_GlobalInvocationID.x;
    uint w[16];
    for (int k = 0; k < 16; k++) w[k] = x[i + k];
    uint a = 0x6a09e667u, b = 0xbb67ae85u, c = 0x3c6ef372u, d = 0xa54ff53au;
    uint e = 0x510e527fu, f = 0x9b05688cu, g = 0x1f83d9abu, h = 0x5be0cd19u;
    for (int r = 0; r < 32; r++) {
        if (r >= 16) {
            uint s0 = w[(r + 1) & 15], s1 = w[(r + 14) & 15];
            w[r & 15] += (ror(s0, 7) ^ ror(s0, 18) ^ (s0 >> 3)) + w[(r + 9) & 15] + (ror(s1, 17) ^ ror(s1, 19) ^ (s1 >> 10));
        }
        uint t1 = h + (ror(e, 6) ^ ror(e, 11) ^ ror(e, 25)) + ((e & f) ^ (~e & g)) + w[r & 15] + uint(r) * 0x428a2f98u;
        uint t2 = (ror(a, 2) ^ ror(a, 13) ^ ror(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
        h = g; g = f; f = e; e = d + t1; d = c; c = b; b = a; a = t1 + t2;
    }
    y[4u * i] = a + e; y[4u * i + 1u] = b + f; y[4u * i + 2u] = c + g; y[4u * i + 3u] = d + h;
}
