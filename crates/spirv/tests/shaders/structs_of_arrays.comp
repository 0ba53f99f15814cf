#version 450
layout(local_size_x = 64) in;
struct Particles { float x[64]; float v[64]; uint alive[64]; };
layout(std430, binding = 0) buffer P { Particles p; };
void main() {
    uint i = gl_GlobalInvocationID.x;
    if (i >= 64u || (p.alive[i] & 1u) == 0u) return;
    p.v[i] -= 0.5;
    p.x[i] += p.v[i] * 0.25;
    if (p.x[i] < 0.0) { p.x[i] = -p.x[i]; p.v[i] = -p.v[i] * 0.5; }
}
