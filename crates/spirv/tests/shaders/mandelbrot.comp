#version 450
layout(local_size_x = 8, local_size_y = 8) in;
layout(std430, binding = 0) buffer Y { uint y[]; };
void main() {
    uvec2 p = gl_GlobalInvocationID.xy;
    vec2 c = vec2(p) * 0.0625 - vec2(1.5, 1.0), z = vec2(0.0);
    uint n = 0u;
    while (n < 40u && dot(z, z) <= 4.0) {
        z = vec2(z.x * z.x - z.y * z.y, 2.0 * z.x * z.y) + c;
        n++;
    }
    y[p.y * gl_NumWorkGroups.x * gl_WorkGroupSize.x + p.x] = n;
}
