//! Arithmetic on each element.

use impasto_graph::{Binary, DType, Op};
use impasto_kernel::{Builder, Kernel, KernelError};

use super::{F, LINE, Sink, Source, U, element, gelu, unary};

/// Unary functions, scale and shift, casts. Buffers: operand, result.
pub(in super::super) fn map(op: &Op, elements: u32, from: DType, to: DType) -> Result<Kernel, KernelError> {
    Builder::kernel("map", [LINE, 1, 1], |k| {
        let (x, out) = (Source::new(k, "x", from), Sink::new(k, "out", to));
        let i = element(k, elements);
        // Integers pass through a float only where that is asked for: 2^24 and above would be rounded.
        if let (Source::I32(x), Sink::I32(out)) = (x, out) {
            return out.store(i, x.load(i));
        }
        let x = x.at(i);
        out.set(
            i,
            match op {
                Op::Unary(f) => unary(k, *f, x),
                Op::Affine { scale, shift } => x * *scale + *shift,
                _ => x,
            },
        );
    })
}

/// `value * gelu(gate)` of rows that hold both halves. Buffers: operand, result.
pub(in super::super) fn geglu(rows: u32, width: u32, from: DType, to: DType) -> Result<Kernel, KernelError> {
    Builder::kernel("geglu", [LINE, 1, 1], |k| {
        let (x, out) = (Source::new(k, "x", from), Sink::new(k, "out", to));
        let i = element(k, rows * width);
        let at = i / width * (2 * width) + i % width;
        out.set(i, x.at(at) * gelu(k, x.at(at + width)));
    })
}

fn apply<'k>(f: Binary, a: F<'k>, b: F<'k>) -> F<'k> {
    match f {
        Binary::Add => a + b,
        Binary::Sub => a - b,
        Binary::Mul => a * b,
        Binary::Div => a / b,
        // NaN on either side stays.
        Binary::Max => (a.ne(a) | a.gt(b)).select(a, b),
        Binary::Min => (a.ne(a) | a.lt(b)).select(a, b),
    }
}

/// A box of elements and how two operands walk through it.
pub(in super::super) struct Walk<'a> {
    pub(in super::super) shape: &'a [usize],
    pub(in super::super) strides: [&'a [usize]; 2],
}

/// A function of two tensors. Buffers: both operands, result.
pub(in super::super) fn binary(f: Binary, walk: &Walk, from: [DType; 2], to: DType) -> Result<Kernel, KernelError> {
    Builder::kernel("binary", [LINE, 1, 1], |k| {
        let [a, b] = [("a", from[0]), ("b", from[1])].map(|(name, dtype)| Source::new(k, name, dtype));
        let out = Sink::new(k, "out", to);
        let i = element(k, walk.shape.iter().product::<usize>() as u32);
        let [at_a, at_b] = walk.strides.map(|strides| place(k, walk.shape, strides, i));
        out.set(i, apply(f, a.at(at_a), b.at(at_b)));
    })
}

/// Where element `i` of a box lies for a side that walks through it with these strides.
pub(super) fn place<'k>(k: &'k Builder, shape: &[usize], strides: &[usize], i: U<'k>) -> U<'k> {
    let (mut rest, mut at) = (i, k.lit(0u32));
    for (axis, (&d, &stride)) in shape.iter().zip(strides).enumerate().rev() {
        let along = if axis == 0 { rest } else { rest % d as u32 };
        at = at + along * stride as u32;
        rest = rest / d as u32;
    }
    at
}
