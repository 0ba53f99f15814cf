@group(0) @binding(0) var<storage, read_write> y: array<u32>;
@group(0) @binding(1) var<storage, read> x: array<u32>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let v = x[id.x] & 0xffffu;
    let sum = subgroupAdd(v);
    let most = subgroupMax(v);
    let odd = subgroupBallot((v & 1u) == 1u);
    y[id.x] = sum + most * 3u + countOneBits(odd.x) + subgroupShuffleXor(v, 1u);
}
