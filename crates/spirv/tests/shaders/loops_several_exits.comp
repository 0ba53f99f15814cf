#version 450
layout(local_size_x = 64) in;
layout(std430, binding = 0) buffer Y { int y[]; };
layout(std430, binding = 1) readonly buffer X { uint x[]; };
void main() {
    uint i = gl_GlobalInvocationID.x;
    int result = 0;
    for (int a = 0; ; a++) {
        uint v = x[i + uint(a)];
        if (a > 20) { result = -1; break; }
        if ((v & 31u) == 0u) { result = a; break; }
        if ((v & 32u) != 0u) {
            if ((v & 64u) != 0u) { result += 1; continue; }
            if ((v & 128u) != 0u) { result = 77; break; }
            result += 2;
        } else if ((v & 256u) != 0u) continue;
        result += int(v & 3u);
    }
    y[i] = result;
}
