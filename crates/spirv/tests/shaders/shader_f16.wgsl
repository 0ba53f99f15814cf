enable f16;
@group(0) @binding(0) var<storage, read_write> y: array<f16>;
@group(0) @binding(1) var<storage, read> x: array<f16>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    y[id.x] = f16(f32(x[id.x]) * 0.5 + f32(x[id.x + 1u]) * 0.25);
}
