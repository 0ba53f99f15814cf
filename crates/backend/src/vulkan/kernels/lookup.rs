//! Rows of tables, and encodings of times and positions.

use impasto_graph::{DType, Pairs};
use impasto_kernel::{Builder, Kernel, KernelError};

use super::{LINE, Sink, Source, element, exp, sin_cos};

/// Rows of a part of a table by number. Whoever has the first part writes NaN for numbers outside the table, which the run reports: a
/// wrong row would be a silently wrong picture. Buffers: part of the table, numbers, result.
pub(in super::super) fn embedding(
    ids: u32,
    width: u32,
    table_rows: u32,
    part: std::ops::Range<u32>,
    [table, to]: [DType; 2],
) -> Result<Kernel, KernelError> {
    Builder::kernel("embedding", [LINE, 1, 1], |k| {
        let table = Source::new(k, "table", table);
        let (numbers, out) = (k.buffer::<i32>("ids"), Sink::new(k, "out", to));
        let i = element(k, ids * width);
        // Below zero it wraps to beyond any table.
        let id = numbers.load(i / width).to::<u32>();
        k.if_(id.ge(part.start) & id.lt(part.end), || {
            out.set(i, table.at((id - k.lit(part.start)) * width + i % width));
        });
        if part.start == 0 {
            k.if_(id.ge(table_rows), || out.set(i, k.lit(f32::NAN)));
        }
    })
}

/// Cosines, then sines, of a time at frequencies from 1 down to 1/max_period. Buffers: times, result.
pub(in super::super) fn timestep(
    batch: u32,
    dim: u32,
    max_period: f32,
    [from, to]: [DType; 2],
) -> Result<Kernel, KernelError> {
    let half = dim / 2;
    Builder::kernel("timestep", [LINE, 1, 1], |k| {
        let (t, out) = (Source::new(k, "t", from), Sink::new(k, "out", to));
        let i = element(k, batch * half);
        let (picture, j) = (i / half, i % half);
        let step = -f64::from(max_period).ln() / f64::from(half);
        let (sine, cosine) = sin_cos(k, t.at(picture) * exp(k, j.to::<f32>() * step as f32));
        out.set(picture * dim + j, cosine);
        out.set(picture * dim + half + j, sine);
    })
}

/// Pairs of numbers of each head turned by given angles. Buffers: operand, cosines, sines, result.
pub(in super::super) fn rotary(
    [batch, tokens, heads, width]: [u32; 4],
    pairs: Pairs,
    [from, cos, sin, to]: [DType; 4],
) -> Result<Kernel, KernelError> {
    let half = width / 2;
    Builder::kernel("rotary", [LINE, 1, 1], |k| {
        let (x, cos) = (Source::new(k, "x", from), Source::new(k, "cos", cos));
        let (sin, out) = (Source::new(k, "sin", sin), Sink::new(k, "out", to));
        let i = element(k, batch * tokens * heads * half);
        let (pair, head) = (i % half, i / half);
        let token = head / heads % tokens;
        let (first, second) = match pairs {
            Pairs::Adjacent => (head * width + pair * 2u32, head * width + pair * 2u32 + 1u32),
            Pairs::Halves => (head * width + pair, head * width + pair + half),
        };
        let (a, b) = (x.at(first), x.at(second));
        let (c, s) = (cos.at(token * half + pair), sin.at(token * half + pair));
        out.set(first, a * c - b * s);
        out.set(second, a * s + b * c);
    })
}
