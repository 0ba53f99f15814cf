#version 450
layout(local_size_x = 64) in;
layout(std430, binding = 0) buffer Y { uint y[]; };
layout(std430, binding = 1) readonly buffer X { uint x[]; };
void main() {
    uint i = gl_GlobalInvocationID.x, v = x[i];
    uint a = bitfieldExtract(v, 5, 9), b = bitfieldInsert(v, a, 20, 7), c = bitfieldReverse(v);
    int low = findLSB(v | 1u), high = findMSB(v | 1u);
    int s = bitfieldExtract(int(v), 3, 6);
    y[i] = a ^ b ^ c ^ uint(bitCount(v)) ^ uint(low << 8) ^ uint(high << 16) ^ uint(s);
}
