@group(0) @binding(0) var<storage, read_write> y: array<u32>;
@group(0) @binding(1) var<storage, read> x: array<u32>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    var count = 0u;
    var sum = 0u;
    for (var a = 0u; a < 6u; a++) {
        if ((x[id.x + a] & 3u) == 0u) { continue; }
        for (var b = 0u; b < a; b++) {
            let v = x[id.x + a * 6u + b];
            if ((v & 7u) == 7u) { break; }
            if ((v & 1u) == 1u) { continue; }
            var c = v & 15u;
            while (c > 2u) {
                c = (c * 3u) >> 2u;
                if (c == 5u) { break; }
                sum += c;
            }
            count++;
        }
        sum ^= count;
    }
    y[id.x] = sum * 1000u + count;
}
