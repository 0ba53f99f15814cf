//! Softmax and normalisation.

use impasto_kernel::prelude::*;

use super::{Case, Rng, floats, no_floats, of, wide};

#[derive(Clone, Copy)]
enum Join {
    Sum,
    Max,
}

/// The sum or the largest over a workgroup of 32, for all of it.
#[kernel_fn]
fn join(#[comptime] how: Join, v: f32, parts: &mut [f32]) -> f32 {
    let l = local_index();
    parts[l] = v;
    barrier();
    #[comptime]
    for step in [16u32, 8, 4, 2, 1] {
        if l < step {
            #[comptime]
            match how {
                Join::Sum => parts[l] += parts[l + step],
                Join::Max => parts[l] = parts[l].max(parts[l + step]),
            }
        }
        barrier();
    }
    let all = parts[0];
    // Before somebody writes again, everybody has read.
    barrier();
    all
}

/// A workgroup for each row.
#[kernel(workgroup = 32)]
fn softmax_rows(#[comptime] width: u32, x: &[f32], y: &mut [f32]) {
    let mut parts = shared::<f32>(32);
    let (row, l) = (workgroup_id(0) * width, local_id(0));
    let mut most = x[row + l];
    for i in (l + 32..width).step_by(32) {
        most = most.max(x[row + i]);
    }
    let most = join(Join::Max, most, &mut parts);
    let mut sum = 0.0;
    for i in (l..width).step_by(32) {
        let e = (x[row + i] - most).exp();
        y[row + i] = e;
        sum += e;
    }
    let scale = 1.0 / join(Join::Sum, sum, &mut parts);
    for i in (l..width).step_by(32) {
        y[row + i] *= scale;
    }
}

/// An invocation for each row, and one pass for both the largest and the sum: whenever the largest changes, the sum is scaled.
#[kernel(workgroup = 8)]
fn softmax_running(#[comptime] width: u32, x: &[f32], y: &mut [f32]) {
    let row = global_id(0) * width;
    let (mut most, mut sum) = (x[row], 1.0);
    for i in 1..width {
        let v = x[row + i];
        if v > most {
            sum *= (most - v).exp();
            most = v;
        }
        sum += (v - most).exp();
    }
    for i in 0..width {
        y[row + i] = (x[row + i] - most).exp() / sum;
    }
}

#[kernel(workgroup = 32)]
fn layer_norm(#[comptime] width: u32, epsilon: f32, x: &[f32], weight: &[f32], bias: &[f32], y: &mut [f32]) {
    let mut parts = shared::<f32>(32);
    let (row, l) = (workgroup_id(0) * width, local_id(0));
    let mut sum = 0.0;
    for i in (l..width).step_by(32) {
        sum += x[row + i];
    }
    let mean = join(Join::Sum, sum, &mut parts) / width as f32;
    let mut squares = 0.0;
    for i in (l..width).step_by(32) {
        let d = x[row + i] - mean;
        squares += d * d;
    }
    let scale = (join(Join::Sum, squares, &mut parts) / width as f32 + epsilon).inverse_sqrt();
    for i in (l..width).step_by(32) {
        y[row + i] = (x[row + i] - mean) * scale * weight[i] + bias[i];
    }
}

#[kernel(workgroup = 32)]
fn rms_norm(#[comptime] width: u32, x: &[Vec4<f32>], weight: &[Vec4<f32>], y: &mut [Vec4<f32>]) {
    let mut parts = shared::<f32>(32);
    let (row, l) = (workgroup_id(0) * (width / 4), local_id(0));
    let mut squares = 0.0;
    for i in (l..width / 4).step_by(32) {
        let v = x[row + i] * x[row + i];
        squares += v.x + v.y + v.z + v.w;
    }
    let mean = join(Join::Sum, squares, &mut parts) / width as f32;
    let scale = splat4((mean + 1e-6).inverse_sqrt());
    for i in (l..width / 4).step_by(32) {
        y[row + i] = x[row + i] * scale * weight[i];
    }
}

