//! Norms and softmax. The statistics of an image are kept by line of pixels and combined in the order of the lines, so that an image cut
//! into bands of lines yields the same bits.

use impasto_graph::{DType, Op, Unary};
use impasto_kernel::{BufMut, Builder, Kernel, KernelError};

use super::{F, LINE, Sink, Source, U, element, piece, unary};
use crate::shapes::Image;

/// Invocations that go through a row together.
const TEAM: u32 = 128;

/// The sum, or with `max` the largest, of one number of each invocation of a workgroup, in the same order always.
fn together<'k>(k: &'k Builder, room: BufMut<'k, f32>, own: F<'k>, max: bool) -> F<'k> {
    let t = k.local_id(0);
    room.store(t, own);
    k.barrier();
    let mut half = TEAM / 2;
    while half > 0 {
        k.if_(t.lt(half), || {
            let (a, b) = (room.load(t), room.load(t + half));
            room.store(t, if max { a.max(b) } else { a + b });
        });
        k.barrier();
        half /= 2;
    }
    let all = room.load(0);
    // The room may be used again at once.
    k.barrier();
    all
}

/// What each invocation of a workgroup sums up or compares over its share of `n` places.
fn over<'k>(k: &'k Builder, n: u32, first: f32, step: impl Fn(F<'k>, U<'k>) -> F<'k>) -> F<'k> {
    let total = k.var(first);
    let t = k.local_id(0);
    k.for_step(t, n, TEAM, |_, i| total.set(step(total.get(), i)));
    total.get()
}

/// Mean and squared distance from it, of each group of channels of each line of pixels. Buffers: image, statistics (2 for each line and group).
pub(in super::super) fn line_statistics(image: &Image, from: DType) -> Result<Kernel, KernelError> {
    fn write<'k>(k: &'k Builder, image: &Image, from: DType) {
        let [pixels, channels, groups] = [image.pixels, image.channels, image.groups].map(|n| n as u32);
        let width = channels / groups;
        let lines = (image.batch * image.lines) as u32;
        let (x, out) = (Source::new(k, "x", from), k.buffer_mut::<f32>("out"));
        let room = k.shared::<f32>("room", TEAM);
        let number = piece(k);
        k.if_(number.ge(lines * groups), || k.return_());
        let start = number / groups * (pixels * channels) + number % groups * width;
        let value = |i: U<'k>| -> F<'k> { x.at(start + i / width * channels + i % width) };
        let n = pixels * width;
        let mean = together(k, room, over(k, n, 0.0, |sum, i| sum + value(i)), false) / n as f32;
        let distance = |i| {
            let d = value(i) - mean;
            d * d
        };
        let squares = together(k, room, over(k, n, 0.0, |sum, i| sum + distance(i)), false);
        k.if_(k.local_id(0).eq(0), || {
            out.store(number * 2u32, mean);
            out.store(number * 2u32 + 1u32, squares);
        });
    }
    Builder::kernel("line_statistics", [TEAM, 1, 1], |k| write(k, image, from))
}

/// Mean and one over the deviation, of each group of each picture: its lines combined from top to bottom. The same kernel for an image and for
/// its bands: what a driver makes of a division differs between kernels in the last bit. Buffers: statistics of lines, statistics of
/// pictures (2 for each group).
pub(in super::super) fn combine(image: &Image, eps: f32) -> Result<Kernel, KernelError> {
    fn write<'k>(k: &'k Builder, image: &Image, eps: f32) {
        let [lines, groups] = [image.lines, image.groups].map(|n| n as u32);
        let each = (image.pixels * image.channels / image.groups) as f32;
        let (stats, out) = (k.buffer::<f32>("x"), k.buffer_mut::<f32>("out"));
        let number = element(k, image.batch as u32 * groups);
        let (picture, group) = (number / groups, number % groups);
        let at = |line: U<'k>| -> U<'k> { ((picture * lines + line) * groups + group) * 2u32 };
        let (mean, squares) = (k.var(stats.load(at(k.lit(0u32)))), k.var(stats.load(at(k.lit(0u32)) + 1u32)));
        k.for_(1u32, lines, |_, line| {
            // All lines have the same number of elements: with `line` of them behind us, this is one of `line + 1`.
            let share = k.lit(1f32) / (line.to::<f32>() + 1f32);
            let d = stats.load(at(line)) - mean.get();
            mean.set(mean.get() + d * share);
            let between = d * d * (line.to::<f32>() * share) * each;
            squares.set(squares.get() + stats.load(at(line) + 1u32) + between);
        });
        let variance = squares.get() / (lines as f32 * each);
        out.store(number * 2u32, mean.get());
        out.store(number * 2u32 + 1u32, (variance + eps).inverse_sqrt());
    }
    Builder::kernel("combine", [LINE, 1, 1], |k| write(k, image, eps))
}

