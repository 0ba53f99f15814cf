@group(0) @binding(0) var<storage, read_write> y: array<u32>;
@group(0) @binding(1) var<storage, read> x: array<u32>;
fn cell(cx: i32, cy: i32) -> u32 { return x[(cy & 15) * 16 + (cx & 15)] & 1u; }
@compute @workgroup_size(8, 8)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let p = vec2<i32>(id.xy) & vec2(15);
    var n = 0u;
    for (var dy = -1; dy <= 1; dy++) {
        for (var dx = -1; dx <= 1; dx++) {
            if (dx == 0 && dy == 0) { continue; }
            n += cell(p.x + dx, p.y + dy);
        }
    }
    y[p.y * 16 + p.x] = select(0u, 1u, n == 3u || (n == 2u && cell(p.x, p.y) == 1u));
}
