//! Attention.

use impasto_kernel::prelude::*;

use super::{Case, Rng, floats, halves, no_floats, of};

#[kernel_fn]
fn dot4(a: Vec4<f32>, b: Vec4<f32>) -> f32 {
    let p = a * b;
    p.x + p.y + p.z + p.w
}

/// One query against all keys: an invocation for each query, the softmax as it runs, sixteen channels in registers.
#[kernel(workgroup = 8)]
fn attention_row(
    #[comptime] keys: u32,
    #[comptime] causal: bool,
    q: &[Vec4<f32>],
    k: &[Vec4<f32>],
    v: &[Vec4<f32>],
    y: &mut [Vec4<f32>],
) {
    let row = global_id(0);
    let scale = 0.25;
    let zero = splat4(0.0);
    let mut query = [zero; 4];
    let mut sum = [zero; 4];
    #[comptime]
    for c in 0..4u32 {
        query[c] = q[row * 4 + c];
    }
    let (mut most, mut total) = (-1e30, 0.0);
    for key in 0..keys {
        if causal {
            if key > row {
                break;
            }
        }
        let mut score = 0.0;
        #[comptime]
        for c in 0..4u32 {
            score += dot4(query[c], k[key * 4 + c]);
        }
        score *= scale;
        let larger = most.max(score);
        let (old, new) = ((most - larger).exp(), (score - larger).exp());
        most = larger;
        total = total * old + new;
        #[comptime]
        for c in 0..4u32 {
            sum[c] = sum[c] * splat4(old) + v[key * 4 + c] * splat4(new);
        }
    }
    #[comptime]
    for c in 0..4u32 {
        y[row * 4 + c] = sum[c] * splat4(1.0 / total);
    }
}

/// The weights of one query for each workgroup, over keys in f16.
#[kernel(workgroup = 32)]
fn attention_weights(#[comptime] width: u32, q: &[f32], k: &[f16], y: &mut [f32]) {
    let mut scores = shared::<f32>(32);
    let (row, key) = (workgroup_id(0), local_id(0));
    let mut score = 0.0;
    for c in 0..width {
        score += q[row * width + c] * k[key * width + c] as f32;
    }
    scores[key] = score;
    barrier();
    let (mut most, mut total) = (scores[0], 0.0);
    for i in 1..32 {
        most = most.max(scores[i]);
    }
    for i in 0..32 {
        total += (scores[i] - most).exp();
    }
    y[row * 32 + key] = (score - most).exp() / total;
}

pub(super) fn cases(rng: &mut Rng) -> Vec<Case> {
    let (q, k, v) = (floats(rng, 256), floats(rng, 256), floats(rng, 256));
    let weights = |row: usize, keys: usize, scale: f64| -> Vec<f64> {
        let score = |key: usize| (0..16).map(|c| f64::from(q[row * 16 + c] * k[key * 16 + c])).sum::<f64>() * scale;
        let e: Vec<f64> = (0..keys).map(|key| score(key).exp()).collect();
        let total: f64 = e.iter().sum();
        e.into_iter().map(|e| e / total).collect()
    };
    let rows = |causal: bool| -> Vec<f64> {
        let row = |r: usize| {
            let w = weights(r, if causal { r + 1 } else { 16 }, 0.25);
            let channel = |c: usize| w.iter().enumerate().map(|(key, w)| w * f64::from(v[key * 16 + c])).sum::<f64>();
            (0..16).map(channel).collect::<Vec<f64>>()
        };
        (0..16).flat_map(row).collect()
    };
    let row = |causal| {
        let buffers = vec![of(&q), of(&k), of(&v), no_floats(256)];
        Case::new(attention_row(16, causal), [2, 1, 1], buffers, rows(causal)).within(1e-3)
    };
    let (few, keys) = (floats(rng, 32), floats(rng, 256));
    let want = (0..4).flat_map(|r| {
        let score = |key: usize| (0..8).map(|c| f64::from(few[r * 8 + c] * keys[key * 8 + c])).sum::<f64>();
        let e: Vec<f64> = (0..32).map(|key| score(key).exp()).collect();
        let total: f64 = e.iter().sum();
        e.into_iter().map(move |e| e / total)
    });
    let buffers = vec![of(&few), halves(&keys), no_floats(128)];
    let weights = Case::new(attention_weights(8), [4, 1, 1], buffers, want).within(1e-3);
    vec![row(false), row(true), weights]
}