/// Mean, scale and shift of each channel of each picture. Buffers: statistics of pictures, gamma, beta, factors.
pub(in super::super) fn factors(image: &Image, [gamma, beta]: [DType; 2]) -> Result<Kernel, KernelError> {
    let [channels, groups] = [image.channels, image.groups].map(|n| n as u32);
    Builder::kernel("norm_factors", [LINE, 1, 1], |k| {
        let (stats, gamma) = (k.buffer::<f32>("stats"), Source::new(k, "gamma", gamma));
        let (beta, out) = (Source::new(k, "beta", beta), k.buffer_mut::<f32>("out"));
        let number = element(k, image.batch as u32 * channels);
        let (picture, channel) = (number / channels, number % channels);
        let group = (picture * groups + channel / (channels / groups)) * 2u32;
        let at = picture * (3 * channels) + channel;
        out.store(at, stats.load(group));
        out.store(at + channels, stats.load(group + 1u32) * gamma.at(channel));
        out.store(at + 2 * channels, beta.at(channel));
    })
}

/// Each pixel by the factors of its channel. Buffers: image, factors, result.
pub(in super::super) fn normalise(
    image: &Image,
    activation: Option<Unary>,
    from: DType,
    to: DType,
) -> Result<Kernel, KernelError> {
    let channels = image.channels as u32;
    let picture = (image.lines * image.pixels) as u32 * channels;
    Builder::kernel("normalise", [LINE, 1, 1], |k| {
        let (x, factors) = (Source::new(k, "x", from), k.buffer::<f32>("factors"));
        let out = Sink::new(k, "out", to);
        let i = element(k, image.batch as u32 * picture);
        let at = i / picture * (3 * channels) + i % channels;
        let y = (x.at(i) - factors.load(at)) * factors.load(at + channels) + factors.load(at + 2 * channels);
        out.set(i, activation.map_or(y, |f| unary(k, f, y)));
    })
}

/// The image with mean 0 and deviation 1 in each group, scaled and shifted by channel. Buffers: image, gamma, beta, statistics of pictures,
/// result.
pub(in super::super) fn apply(
    image: &Image,
    activation: Option<Unary>,
    [from, gamma, beta, to]: [DType; 4],
) -> Result<Kernel, KernelError> {
    let [channels, groups] = [image.channels, image.groups].map(|n| n as u32);
    let picture = (image.lines * image.pixels) as u32 * channels;
    Builder::kernel("group_norm", [LINE, 1, 1], |k| {
        let (x, gamma) = (Source::new(k, "x", from), Source::new(k, "gamma", gamma));
        let (beta, stats) = (Source::new(k, "beta", beta), k.buffer::<f32>("stats"));
        let out = Sink::new(k, "out", to);
        let i = element(k, image.batch as u32 * picture);
        let channel = i % channels;
        let group = (i / picture * groups + channel / (channels / groups)) * 2u32;
        let y = (x.at(i) - stats.load(group)) * (stats.load(group + 1u32) * gamma.at(channel)) + beta.at(channel);
        out.set(i, activation.map_or(y, |f| unary(k, f, y)));
    })
}

/// Layer norm, RMS norm and softmax: a workgroup for each row. Buffers: operand, gamma and beta where the op has them, result.
pub(in super::super) fn by_row(op: &Op, size: [u32; 2], types: &[DType], to: DType) -> Result<Kernel, KernelError> {
    fn write<'k>(k: &'k Builder, op: &Op, [rows, width]: [u32; 2], types: &[DType], to: DType) {
        let names = ["x", "gamma", "beta"];
        let sources: Vec<Source> = names.iter().zip(types).map(|(name, &dtype)| Source::new(k, name, dtype)).collect();
        let out = Sink::new(k, "out", to);
        let room = k.shared::<f32>("room", TEAM);
        let row = piece(k);
        k.if_(row.ge(rows), || k.return_());
        let value = |i: U<'k>| -> F<'k> { sources[0].at(row * width + i) };
        let n = width as f32;
        let sum = |step: &dyn Fn(U<'k>) -> F<'k>| together(k, room, over(k, width, 0.0, |sum, i| sum + step(i)), false);
        let each = |result: &dyn Fn(U<'k>) -> F<'k>| {
            k.for_step(k.local_id(0), width, TEAM, |_, i| out.set(row * width + i, result(i)));
        };
        match op {
            Op::LayerNorm { eps } => {
                let mean = sum(&|i| value(i)) / n;
                let squares = sum(&|i| {
                    let d = value(i) - mean;
                    d * d
                });
                let scale = (squares / n + *eps).inverse_sqrt();
                each(&|i| (value(i) - mean) * scale * sources[1].at(i) + sources[2].at(i));
            }
            Op::RmsNorm { eps } => {
                let squares = sum(&|i| value(i) * value(i));
                let scale = (squares / n + *eps).inverse_sqrt();
                each(&|i| value(i) * scale * sources[1].at(i));
            }
            _ => {
                let most = together(k, room, over(k, width, f32::MIN, |most, i| most.max(value(i))), true);
                let total = sum(&|i| (value(i) - most).exp());
                each(&|i| (value(i) - most).exp() / total);
            }
        }
    }
    Builder::kernel("row_norm", [TEAM, 1, 1], |k| write(k, op, size, types, to))
}
