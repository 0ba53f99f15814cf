//! Blocks of 256 whose groups have scales of a few bits: how those are packed, and how they are chosen.

use std::array::from_fn;

use super::encode::put_half;
use super::float::through_f16;
use super::search::{best_part, extreme, inverse, inverses, is_finite, nearest, scale_of, sums};

/// Scales and minimums of `Q4_K` and `Q5_K`: eight of six bits each in twelve bytes.
#[inline(always)]
pub(super) fn nibble_scales(packed: &[u8; 12]) -> ([u8; 8], [u8; 8]) {
    let at = |i: usize, last: fn(u8) -> u8| match i % 8 {
        j if j < 4 => packed[i / 8 * 4 + j] & 63,
        j => last(packed[j + 4]) | packed[i / 8 * 4 + j - 4] >> 6 << 4,
    };
    (from_fn(|i| at(i, |b| b & 15)), from_fn(|i| at(i + 8, |b| b >> 4)))
}

fn put_nibble_scales(out: &mut [u8], scales: &[u8; 8], mins: &[u8; 8]) {
    for i in 0..4 {
        out[i] = scales[i] | scales[i + 4] >> 4 << 6;
        out[i + 4] = mins[i] | mins[i + 4] >> 4 << 6;
        out[i + 8] = scales[i + 4] & 15 | mins[i + 4] << 4;
    }
}

/// The scales of `Q3_K`: sixteen signed ones of six bits.
#[inline(always)]
pub(super) fn three_bit_scales(packed: &[u8; 12]) -> [i8; 16] {
    from_fn(|i| {
        let low = packed[i % 8] >> (i / 8 * 4) & 15;
        let high = packed[8 + i % 4] >> (i / 4 * 2) & 3;
        (low | high << 4) as i8 - 32
    })
}

fn put_three_bit_scales(out: &mut [u8], scales: &[f32; 16]) {
    for (i, scale) in scales.iter().enumerate() {
        let bits = (scale + 32.0) as u8;
        out[i % 8] |= (bits & 15) << (i / 8 * 4);
        out[8 + i % 4] |= bits >> 4 << (i / 4 * 2);
    }
}

/// A block whose groups have a scale each: `d * scale * level`.
struct Symmetric<const GROUPS: usize> {
    d: f32,
    scales: [f32; GROUPS],
}

impl<const GROUPS: usize> Symmetric<GROUPS> {
    /// Chooses scales for levels and scales between these bounds.
    #[inline(always)]
    fn choose<const N: usize>(x: &[[f32; N]], levels: (f32, f32), parts: (f32, f32), steps: i32) -> Self {
        let level = |x: f32| nearest(x.clamp(levels.0, levels.1));
        let mut wishes = [0.0; GROUPS];
        for (wish, x) in wishes.iter_mut().zip(x) {
            *wish = scale_of(x, inverses(x, levels.0, steps, 0.1), level);
        }
        let mut d = through_f16(extreme(&wishes) / parts.0);
        let mut scales = [0.0; GROUPS];
        for _ in 0..2 {
            let (inverse_d, mut ll, mut lx) = (inverse(d), 0.0, 0.0);
            for ((scale, x), wish) in scales.iter_mut().zip(x).zip(wishes) {
                let near = nearest((wish * inverse_d).clamp(parts.0, parts.1));
                *scale = best_part(x, near, parts, |x, part| {
                    let scale = d * part;
                    scale * level(x * inverse(scale))
                });
                let inverse = inverse(d * *scale);
                let s = sums(x, |x| level(x * inverse));
                (ll, lx) = (ll + *scale * *scale * s.ll, lx + *scale * s.lx);
            }
            if ll > 0.0 {
                d = through_f16(lx / ll);
            }
        }
        Symmetric { d, scales }
    }

    /// The levels of a group, from zero on.
    #[inline(always)]
    fn levels<const N: usize>(&self, group: usize, x: &[f32; N], (least, most): (f32, f32)) -> [u8; N] {
        let inverse = inverse(self.d * self.scales[group]);
        x.map(|x| (nearest((x * inverse).clamp(least, most)) - least) as u8)
    }
}