/// Of (channels, pixels), a workgroup for each group of channels.
#[kernel(workgroup = 32)]
fn group_norm(
    #[comptime] group: u32,
    #[comptime] silu: bool,
    pixels: u32,
    x: &[f32],
    weight: &[f32],
    bias: &[f32],
    y: &mut [f32],
) {
    let mut parts = shared::<f32>(32);
    let (first, l) = (workgroup_id(0) * group, local_id(0));
    let n = pixels * group;
    let (mut sum, mut squares) = (0.0, 0.0);
    for i in (l..n).step_by(32) {
        let v = x[first * pixels + i];
        sum += v;
        squares += v * v;
    }
    let mean = join(Join::Sum, sum, &mut parts) / n as f32;
    let variance = join(Join::Sum, squares, &mut parts) / n as f32 - mean * mean;
    let scale = (variance.max(0.0) + 1e-5).inverse_sqrt();
    for i in (l..n).step_by(32) {
        let channel = first + i / pixels;
        let mut v = (x[first * pixels + i] - mean) * scale * weight[channel] + bias[channel];
        if silu {
            v /= 1.0 + (-v).exp();
        }
        y[first * pixels + i] = v;
    }
}

fn softmax(row: &[f32]) -> Vec<f64> {
    let e: Vec<f64> = wide(row).into_iter().map(f64::exp).collect();
    let sum: f64 = e.iter().sum();
    e.into_iter().map(|e| e / sum).collect()
}

/// Mean, and one over the deviation.
fn moments(row: &[f32], epsilon: f64) -> (f64, f64) {
    let n = row.len() as f64;
    let mean = wide(row).iter().sum::<f64>() / n;
    let variance = wide(row).iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n;
    (mean, 1.0 / (variance + epsilon).sqrt())
}

pub(super) fn cases(rng: &mut Rng) -> Vec<Case> {
    let (x, weight, bias) = (floats(rng, 800), floats(rng, 100), floats(rng, 100));
    let each = |width: usize, f: &dyn Fn(&[f32]) -> Vec<f64>| x.chunks(width).flat_map(f).collect::<Vec<f64>>();
    let rows = Case::new(softmax_rows(100), [8, 1, 1], vec![of(&x), no_floats(800)], each(100, &softmax)).within(1e-4);
    let running =
        Case::new(softmax_running(50), [2, 1, 1], vec![of(&x), no_floats(800)], each(50, &softmax)).within(1e-4);

    let want = each(100, &|row| {
        let (mean, scale) = moments(row, 1e-5);
        let number = |(i, x): (usize, f64)| (x - mean) * scale * f64::from(weight[i]) + f64::from(bias[i]);
        wide(row).into_iter().enumerate().map(number).collect()
    });
    let buffers = vec![of(&x), of(&weight), of(&bias), no_floats(800)];
    let layer = Case::new(layer_norm(100), [8, 1, 1], buffers.clone(), want).scalars(&[1e-5f32.to_bits()]).within(1e-3);

    let want = each(100, &|row| {
        let mean = wide(row).iter().map(|x| x * x).sum::<f64>() / 100.0;
        let scale = 1.0 / (mean + 1e-6).sqrt();
        wide(row).iter().zip(wide(&weight)).map(|(x, w)| x * scale * w).collect()
    });
    let rms = Case::new(rms_norm(100), [8, 1, 1], vec![of(&x), of(&weight), no_floats(800)], want).within(1e-4);

    // Eight channels of 100 pixels, in groups of four.
    let normal = |silu: bool| {
        let of_group = |(g, group): (usize, &[f32])| {
            let (mean, scale) = moments(group, 1e-5);
            let number = |(i, x): (usize, f64)| {
                let c = g * 4 + i / 100;
                let v = (x - mean) * scale * f64::from(weight[c]) + f64::from(bias[c]);
                if silu { v / (1.0 + (-v).exp()) } else { v }
            };
            wide(group).into_iter().enumerate().map(number).collect::<Vec<_>>()
        };
        x.chunks(400).enumerate().flat_map(of_group).collect::<Vec<f64>>()
    };
    let group =
        |silu| Case::new(group_norm(4, silu), [2, 1, 1], buffers.clone(), normal(silu)).scalars(&[100]).within(1e-3);
    vec![rows, running, layer, rms, group(false), group(true)]
}
