//! A kernel on a buffer of structs, and its contents.

use impasto_kernel::BufferData;
use impasto_kernel::prelude::*;

#[derive(Clone, Copy, KernelStruct)]
pub struct Pose {
    at: Vec3<f32>,
    kind: u32,
    turn: [f32; 2],
}

/// What happens to one pose; both kernels call it.
#[kernel_fn]
pub fn moved(at: Vec3<f32>, kind: u32, a: f32, b: f32) -> (f32, f32, f32, f32, f32) {
    let mut x = at.x * a;
    for i in 0..kind {
        x = (x + at.y * b).sin() + i as f32 * at.z;
    }
    (x, at.y * at.y, at.z + a * b, a * x, b / (1.0 + x * x))
}

#[kernel(workgroup = 4)]
pub fn whole(x: &[Pose], y: &mut [Pose]) {
    let i = global_id(0);
    let p = x[(i + 1) % 4];
    let q = x[i];
    let (a, b, c, d, e) = moved(p.at, q.kind, q.turn[0], p.turn[1]);
    y[i] = Pose { at: vec3(a, b, c), kind: q.kind + 1, turn: [d, e] };
}

/// Poses as words: at, kind, turn, and what fills them up.
pub fn words(at: &[f32], kind: &[u32], turn: &[f32]) -> BufferData {
    let mut all = Vec::new();
    for i in 0..4 {
        all.extend(at[4 * i..4 * i + 3].iter().map(|x| x.to_bits()));
        all.push(kind[i]);
        all.extend(turn[2 * i..2 * i + 2].iter().map(|x| x.to_bits()));
        all.extend([0, 0]);
    }
    BufferData::from(&all[..])
}
