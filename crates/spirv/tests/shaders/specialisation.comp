#version 450
layout(local_size_x = 64) in;
layout(constant_id = 0) const uint ROUNDS = 5u;
layout(constant_id = 1) const float SCALE = 1.5;
layout(constant_id = 2) const bool FLIP = true;
layout(constant_id = 3) const int MODE = 2;
const uint TWICE = ROUNDS * 2u + 1u;
layout(std430, binding = 0) buffer Y { float y[]; };
layout(std430, binding = 1) readonly buffer X { float x[]; };
void main() {
    uint i = gl_GlobalInvocationID.x;
    float v = x[i];
    for (uint k = 0u; k < ROUNDS; k++) v = v * SCALE - 1.0;
    if (FLIP) v = -v;
    if (MODE == 1) v += 1.0; else if (MODE == 2) v += float(TWICE);
    y[i] = v;
}
