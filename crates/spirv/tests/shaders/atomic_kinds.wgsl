struct All { add: atomic<u32>, low: atomic<i32>, high: atomic<i32>, both: atomic<u32>, either: atomic<u32>, odd: atomic<u32> }
@group(0) @binding(0) var<storage, read_write> all_: All;
@group(0) @binding(1) var<storage, read> x: array<u32>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let v = x[id.x];
    atomicAdd(&all_.add, v);
    atomicMin(&all_.low, i32(v));
    atomicMax(&all_.high, i32(v));
    atomicAnd(&all_.both, v | 0xff00ffu);
    atomicOr(&all_.either, v & 0xff00ffu);
    atomicXor(&all_.odd, v);
}
