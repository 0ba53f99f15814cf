//! Arithmetic on each element.

use impasto_graph::{Binary, DType, Op};
use impasto_kernel::{Builder, Kernel, KernelError};

use super::{F, LINE, Sink, Source, U, element, gelu, unary};

/// Whole numbers as they are. Buffers: operand, result.
pub(in super::super) fn copy(elements: u32) -> Result<Kernel, KernelError> {
    Builder::kernel("copy", [LINE, 1, 1], |k| {
        let (x, out) = (k.buffer::<i32>("x"), k.buffer_mut::<i32>("out"));
        let i = element(k, elements);
        out.store(i, x.load(i));
    })
}

/// Unary functions, scale and shift, casts.
fn mapped<'k>(k: &'k Builder, op: &Op, x: F<'k>) -> F<'k> {
    match op {
        Op::Unary(f) => unary(k, *f, x),
        Op::Affine { scale, shift } => x * *scale + *shift,
        _ => x,
    }
}

/// `value * gelu(gate)` of rows that hold both halves, plus a residual if there is one. Buffers: operand, residual, result.
pub(in super::super) fn geglu(
    rows: u32,
    width: u32,
    from: DType,
    residual: Option<DType>,
    to: DType,
) -> Result<Kernel, KernelError> {
    Builder::kernel("geglu", [LINE, 1, 1], |k| {
        let x = Source::new(k, "x", from);
        let residual = residual.map(|dtype| Source::new(k, "residual", dtype));
        let out = Sink::new(k, "out", to);
        let i = element(k, rows * width);
        let at = i / width * (2 * width) + i % width;
        let gated = x.at(at) * gelu(k, x.at(at + width));
        out.set(i, residual.map_or(gated, |r| gated + r.at(i)));
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

/// A tensor and how it is walked through.
pub(in super::super) struct Walked {
    pub(in super::super) dtype: DType,
    pub(in super::super) strides: Vec<usize>,
}

/// What is computed of each element: a leaf is a tensor, by its number.
pub(in super::super) enum Term {
    Leaf(usize),
    Map(Op, Box<Term>),
    Binary(Binary, [Box<Term>; 2]),
}

impl Term {
    fn write<'k>(&self, k: &'k Builder, leaves: &[F<'k>]) -> F<'k> {
        match self {
            Term::Leaf(i) => leaves[*i],
            Term::Map(op, x) => mapped(k, op, x.write(k, leaves)),
            Term::Binary(f, [a, b]) => apply(*f, a.write(k, leaves), b.write(k, leaves)),
        }
    }
}

/// A chain of functions, each of what the ones before it gave and of other tensors, over a box of elements. Buffers: the leaves, result.
pub(in super::super) fn chain(
    term: &Term,
    shape: &[usize],
    leaves: &[Walked],
    to: DType,
) -> Result<Kernel, KernelError> {
    Builder::kernel("chain", [LINE, 1, 1], |k| {
        let sources: Vec<Source> =
            leaves.iter().enumerate().map(|(n, leaf)| Source::new(k, &format!("x{n}"), leaf.dtype)).collect();
        let out = Sink::new(k, "out", to);
        let i = element(k, shape.iter().product::<usize>() as u32);
        let read = sources.into_iter().zip(leaves).map(|(source, leaf)| source.at(place(k, shape, &leaf.strides, i)));
        out.set(i, term.write(k, &read.collect::<Vec<F>>()));
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
