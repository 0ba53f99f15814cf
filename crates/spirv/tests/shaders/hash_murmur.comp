#version 450
layout(local_size_x = 64) in;
layout(std430, binding = 0) buffer Y { uint y[]; };
layout(std430, binding = 1) readonly buffer X { uint x[]; };
uint rotl(uint v, uint r) { return (v << r) | (v >> (32u - r)); }
uint mix_in(uint h, uint k) {
    k *= 0xcc9e2d51u;
    k = rotl(k, 15u);
    k *= 0x1b873593u;
    h ^= k;
    h = rotl(h, 13u);
    return h * 5u + 0xe6546b64u;
}
uint final_mix(uint h) {
    h ^= h >> 16; h *= 0x85ebca6bu; h ^= h >> 13; h *= 0xc2b2ae35u; h ^= h >> 16;
    return h;
}
void main() {
    uint i = gl_GlobalInvocationID.x;
    uint h = mix_in(mix_in(i, x[i]), x[i + 1u]);
    y[i] = final_mix(h ^ 8u);
}
