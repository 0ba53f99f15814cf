@group(0) @binding(0) var<storage, read_write> y: array<u32>;
@group(0) @binding(1) var<storage, read> x: array<u32>;
fn step_(v: u32) -> u32 { return (v << 3u) ^ (v >> 5u); }
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) { y[id.x] = step_(x[id.x]); }
@compute @workgroup_size(32)
fn other(@builtin(global_invocation_id) id: vec3<u32>) { y[id.x] = step_(step_(x[id.x + 1u])) + 1u; }
