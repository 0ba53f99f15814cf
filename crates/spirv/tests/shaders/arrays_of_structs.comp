#version 450
layout(local_size_x = 64) in;
struct Body { vec3 at; float mass; vec3 v; uint kind; };
layout(std430, binding = 0) buffer B { Body bodies[]; };
void main() {
    uint i = gl_GlobalInvocationID.x % 32u;
    Body b = bodies[i];
    b.v += vec3(0.0, -1.0, 0.0) * b.mass;
    b.at = b.at + b.v * 0.125;
    if ((b.kind & 1u) == 0u) b.at.y = abs(b.at.y);
    if (gl_GlobalInvocationID.x < 32u) bodies[i] = b;
}
