@group(0) @binding(0) var<storage, read_write> y: array<u32>;
@group(0) @binding(1) var<storage, read> x: array<u32>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    var a = x[id.x] % 1000u + 1u;
    var b = id.x + 1u;
    var turns = 0u;
    loop {
        let r = a % b;
        a = b;
        b = r;
        if (b == 1u) { turns += 100u; continue; }
        turns += 2u;
        continuing {
            turns++;
            break if b == 0u;
        }
    }
    y[id.x] = a * 1000u + turns;
}
