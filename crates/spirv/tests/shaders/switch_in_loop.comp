#version 450
layout(local_size_x = 64) in;
layout(std430, binding = 0) buffer Y { int y[]; };
layout(std430, binding = 1) readonly buffer X { uint program[]; };
void main() {
    // A little machine: the loop's continue and break leave the switch.
    uint i = gl_GlobalInvocationID.x;
    int a = int(i), b = 1;
    for (uint pc = 0u; pc < 24u; pc++) {
        switch (program[i + pc] & 7u) {
            case 0u: a += b; break;
            case 1u: a -= b; break;
            case 2u: { int t = a; a = b; b = t; break; }
            case 3u: b = b * 3 + 1; break;
            case 4u: if (a > 100) continue; a ^= b; break;
            case 5u: if (b > 5000) { pc = 100u; break; } b++; break;
            default: continue;
        }
        if (a < -1000000) break;
        a = a & 0xfffff;
    }
    y[i] = a + b;
}
