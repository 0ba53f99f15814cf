//! Norms and softmax. The statistics of an image are kept by line of pixels and combined in the order of the lines, so that an image cut
//! into bands of lines yields the same bits.

use impasto_graph::{DType, Op, Unary};
use impasto_kernel::Builder;
use impasto_kernel::prelude::*;

use super::{F, LINE, element, piece, scalar, unary};
use crate::shapes::Image;

/// Invocations that go through a row together.
const TEAM: u32 = 128;

/// How the numbers of a workgroup become one.
#[derive(Clone, Copy)]
enum Reduction {
    Sum,
    Max,
}

/// The sum or the largest of one number of each invocation of a workgroup, in the same order always.
#[kernel_fn]
fn reduce(#[comptime] how: Reduction, own: f32, scratch: &mut [f32]) -> f32 {
    let t = local_id(0);
    scratch[t] = own;
    barrier();
    #[comptime]
    let mut half = TEAM / 2;
    #[comptime]
    while half > 0 {
        if t < half {
            let (a, b) = (scratch[t], scratch[t + half]);
            #[comptime]
            match how {
                Reduction::Sum => scratch[t] = a + b,
                Reduction::Max => scratch[t] = a.max(b),
            }
        }
        barrier();
        half /= 2;
    }
    let all = scratch[0];
    // The memory may be used again at once.
    barrier();
    all
}

/// An activation, if there is one.
fn activated<'k>(k: &'k Builder, activation: Option<Unary>, y: F<'k>) -> F<'k> {
    activation.map_or(y, |f| unary(k, f, y))
}

/// Mean and squared distance from it, of each group of channels of each line of pixels: 2 numbers for each line and group.
#[kernel(workgroup = TEAM)]
pub(crate) fn line_statistics(
    #[comptime] image: &Image,
    #[comptime] from: DType,
    #[stored(scalar(from))] x: &[f32],
    out: &mut [f32],
) {
    #[comptime]
    let [lines, pixels, channels, groups] =
        [image.batch * image.lines, image.pixels, image.channels, image.groups].map(|n| n as u32);
    let width = channels / groups;
    let mut scratch = shared::<f32>(TEAM);
    let number = piece();
    if number >= lines * groups {
        return;
    }
    let start = number / groups * (pixels * channels) + number % groups * width;
    let n = pixels * width;
    let mut sum = 0.0;
    for i in (local_id(0)..n).step_by(TEAM) {
        sum += x[start + i / width * channels + i % width];
    }
    let mean = reduce(Reduction::Sum, sum, &mut scratch) / n as f32;
    let mut squares = 0.0;
    for i in (local_id(0)..n).step_by(TEAM) {
        let d = x[start + i / width * channels + i % width] - mean;
        squares += d * d;
    }
    let squares = reduce(Reduction::Sum, squares, &mut scratch);
    if local_id(0) == 0 {
        out[number * 2] = mean;
        out[number * 2 + 1] = squares;
    }
}

/// Mean and one over the deviation, of each group of each picture, from those of its lines, which have as many elements each. The same kernel for an
/// image and for its bands: what a driver makes of a division differs between kernels in the last bit. Buffers: statistics of lines,
/// statistics of pictures (2 for each group).
#[kernel(workgroup = TEAM)]
pub(crate) fn combine(#[comptime] image: &Image, #[comptime] eps: f32, x: &[f32], out: &mut [f32]) {
    #[comptime]
    let [batch, lines, groups] = [image.batch, image.lines, image.groups].map(|n| n as u32);
    let each = comptime!((image.pixels * image.channels / image.groups) as f32);
    let mut scratch = shared::<f32>(TEAM);
    let number = piece();
    if number >= batch * groups {
        return;
    }
    let first = (number / groups * lines * groups + number % groups) * 2;
    let mut sum = 0.0;
    for line in (local_id(0)..lines).step_by(TEAM) {
        sum += x[first + line * groups * 2];
    }
    let mean = reduce(Reduction::Sum, sum, &mut scratch) / comptime!(lines as f32);
    let mut squares = 0.0;
    for line in (local_id(0)..lines).step_by(TEAM) {
        let d = x[first + line * groups * 2] - mean;
        squares += x[first + line * groups * 2 + 1] + d * d * each;
    }
    let variance = reduce(Reduction::Sum, squares, &mut scratch) / comptime!(lines as f32 * each);
    if local_id(0) == 0 {
        out[number * 2] = mean;
        out[number * 2 + 1] = (variance + eps).inverse_sqrt();
    }
}

/// Mean, scale and shift of each channel of each picture. Buffers: statistics of pictures, gamma, beta, factors.
#[kernel(workgroup = LINE)]
pub(crate) fn norm_factors(
    #[comptime] image: &Image,
    #[comptime] types: [DType; 2],
    stats: &[f32],
    #[stored(scalar(types[0]))] gamma: &[f32],
    #[stored(scalar(types[1]))] beta: &[f32],
    out: &mut [f32],
) {
    #[comptime]
    let [batch, channels, groups] = [image.batch, image.channels, image.groups].map(|n| n as u32);
    let number = element(batch * channels);
    let (picture, channel) = (number / channels, number % channels);
    let group = (picture * groups + channel / (channels / groups)) * 2;
    let at = picture * (3 * channels) + channel;
    out[at] = stats[group];
    out[at + channels] = stats[group + 1] * gamma[channel];
    out[at + 2 * channels] = beta[channel];
}

