@group(0) @binding(0) var<storage, read_write> y: array<u32>;
@group(0) @binding(1) var<storage, read> x: array<u32>;
fn wide(a: u32, b: u32) -> vec2<u32> {
    let al = a & 0xffffu; let ah = a >> 16u; let bl = b & 0xffffu; let bh = b >> 16u;
    let ll = al * bl; let lh = al * bh; let hl = ah * bl;
    let middle = (ll >> 16u) + (lh & 0xffffu) + (hl & 0xffffu);
    return vec2((middle << 16u) | (ll & 0xffffu), ah * bh + (lh >> 16u) + (hl >> 16u) + (middle >> 16u));
}
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    var p = vec2(1u, 0u);
    for (var k = 0u; k < 4u; k++) { p = wide(p.x, x[id.x + k]) + vec2(0u, p.y); }
    y[2u * id.x] = p.x;
    y[2u * id.x + 1u] = p.y;
}
