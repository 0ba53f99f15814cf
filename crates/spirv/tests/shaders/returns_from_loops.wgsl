@group(0) @binding(0) var<storage, read_write> y: array<i32>;
@group(0) @binding(1) var<storage, read> x: array<u32>;
fn find(from_: u32, what: u32) -> i32 {
    for (var row = 0u; row < 4u; row++) {
        for (var k = 0u; k < 4u; k++) {
            let v = x[from_ + row * 4u + k] & 15u;
            if (v == what) { return i32(row * 4u + k); }
            if (v == 15u) { break; }
        }
        if ((x[from_ + row] & 64u) != 0u) { return -2; }
    }
    return -1;
}
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    y[id.x] = find(id.x, id.x % 15u) * 100 + find(id.x + 7u, 3u);
}
