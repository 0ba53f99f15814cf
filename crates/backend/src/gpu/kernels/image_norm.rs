//! Group norm of images whose channels are whole vec4s, which those of networks are: pixels are read four channels at a time, and neighbours read
//! what lies together.

use impasto_graph::{DType, Unary};
use impasto_kernel::{Builder, Kernel, KernelError};

use super::vec4::{From4, To4};
use super::{F, LINE, U, element, groups, piece, unary};
use crate::shapes::Image;

/// Invocations of a workgroup that goes through a line.
const TEAM: u32 = 128;
/// Channels that lie together and are read together, at least: 128 bytes of f32.
const TOGETHER: u32 = 32;

/// Sizes of an image as kernels count.
struct Sizes {
    lines: u32,
    /// Pixels of a line, and of a picture.
    pixels: u32,
    picture: u32,
    channels: u32,
    groups: u32,
    /// Channels of a group.
    width: u32,
}

impl Sizes {
    fn of(image: &Image) -> Option<Sizes> {
        let [lines, pixels, channels, groups] =
            [image.batch * image.lines, image.pixels, image.channels, image.groups].map(|n| n as u32);
        let sizes =
            Sizes { lines, pixels, picture: image.lines as u32 * pixels, channels, groups, width: channels / groups };
        channels.is_multiple_of(4).then_some(sizes)
    }

    /// Groups whose channels are read together: whole vec4s.
    fn block(&self) -> u32 {
        let fits = |n: &u32| {
            let channels = n * self.width;
            self.groups.is_multiple_of(*n) && channels.is_multiple_of(4) && channels >= TOGETHER
        };
        (1..=self.groups).find(fits).unwrap_or(self.groups)
    }
}

/// Mean and squared distance from it, of each group of channels of each line of pixels, and the workgroups that compute them; none for channels
/// that are no whole vec4s.
pub(crate) fn line_statistics(image: &Image, from: DType) -> Option<(Result<Kernel, KernelError>, [u32; 3])> {
    let sizes = Sizes::of(image)?;
    let together = sizes.block();
    let (channels, blocks) = (together * sizes.width, sizes.groups / together);
    let vec4s = channels / 4;
    if vec4s > TEAM || sizes.pixels == 0 {
        return None;
    }
    let at_once = TEAM / vec4s;
    let kernel = Builder::kernel("line_statistics", [TEAM, 1, 1], |k| {
        let x = From4::new(k, "x", from, sizes.channels);
        let out = k.buffer_mut::<f32>("out");
        // Of each channel, by the rows of invocations: sums of distances from its first pixel, and of their squares. Then of each channel.
        let parts = k.shared::<f32>("parts", at_once * channels * 2);
        let of_channels = k.shared::<f32>("of_channels", channels * 2);
        let number = piece(k);
        k.if_(number.ge(sizes.lines * blocks), || k.return_());
        let (line, block) = (number / blocks, number % blocks);
        let begin = line * (sizes.pixels * sizes.channels) + block * channels;
        let t = k.local_index();
        let (vec4, row) = (t % vec4s, t / vec4s);
        let own = begin + vec4 * 4u32;
        k.if_(row.lt(at_once), || {
            let first = x.at(k, own, k.lit(4u32));
            let sums = [0; 4].map(|_| (k.var(0f32), k.var(0f32)));
            k.for_step(row, sizes.pixels, at_once, |_, pixel| {
                let four = x.at(k, own + pixel * sizes.channels, k.lit(4u32));
                for ((value, first), (sum, squares)) in four.into_iter().zip(first).zip(sums) {
                    let d = value - first;
                    sum.set(sum.get() + d);
                    squares.set(squares.get() + d * d);
                }
            });
            for (c, (sum, squares)) in (0u32..).zip(sums) {
                let at = (row * channels + vec4 * 4u32 + c) * 2u32;
                parts.store(at, sum.get());
                parts.store(at + 1u32, squares.get());
                k.if_(row.eq(0), || of_channels.store((vec4 * 4u32 + c) * 2u32, first[c as usize]));
            }
        });
        k.barrier();
        let pixels = sizes.pixels as f32;
        k.for_step(t, channels, TEAM, |_, channel| {
            let (sum, squares) = (k.var(0f32), k.var(0f32));
            for row in 0..at_once.min(sizes.pixels) {
                let at = (channel + row * channels) * 2u32;
                sum.set(sum.get() + parts.load(at));
                squares.set(squares.get() + parts.load(at + 1u32));
            }
            let mean = sum.get() / pixels;
            of_channels.store(channel * 2u32 + 1u32, (squares.get() - sum.get() * mean).max(k.lit(0f32)));
            of_channels.store(channel * 2u32, of_channels.load(channel * 2u32) + mean);
        });
        k.barrier();
        // Channels have as many pixels each, so that means and squares of a group follow from theirs.
        k.for_step(t, together, TEAM, |_, group| {
            let begin = group * sizes.width * 2u32;
            let sum = k.var(0f32);
            k.for_(0u32, sizes.width, |_, c| sum.set(sum.get() + of_channels.load(begin + c * 2u32)));
            let mean = sum.get() / sizes.width as f32;
            let squares = k.var(0f32);
            k.for_(0u32, sizes.width, |_, c| {
                let d = of_channels.load(begin + c * 2u32) - mean;
                squares.set(squares.get() + of_channels.load(begin + c * 2u32 + 1u32) + d * d * pixels);
            });
            let at = (line * sizes.groups + block * together + group) * 2u32;
            out.store(at, mean);
            out.store(at + 1u32, squares.get());
        });
    });
    Some((kernel, groups(u64::from(sizes.lines * blocks))))
}

