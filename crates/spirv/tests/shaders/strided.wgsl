@group(0) @binding(0) var<storage, read_write> y: array<u32>;
@group(0) @binding(1) var<storage, read> x: array<u32>;
@compute @workgroup_size(32)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) n: vec3<u32>) {
    for (var i = id.x; i < min(512u, arrayLength(&y)); i += n.x * 32u) {
        var v = x[i];
        v ^= v >> 7u;
        y[i] = v * 9u;
    }
}
