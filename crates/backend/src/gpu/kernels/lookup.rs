//! Rows of tables, and encodings of times and positions.

use std::ops::Range;

use impasto_graph::{DType, Pairs};
use impasto_kernel::Builder;
use impasto_kernel::prelude::*;

use super::vec4::{From4, To4};
use super::{LINE, element, exp, scalar, sin_cos};

/// Rows of a part of a table by number. Whoever has the first part writes NaN for numbers outside the table, which the run reports: a
/// wrong row would be a silently wrong picture. `types`: of the table and of the result.
#[kernel(workgroup = LINE)]
pub(crate) fn embedding(
    #[comptime] rows: u32,
    #[comptime] width: u32,
    #[comptime] table_rows: u32,
    #[comptime] part: Range<u32>,
    #[comptime] types: [DType; 2],
    #[stored(scalar(types[0]))] table: &[f32],
    ids: &[i32],
    #[stored(scalar(types[1]))] out: &mut [f32],
) {
    let i = element(rows * width);
    // Below zero it wraps to beyond any table.
    let id = ids[i / width] as u32;
    if id >= part.start && id < part.end {
        out[i] = table[(id - part.start) * width + i % width];
    }
    if part.start == 0 && id >= table_rows {
        out[i] = f32::NAN;
    }
}

/// Cosines, then sines, of a time at frequencies from 1 down to 1/max_period. `types`: of the times and of the result.
#[kernel(workgroup = LINE)]
pub(crate) fn timestep(
    #[comptime] batch: u32,
    #[comptime] dim: u32,
    #[comptime] max_period: f32,
    #[comptime] types: [DType; 2],
    #[stored(scalar(types[0]))] t: &[f32],
    #[stored(scalar(types[1]))] out: &mut [f32],
) {
    let half = dim / 2;
    let i = element(batch * half);
    let (picture, j) = (i / half, i % half);
    let step = comptime!((-f64::from(max_period).ln() / f64::from(half)) as f32);
    let (sine, cosine) = sin_cos(t[picture] * exp(j as f32 * step));
    out[picture * dim + j] = cosine;
    out[picture * dim + half + j] = sine;
}

/// The same, four pairs at a time; none for heads that are not made of those.
pub(crate) fn rotary_by_8(size: [u32; 4], pairs: Pairs, types: [DType; 4]) -> Option<Result<Kernel, KernelError>> {
    let [batch, tokens, heads, width] = size;
    let half = width / 2;
    if !half.is_multiple_of(4) {
        return None;
    }
    Some(Builder::kernel("rotary", [LINE, 1, 1], |k| {
        let [x, cos, sin] = [("x", types[0]), ("cos", types[1]), ("sin", types[2])]
            .map(|(name, dtype)| From4::new(k, name, dtype, width / 2));
        let out = To4::new(k, "out", types[3], width);
        let i = element(k, batch * tokens * heads * (half / 4));
        let (pair, head, four) = (i % (half / 4) * 4u32, i / (half / 4), k.lit(4u32));
        let angle = head / heads % tokens * half + pair;
        let (c, s) = (cos.at(k, angle, four), sin.at(k, angle, four));
        let begin = head * width;
        let at = match pairs {
            Pairs::Adjacent => [begin + pair * 2u32, begin + pair * 2u32 + 4u32],
            Pairs::Halves => [begin + pair, begin + pair + half],
        };
        let [first, second] = at.map(|at| x.at(k, at, four));
        // The numbers of pair `j`.
        let pair_of = |j: usize| match pairs {
            Pairs::Adjacent if j < 2 => [first[2 * j], first[2 * j + 1]],
            Pairs::Adjacent => [second[2 * j - 4], second[2 * j - 3]],
            Pairs::Halves => [first[j], second[j]],
        };
        let turned = [0, 1, 2, 3].map(|j| {
            let [a, b] = pair_of(j);
            [a * c[j] - b * s[j], a * s[j] + b * c[j]]
        });
        let results = match pairs {
            Pairs::Adjacent => {
                [[0, 1], [2, 3]].map(|[a, b]: [usize; 2]| [turned[a][0], turned[a][1], turned[b][0], turned[b][1]])
            }
            Pairs::Halves => [0, 1].map(|side: usize| turned.map(|pair| pair[side])),
        };
        at.into_iter().zip(results).for_each(|(at, four_results)| out.set(k, at, four, four_results));
    }))
}

/// Pairs of numbers of each head turned by given angles. `types`: of the operand, the cosines, the sines and the result.
#[kernel(workgroup = LINE)]
pub(crate) fn rotary(
    #[comptime] size: [u32; 4],
    #[comptime] pairs: Pairs,
    #[comptime] types: [DType; 4],
    #[stored(scalar(types[0]))] x: &[f32],
    #[stored(scalar(types[1]))] cos: &[f32],
    #[stored(scalar(types[2]))] sin: &[f32],
    #[stored(scalar(types[3]))] out: &mut [f32],
) {
    #[comptime]
    let [batch, tokens, heads, width] = size;
    let half = width / 2;
    let i = element(batch * tokens * heads * half);
    let (pair, head) = (i % half, i / half);
    let angle = head / heads % tokens * half + pair;
    let start = head * width;
    let (first, second) = #[comptime]
    match pairs {
        Pairs::Adjacent => (start + pair * 2, start + pair * 2 + 1),
        Pairs::Halves => (start + pair, start + pair + half),
    };
    let (a, b) = (x[first], x[second]);
    let (c, s) = (cos[angle], sin[angle]);
    out[first] = a * c - b * s;
    out[second] = a * s + b * c;
}