pub(super) fn q3_k(x: &[f32; 256]) -> [u8; 110] {
    const LEVELS: (f32, f32) = (-4.0, 3.0);
    let mut out = [0; 110];
    if !is_finite(x) {
        put_half(&mut out, 108, f32::NAN);
        return out;
    }
    let groups = x.as_chunks::<16>().0;
    let chosen = Symmetric::<16>::choose(groups, LEVELS, (-32.0, 31.0), 9);
    put_half(&mut out, 108, chosen.d);
    put_three_bit_scales(&mut out[96..108], &chosen.scales);
    for (i, x) in groups.iter().enumerate() {
        let (at, shift, bit) = (i / 8 * 32 + i % 2 * 16, i % 8 / 2 * 2, i / 2);
        for (j, q) in chosen.levels(i, x, LEVELS).into_iter().enumerate() {
            out[i % 2 * 16 + j] |= (q >> 2) << bit;
            out[32 + at + j] |= (q & 3) << shift;
        }
    }
    out
}

pub(super) fn q6_k(x: &[f32; 256]) -> [u8; 210] {
    const LEVELS: (f32, f32) = (-32.0, 31.0);
    let mut out = [0; 210];
    if !is_finite(x) {
        put_half(&mut out, 208, f32::NAN);
        return out;
    }
    let groups = x.as_chunks::<16>().0;
    let chosen = Symmetric::<16>::choose(groups, LEVELS, (-128.0, 127.0), 9);
    put_half(&mut out, 208, chosen.d);
    for (i, x) in groups.iter().enumerate() {
        out[192 + i] = chosen.scales[i] as i8 as u8;
        let (half, quarter, within) = (i / 8, i % 8 / 2, i % 2 * 16);
        let (low, high) = (half * 64 + quarter % 2 * 32 + within, 128 + half * 32 + within);
        for (j, q) in chosen.levels(i, x, LEVELS).into_iter().enumerate() {
            out[low + j] |= (q & 15) << (quarter / 2 * 4);
            out[high + j] |= (q >> 4) << (quarter * 2);
        }
    }
    out
}

/// A block whose groups have a scale and a minimum each: `d * scale * level - dmin * min`.
struct Affine<const GROUPS: usize> {
    d: f32,
    dmin: f32,
    scales: [u8; GROUPS],
    mins: [u8; GROUPS],
}

/// Scale and minimum of a group alone: `scale * level - min`, where `min` is not negative, as blocks have it.
#[inline(always)]
fn fit<const N: usize>(x: &[f32; N], most: f32, steps: i32) -> (f32, f32) {
    let low = x.iter().copied().fold(0.0f32, f32::min);
    let high = x.iter().copied().fold(low, f32::max);
    let range = high - low;
    if !(1.0 / range).is_finite() {
        return (0.0, -low);
    }
    let (n, sx) = (N as f32, x.iter().sum::<f32>());
    let mut best = (f32::NEG_INFINITY, 0.0, -low);
    for step in -steps..=steps {
        let inverse = (most + 0.1 * step as f32) / range;
        let s = sums(x, |x| nearest(((x - low) * inverse).clamp(0.0, most)));
        let determinant = n * s.ll - s.l * s.l;
        let (mut scale, mut min) = (s.lx / s.ll, 0.0);
        if determinant > 0.0 {
            let offset = (s.ll * sx - s.l * s.lx) / determinant;
            if offset < 0.0 {
                (scale, min) = ((n * s.lx - s.l * sx) / determinant, -offset);
            }
        }
        // How much smaller the squared error is than the sum of squares.
        let gain = scale * (2.0 * s.lx - scale * s.ll) - min * (2.0 * sx + n * min) + 2.0 * scale * min * s.l;
        if gain > best.0 {
            best = (gain, scale, min);
        }
    }
    (best.1, best.2)
}

