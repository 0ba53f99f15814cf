#version 450
layout(local_size_x = 64) in;
layout(std430, binding = 0) buffer Y { uint y[]; };
layout(std430, binding = 1) readonly buffer X { uint x[]; };
void main() {
    uint i = gl_GlobalInvocationID.x, count = 0u, sum = 0u;
    for (uint a = 0u; a < 6u; a++) {
        if ((x[i + a] & 3u) == 0u) continue;
        for (uint b = 0u; b < a; b++) {
            uint v = x[i + a * 6u + b];
            if ((v & 7u) == 7u) break;
            if ((v & 1u) == 1u) continue;
            uint c = v & 15u;
            while (c > 2u) {
                c = (c * 3u) >> 2;
                if (c == 5u) break;
                sum += c;
            }
            count++;
        }
        sum ^= count;
    }
    y[i] = sum * 1000u + count;
}
