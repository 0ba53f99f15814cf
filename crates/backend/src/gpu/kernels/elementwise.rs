//! Arithmetic on each element. A chain is composed while its kernel is written, of as many tensors as it has, so it is written with the builder.

use impasto_graph::{Binary, DType, Op};
use impasto_kernel::prelude::*;
use impasto_kernel::{Builder, StoredBuf};

use super::{F, LINE, U, element, gelu, scalar, unary};

/// Whole numbers as they are.
#[kernel(workgroup = LINE)]
pub(crate) fn copy(#[comptime] elements: u32, x: &[i32], out: &mut [i32]) {
    let i = element(elements);
    out[i] = x[i];
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
pub(crate) fn gated_gelu(
    rows: u32,
    width: u32,
    from: DType,
    residual: Option<DType>,
    to: DType,
) -> Result<Kernel, KernelError> {
    match residual {
        Some(residual) => geglu_residual([rows, width], [from, residual, to]),
        None => geglu([rows, width], [from, to]),
    }
}

#[kernel(workgroup = LINE)]
fn geglu(
    #[comptime] size: [u32; 2],
    #[comptime] types: [DType; 2],
    #[stored(scalar(types[0]))] x: &[f32],
    #[stored(scalar(types[1]))] out: &mut [f32],
) {
    #[comptime]
    let [rows, width] = size;
    let i = element(rows * width);
    let at = i / width * (2 * width) + i % width;
    out[i] = x[at] * gelu(x[at + width]);
}

#[kernel(workgroup = LINE)]
fn geglu_residual(
    #[comptime] size: [u32; 2],
    #[comptime] types: [DType; 3],
    #[stored(scalar(types[0]))] x: &[f32],
    #[stored(scalar(types[1]))] residual: &[f32],
    #[stored(scalar(types[2]))] out: &mut [f32],
) {
    #[comptime]
    let [rows, width] = size;
    let i = element(rows * width);
    let at = i / width * (2 * width) + i % width;
    out[i] = x[at] * gelu(x[at + width]) + residual[i];
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
pub(crate) struct Walked {
    pub(crate) dtype: DType,
    pub(crate) strides: Vec<usize>,
}

/// What is computed of each element: a leaf is a tensor, by its number.
pub(crate) enum Term {
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
pub(crate) fn chain(term: &Term, shape: &[usize], leaves: &[Walked], to: DType) -> Result<Kernel, KernelError> {
    Builder::kernel("chain", [LINE, 1, 1], |k| {
        let source = |(n, leaf): (usize, &Walked)| k.stored(&format!("x{n}"), scalar(leaf.dtype));
        let sources: Vec<StoredBuf<f32>> = leaves.iter().enumerate().map(source).collect();
        let out = k.stored_mut::<f32>("out", scalar(to));
        let i = element(k, shape.iter().product::<usize>() as u32);
        let read = sources.into_iter().zip(leaves).map(|(source, leaf)| source.load(place(k, shape, &leaf.strides, i)));
        out.store(i, term.write(k, &read.collect::<Vec<F>>()));
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
