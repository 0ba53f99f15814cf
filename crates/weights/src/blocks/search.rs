//! Scales with the least squared error.
//!
//! Levels and scale depend on each other: for given levels the best scale is a division of sums, for a given scale the best level is the nearest. A
//! search tries scales around the one that just reaches the largest number, takes the best scale for the levels that each gives, and keeps the best.

use super::UNEVEN_STEPS;
use super::encode::{put_half, put_nibbles};
use super::float::through_f16;

/// The whole number next to `x`, which must be smaller than two million.
#[inline(always)]
pub(super) fn nearest(x: f32) -> f32 {
    // Adding this leaves no room for a fraction.
    const SHIFT: f32 = 12_582_912.0;
    (x + SHIFT) - SHIFT
}

pub(super) fn is_finite(x: &[f32]) -> bool {
    x.iter().all(|x| x.is_finite())
}

/// Sums over a group of numbers `x` and their levels `l`.
#[derive(Clone, Copy, Default)]
pub(super) struct Sums {
    pub(super) l: f32,
    pub(super) ll: f32,
    pub(super) lx: f32,
}

#[inline(always)]
pub(super) fn sums<const N: usize>(x: &[f32; N], level: impl Fn(f32) -> f32) -> Sums {
    let levels: [f32; N] = x.map(level);
    let mut lanes = [Sums::default(); 8];
    for (x, l) in x.as_chunks::<8>().0.iter().zip(levels.as_chunks::<8>().0) {
        for (lane, (x, l)) in lanes.iter_mut().zip(x.iter().zip(l)) {
            *lane = Sums { l: lane.l + l, ll: lane.ll + l * l, lx: lane.lx + l * x };
        }
    }
    lanes.into_iter().fold(Sums::default(), |a, b| Sums { l: a.l + b.l, ll: a.ll + b.ll, lx: a.lx + b.lx })
}

/// The squared error of numbers that become `value(x)`.
#[inline(always)]
pub(super) fn squared_error<const N: usize>(x: &[f32; N], value: impl Fn(f32) -> f32) -> f32 {
    let errors: [f32; N] = x.map(|x| (value(x) - x) * (value(x) - x));
    let lanes = errors.as_chunks::<8>().0.iter().fold([0.0f32; 8], |a, b| std::array::from_fn(|i| a[i] + b[i]));
    lanes.iter().sum()
}

/// The scale of levels without an offset: tries each candidate for its inverse. Zero if all numbers are zero.
#[inline(always)]
pub(super) fn scale_of<const N: usize>(
    x: &[f32; N],
    inverses: impl Iterator<Item = f32>,
    level: impl Fn(f32) -> f32,
) -> f32 {
    let (mut gain, mut scale) = (0.0, 0.0);
    for inverse in inverses {
        let s = sums(x, |x| level(x * inverse));
        // With the best scale, the error is the sum of squares less this.
        if s.ll > 0.0 && s.lx * s.lx > gain * s.ll {
            (gain, scale) = (s.lx * s.lx / s.ll, s.lx / s.ll);
        }
    }
    scale
}

/// The inverse of a scale; that of zero is zero, since all of its levels are.
#[inline(always)]
pub(super) fn inverse(d: f32) -> f32 {
    if d == 0.0 { 0.0 } else { 1.0 / d }
}

/// The number of largest magnitude, with its sign; the first of several.
pub(super) fn extreme(x: &[f32]) -> f32 {
    x.iter().fold(0.0f32, |most, &x| if x.abs() > most.abs() { x } else { most })
}

/// Candidates for the inverse of a scale: the largest number gets a level around `level`. None if all are zero.
#[inline(always)]
pub(super) fn inverses(x: &[f32], level: f32, steps: i32, step: f32) -> impl Iterator<Item = f32> {
    let most = extreme(x);
    // What is so small that its inverse is infinite is zero in half precision.
    let steps = if (1.0 / most).is_finite() { -steps..steps + 1 } else { 0..0 };
    steps.map(move |i| (level + step * i as f32) / most)
}

