@group(0) @binding(0) var<storage, read_write> y: array<u32>;
@group(0) @binding(1) var<storage, read> x: array<u32>;
var<private> stack: array<u32, 16>;
var<private> top: i32 = 0;
fn push(v: u32) { if (top < 16) { stack[top] = v; top++; } }
fn pop() -> u32 { if (top > 0) { top--; return stack[top]; } return 0u; }
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    for (var k = 0u; k < 12u; k++) {
        let v = x[id.x + k];
        if ((v & 3u) == 0u) { let a = pop(); let b = pop(); push(a * 3u + b); } else { push(v & 0xffu); }
    }
    var r = u32(top);
    while (top > 0) { r = r * 7u + pop(); }
    y[id.x] = r;
}
