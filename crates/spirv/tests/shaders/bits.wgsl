@group(0) @binding(0) var<storage, read_write> y: array<u32>;
@group(0) @binding(1) var<storage, read> x: array<u32>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let v = x[id.x];
    let a = extractBits(v, 5u, 9u);
    let b = insertBits(v, a, 20u, 7u);
    y[id.x] = a ^ b ^ reverseBits(v) ^ countOneBits(v) ^ (firstTrailingBit(v | 1u) << 8u) ^ (firstLeadingBit(v | 1u) << 16u);
}
