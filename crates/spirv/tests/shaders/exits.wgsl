@group(0) @binding(0) var<storage, read_write> y: array<i32>;
@group(0) @binding(1) var<storage, read> x: array<u32>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    var result = 0;
    for (var a = 0u; ; a++) {
        let v = x[id.x + a];
        if (a > 20u) { result = -1; break; }
        if ((v & 31u) == 0u) { result = i32(a); break; }
        if ((v & 32u) != 0u) {
            if ((v & 64u) != 0u) { result += 1; continue; }
            if ((v & 128u) != 0u) { result = 77; break; }
            result += 2;
        } else if ((v & 256u) != 0u) { continue; }
        result += i32(v & 3u);
    }
    y[id.x] = result;
}
