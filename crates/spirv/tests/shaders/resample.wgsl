@group(0) @binding(0) var<storage, read_write> y: array<f32>;
@group(0) @binding(1) var<storage, read> x: array<f32>;
fn texel(q: vec2<i32>) -> f32 { let p = clamp(q, vec2(0), vec2(15)); return x[p.y * 16 + p.x]; }
@compute @workgroup_size(8, 8)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let p = vec2<i32>(id.xy) & vec2(31);
    let s = (vec2<f32>(p) + 0.5) * 0.5 - 0.5;
    let o = vec2<i32>(floor(s));
    let f = s - vec2<f32>(o);
    let top = mix(texel(o), texel(o + vec2(1, 0)), f.x);
    let bottom = mix(texel(o + vec2(0, 1)), texel(o + vec2(1, 1)), f.x);
    y[p.y * 32 + p.x] = mix(top, bottom, f.y);
}