/// The middles between neighbouring uneven steps.
const MIDDLES: [f32; 15] = {
    let mut middles = [0.0; 15];
    let mut i = 0;
    while i < 15 {
        middles[i] = (UNEVEN_STEPS[i] + UNEVEN_STEPS[i + 1]) / 2.0;
        i += 1;
    }
    middles
};

/// Which uneven step is next to a number.
#[inline(always)]
fn uneven_index(x: f32) -> u8 {
    MIDDLES.iter().map(|middle| u8::from(x > *middle)).sum()
}

/// The uneven step next to a number: the first one, and the widths of all steps below.
#[inline(always)]
fn uneven_step(x: f32) -> f32 {
    let mut step = UNEVEN_STEPS[0];
    for i in 0..15 {
        step += if x > MIDDLES[i] { UNEVEN_STEPS[i + 1] - UNEVEN_STEPS[i] } else { 0.0 };
    }
    step
}

fn uneven_scale(x: &[f32; 32]) -> f32 {
    // The steps are not symmetric: the largest number may go to either end.
    let candidates = inverses(x, UNEVEN_STEPS[0], 7, 2.0).chain(inverses(x, UNEVEN_STEPS[15], 7, 2.0));
    scale_of(x, candidates, uneven_step)
}

pub(super) fn iq4_nl(x: &[f32; 32]) -> [u8; 18] {
    let mut out = [0; 18];
    if !is_finite(x) {
        put_half(&mut out, 0, f32::NAN);
        return out;
    }
    let d = through_f16(uneven_scale(x));
    let inverse = inverse(d);
    put_half(&mut out, 0, d);
    put_nibbles(&mut out[2..], &x.map(|x| uneven_index(x * inverse)));
    out
}

pub(super) fn iq4_xs(x: &[f32; 256]) -> [u8; 136] {
    let mut out = [0; 136];
    if !is_finite(x) {
        put_half(&mut out, 0, f32::NAN);
        return out;
    }
    let groups = x.as_chunks::<32>().0;
    let mut scales = [0.0; 8];
    scales.iter_mut().zip(groups).for_each(|(scale, group)| *scale = uneven_scale(group));
    let mut d = through_f16(extreme(&scales) / -32.0);
    let mut parts = [0.0; 8];
    for _ in 0..2 {
        let inverse_d = inverse(d);
        let (mut ll, mut lx) = (0.0, 0.0);
        for ((part, group), scale) in parts.iter_mut().zip(groups).zip(scales) {
            *part = best_part(group, nearest((scale * inverse_d).clamp(-32.0, 31.0)), (-32.0, 31.0), |x, part| {
                let scale = d * part;
                scale * uneven_step(x * inverse(scale))
            });
            let inverse = inverse(d * *part);
            let s = sums(group, |x| uneven_step(x * inverse));
            (ll, lx) = (ll + *part * *part * s.ll, lx + *part * s.lx);
        }
        if ll > 0.0 {
            d = through_f16(lx / ll);
        }
    }
    put_half(&mut out, 0, d);
    let mut high = 0u16;
    for (i, (group, part)) in groups.iter().zip(parts).enumerate() {
        let bits = (part + 32.0) as u8;
        out[4 + i / 2] |= (bits & 15) << (i % 2 * 4);
        high |= u16::from(bits >> 4) << (2 * i);
        let inverse = inverse(d * part);
        put_nibbles(&mut out[8 + 16 * i..][..16], &group.map(|x| uneven_index(x * inverse)));
    }
    out[2..4].copy_from_slice(&high.to_le_bytes());
    out
}

/// A group's own whole-numbered scale: the one next to the wish, or one of its neighbours if the error is smaller.
#[inline(always)]
pub(super) fn best_part<const N: usize>(
    x: &[f32; N],
    wish: f32,
    (least, most): (f32, f32),
    value: impl Fn(f32, f32) -> f32,
) -> f32 {
    let mut best = (f32::INFINITY, wish);
    for part in [wish, wish - 1.0, wish + 1.0] {
        if (least..=most).contains(&part) {
            let error = squared_error(x, |x| value(x, part));
            if error < best.0 {
                best = (error, part);
            }
        }
    }
    best.1
}
