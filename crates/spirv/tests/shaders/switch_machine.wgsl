@group(0) @binding(0) var<storage, read_write> y: array<i32>;
@group(0) @binding(1) var<storage, read> program: array<u32>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    var a = i32(id.x);
    var b = 1;
    for (var pc = 0u; pc < 24u; pc++) {
        switch (program[id.x + pc] & 7u) {
            case 0u: { a += b; }
            case 1u: { a -= b; }
            case 2u: { let t = a; a = b; b = t; }
            case 3u: { b = b * 3 + 1; }
            case 4u: { if (a > 100) { continue; } a ^= b; }
            case 5u: { if (b > 5000) { pc = 100u; break; } b++; }
            default: { continue; }
        }
        if (a < -1000000) { break; }
        a &= 0xfffff;
    }
    y[id.x] = a + b;
}