/// Each pixel by the factors of its channel.
#[kernel(workgroup = LINE)]
pub(crate) fn normalise(
    #[comptime] image: &Image,
    #[comptime] activation: Option<Unary>,
    #[comptime] from: DType,
    #[comptime] to: DType,
    #[stored(scalar(from))] x: &[f32],
    factors: &[f32],
    #[stored(scalar(to))] out: &mut [f32],
) {
    #[comptime]
    let [batch, pixels, channels] = [image.batch, image.lines * image.pixels, image.channels].map(|n| n as u32);
    let picture = pixels * channels;
    let i = element(batch * picture);
    let at = i / picture * (3 * channels) + i % channels;
    let y = (x[i] - factors[at]) * factors[at + channels] + factors[at + 2 * channels];
    out[i] = activated(activation, y);
}

/// The image with mean 0 and deviation 1 in each group, scaled and shifted by channel. `types`: of the image, gamma, beta and the result.
#[kernel(workgroup = LINE)]
pub(crate) fn group_norm(
    #[comptime] image: &Image,
    #[comptime] activation: Option<Unary>,
    #[comptime] types: [DType; 4],
    #[stored(scalar(types[0]))] x: &[f32],
    #[stored(scalar(types[1]))] gamma: &[f32],
    #[stored(scalar(types[2]))] beta: &[f32],
    stats: &[f32],
    #[stored(scalar(types[3]))] out: &mut [f32],
) {
    #[comptime]
    let [batch, pixels, channels, groups] =
        [image.batch, image.lines * image.pixels, image.channels, image.groups].map(|n| n as u32);
    let picture = pixels * channels;
    let i = element(batch * picture);
    let channel = i % channels;
    let group = (i / picture * groups + channel / (channels / groups)) * 2;
    let y = (x[i] - stats[group]) * (stats[group + 1] * gamma[channel]) + beta[channel];
    out[i] = activated(activation, y);
}

/// Layer norm, RMS norm and softmax: a workgroup for each row. Buffers: operand, gamma and beta where the op has them, result.
/// `size` is rows, their width, and how many rows have the same gamma and beta.
pub(crate) fn by_row(op: &Op, size: [u32; 3], types: &[DType], to: DType) -> Result<Kernel, KernelError> {
    match *op {
        Op::LayerNorm { eps } => layer_norm(size, eps, [types[0], types[1], types[2], to]),
        Op::RmsNorm { eps } => rms_norm(size, eps, [types[0], types[1], to]),
        _ => softmax([size[0], size[1]], [types[0], to]),
    }
}

#[kernel(workgroup = TEAM)]
fn layer_norm(
    #[comptime] size: [u32; 3],
    #[comptime] eps: f32,
    #[comptime] types: [DType; 4],
    #[stored(scalar(types[0]))] x: &[f32],
    #[stored(scalar(types[1]))] gamma: &[f32],
    #[stored(scalar(types[2]))] beta: &[f32],
    #[stored(scalar(types[3]))] out: &mut [f32],
) {
    #[comptime]
    let [rows, width, together] = size;
    let mut scratch = shared::<f32>(TEAM);
    let row = piece();
    if row >= rows {
        return;
    }
    let (start, t, n) = (row * width, local_id(0), width as f32);
    let factors = row / together * width;
    let mut sum = 0.0;
    for i in (t..width).step_by(TEAM) {
        sum += x[start + i];
    }
    let mean = reduce(Reduction::Sum, sum, &mut scratch) / n;
    let mut squares = 0.0;
    for i in (t..width).step_by(TEAM) {
        let d = x[start + i] - mean;
        squares += d * d;
    }
    let scale = (reduce(Reduction::Sum, squares, &mut scratch) / n + eps).inverse_sqrt();
    for i in (t..width).step_by(TEAM) {
        out[start + i] = (x[start + i] - mean) * scale * gamma[factors + i] + beta[factors + i];
    }
}

#[kernel(workgroup = TEAM)]
fn rms_norm(
    #[comptime] size: [u32; 3],
    #[comptime] eps: f32,
    #[comptime] types: [DType; 3],
    #[stored(scalar(types[0]))] x: &[f32],
    #[stored(scalar(types[1]))] gamma: &[f32],
    #[stored(scalar(types[2]))] out: &mut [f32],
) {
    #[comptime]
    let [rows, width, together] = size;
    let mut scratch = shared::<f32>(TEAM);
    let row = piece();
    if row >= rows {
        return;
    }
    let (start, t) = (row * width, local_id(0));
    let factors = row / together * width;
    let mut squares = 0.0;
    for i in (t..width).step_by(TEAM) {
        squares += x[start + i] * x[start + i];
    }
    let scale = (reduce(Reduction::Sum, squares, &mut scratch) / width as f32 + eps).inverse_sqrt();
    for i in (t..width).step_by(TEAM) {
        out[start + i] = x[start + i] * scale * gamma[factors + i];
    }
}

#[kernel(workgroup = TEAM)]
fn softmax(
    #[comptime] size: [u32; 2],
    #[comptime] types: [DType; 2],
    #[stored(scalar(types[0]))] x: &[f32],
    #[stored(scalar(types[1]))] out: &mut [f32],
) {
    #[comptime]
    let [rows, width] = size;
    let mut scratch = shared::<f32>(TEAM);
    let row = piece();
    if row >= rows {
        return;
    }
    let (start, t) = (row * width, local_id(0));
    let mut most = f32::MIN;
    for i in (t..width).step_by(TEAM) {
        most = most.max(x[start + i]);
    }
    let most = reduce(Reduction::Max, most, &mut scratch);
    let mut total = 0.0;
    for i in (t..width).step_by(TEAM) {
        total += (x[start + i] - most).exp();
    }
    let total = reduce(Reduction::Sum, total, &mut scratch);
    for i in (t..width).step_by(TEAM) {
        out[start + i] = (x[start + i] - most).exp() / total;
    }
}
