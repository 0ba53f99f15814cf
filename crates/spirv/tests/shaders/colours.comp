#version 450
layout(local_size_x = 64) in;
layout(std430, binding = 0) buffer Y { vec4 y[]; };
layout(std430, binding = 1) readonly buffer X { vec4 x[]; };
const mat3 TO_YUV = mat3(0.25, -0.125, 0.5, 0.5, -0.375, -0.4375, 0.25, 0.5, -0.0625);
void main() {
    uint i = gl_GlobalInvocationID.x & 127u;
    vec4 c = x[i];
    vec3 yuv = TO_YUV * c.rgb;
    yuv.x = yuv.x > 0.5 ? 1.0 : yuv.x * 2.0;
    yuv.yz += 0.5;
    y[i] = vec4(yuv, c.a);
}
