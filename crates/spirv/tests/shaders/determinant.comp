#version 450
layout(local_size_x = 64) in;
layout(std430, binding = 0) buffer Y { float y[]; };
layout(std430, binding = 1) readonly buffer X { float x[]; };
float det(mat3 m) {
    return m[0][0] * (m[1][1] * m[2][2] - m[2][1] * m[1][2]) - m[1][0] * (m[0][1] * m[2][2] - m[2][1] * m[0][2])
        + m[2][0] * (m[0][1] * m[1][2] - m[1][1] * m[0][2]);
}
void main() {
    uint i = gl_GlobalInvocationID.x;
    mat3 m;
    for (int c = 0; c < 3; c++) for (int r = 0; r < 3; r++) m[c][r] = x[i + uint(3 * c + r)] * 0.125;
    mat3 t = transpose(m);
    y[i] = det(m) - 0.5 * det(t * m);
}