impl<const GROUPS: usize> Affine<GROUPS> {
    /// Chooses scales and minimums of at most `part` for levels from zero to `most`.
    #[inline(always)]
    fn choose<const N: usize>(x: &[[f32; N]], most: f32, part: f32, steps: i32) -> Self {
        let mut wishes = [(0.0f32, 0.0f32); GROUPS];
        wishes.iter_mut().zip(x).for_each(|(wish, x)| *wish = fit(x, most, steps));
        let mut d = through_f16(wishes.iter().fold(0.0f32, |most, wish| most.max(wish.0)) / part);
        let mut dmin = through_f16(wishes.iter().fold(0.0f32, |most, wish| most.max(wish.1)) / part);
        let (mut scales, mut mins) = ([0.0; GROUPS], [0.0; GROUPS]);
        for _ in 0..2 {
            // Sums over all levels `a` and minimums `b` of the block, for the best pair of `d` and `dmin`.
            let (mut aa, mut ab, mut bb, mut ax, mut bx) = (0.0f32, 0.0, 0.0, 0.0, 0.0);
            for (i, x) in x.iter().enumerate() {
                mins[i] = nearest((wishes[i].1 * inverse(dmin)).clamp(0.0, part));
                let min = dmin * mins[i];
                let near = nearest((wishes[i].0 * inverse(d)).clamp(0.0, part));
                scales[i] = best_part(x, near, (0.0, part), |x, part| {
                    let scale = d * part;
                    scale * nearest(((x + min) * inverse(scale)).clamp(0.0, most)) - min
                });
                let inverse = inverse(d * scales[i]);
                let s = sums(x, |x| nearest(((x + min) * inverse).clamp(0.0, most)));
                (aa, ab) = (aa + scales[i] * scales[i] * s.ll, ab + scales[i] * mins[i] * s.l);
                (bb, ax) = (bb + mins[i] * mins[i] * N as f32, ax + scales[i] * s.lx);
                bx += mins[i] * x.iter().sum::<f32>();
            }
            let determinant = aa * bb - ab * ab;
            let better = match determinant > 1e-6 * aa * bb {
                true => ((ax * bb - bx * ab) / determinant, (ax * ab - bx * aa) / determinant),
                false if aa > 0.0 => ((ax + dmin * ab) / aa, dmin),
                false => (d, dmin),
            };
            if better.0 >= 0.0 && better.1 >= 0.0 {
                (d, dmin) = (through_f16(better.0), through_f16(better.1));
            }
        }
        Affine { d, dmin, scales: scales.map(|x| x as u8), mins: mins.map(|x| x as u8) }
    }

    /// The levels of a group.
    #[inline(always)]
    fn levels<const N: usize>(&self, group: usize, x: &[f32; N], most: f32) -> [u8; N] {
        let min = self.dmin * f32::from(self.mins[group]);
        let inverse = inverse(self.d * f32::from(self.scales[group]));
        x.map(|x| nearest(((x + min) * inverse).clamp(0.0, most)) as u8)
    }
}

pub(super) fn q2_k(x: &[f32; 256]) -> [u8; 84] {
    let mut out = [0; 84];
    if !is_finite(x) {
        put_half(&mut out, 80, f32::NAN);
        return out;
    }
    let groups = x.as_chunks::<16>().0;
    let chosen = Affine::<16>::choose(groups, 3.0, 15.0, 10);
    put_half(&mut out, 80, chosen.d);
    put_half(&mut out, 82, chosen.dmin);
    for (i, x) in groups.iter().enumerate() {
        out[i] = chosen.scales[i] | chosen.mins[i] << 4;
        let (at, shift) = (16 + i / 8 * 32 + i % 2 * 16, i % 8 / 2 * 2);
        for (j, q) in chosen.levels(i, x, 3.0).into_iter().enumerate() {
            out[at + j] |= q << shift;
        }
    }
    out
}

pub(super) fn q4_k(x: &[f32; 256]) -> [u8; 144] {
    let mut out = [0; 144];
    if !is_finite(x) {
        put_half(&mut out, 0, f32::NAN);
        return out;
    }
    let groups = x.as_chunks::<32>().0;
    let chosen = Affine::<8>::choose(groups, 15.0, 63.0, 10);
    put_half(&mut out, 0, chosen.d);
    put_half(&mut out, 2, chosen.dmin);
    put_nibble_scales(&mut out[4..16], &chosen.scales, &chosen.mins);
    for (i, x) in groups.iter().enumerate() {
        for (j, q) in chosen.levels(i, x, 15.0).into_iter().enumerate() {
            out[16 + i / 2 * 32 + j] |= q << (i % 2 * 4);
        }
    }
    out
}

pub(super) fn q5_k(x: &[f32; 256]) -> [u8; 176] {
    let mut out = [0; 176];
    if !is_finite(x) {
        put_half(&mut out, 0, f32::NAN);
        return out;
    }
    let groups = x.as_chunks::<32>().0;
    let chosen = Affine::<8>::choose(groups, 31.0, 63.0, 10);
    put_half(&mut out, 0, chosen.d);
    put_half(&mut out, 2, chosen.dmin);
    put_nibble_scales(&mut out[4..16], &chosen.scales, &chosen.mins);
    for (i, x) in groups.iter().enumerate() {
        for (j, q) in chosen.levels(i, x, 31.0).into_iter().enumerate() {
            out[16 + j] |= (q >> 4) << i;
            out[48 + i / 2 * 32 + j] |= (q & 15) << (i % 2 * 4);
        }
    }
    out
}