/// Where an invocation stands in an image, four channels of a pixel each: the first element, its picture and its channel.
fn place<'k>(k: &'k Builder, sizes: &Sizes) -> [U<'k>; 3] {
    let at = element(k, sizes.lines * sizes.pixels * (sizes.channels / 4)) * 4u32;
    [at, at / (sizes.picture * sizes.channels), at % sizes.channels]
}

/// `activation((x - mean) scale + shift)` of four channels, each with its own three numbers.
fn apply<'k>(k: &'k Builder, activation: Option<Unary>, x: [F<'k>; 4], factors: [[F<'k>; 3]; 4]) -> [F<'k>; 4] {
    [0, 1, 2, 3].map(|c| {
        let [mean, scale, shift] = factors[c];
        let y = (x[c] - mean) * scale + shift;
        activation.map_or(y, |f| unary(k, f, y))
    })
}

/// Each pixel by the factors of its channel; none for channels that are no whole vec4s. Buffers: image, factors, result.
pub(crate) fn normalise(
    image: &Image,
    activation: Option<Unary>,
    [from, to]: [DType; 2],
) -> Option<Result<Kernel, KernelError>> {
    let sizes = Sizes::of(image)?;
    Some(Builder::kernel("normalise", [LINE, 1, 1], |k| {
        let x = From4::new(k, "x", from, sizes.channels);
        let factors = From4::new(k, "factors", DType::F32, sizes.channels);
        let out = To4::new(k, "out", to, sizes.channels);
        let ([at, picture, channel], four) = (place(k, &sizes), k.lit(4u32));
        let of_picture = picture * (3 * sizes.channels) + channel;
        let all = [0u32, 1, 2].map(|i| factors.at(k, of_picture + i * sizes.channels, four));
        let factors = [0, 1, 2, 3].map(|c| [all[0][c], all[1][c], all[2][c]]);
        out.set(k, at, four, apply(k, activation, x.at(k, at, four), factors));
    }))
}

/// The image with mean 0 and deviation 1 in each group, scaled and shifted by channel; none for channels that are no whole vec4s. `types`: of the
/// image, gamma, beta and the result. Buffers: image, gamma, beta, statistics of pictures, result.
pub(crate) fn group_norm(
    image: &Image,
    activation: Option<Unary>,
    types: [DType; 4],
) -> Option<Result<Kernel, KernelError>> {
    let sizes = Sizes::of(image)?;
    Some(Builder::kernel("group_norm", [LINE, 1, 1], |k| {
        let [x, gamma, beta] = [("x", types[0]), ("gamma", types[1]), ("beta", types[2])]
            .map(|(name, dtype)| From4::new(k, name, dtype, sizes.channels));
        let stats = k.buffer::<f32>("stats");
        let out = To4::new(k, "out", types[3], sizes.channels);
        let ([at, picture, channel], four) = (place(k, &sizes), k.lit(4u32));
        let (gamma, beta) = (gamma.at(k, channel, four), beta.at(k, channel, four));
        let of_group = |c: u32| {
            let group = (picture * sizes.groups + (channel + c) / sizes.width) * 2u32;
            [stats.load(group), stats.load(group + 1u32)]
        };
        let first = of_group(0);
        let factors = [0, 1, 2, 3].map(|c| {
            // Four channels are of one group where groups are whole vec4s.
            let [mean, scale] = if sizes.width.is_multiple_of(4) { first } else { of_group(c as u32) };
            [mean, scale * gamma[c], beta[c]]
        });
        out.set(k, at, four, apply(k, activation, x.at(k, at, four), factors));
    }))
}
