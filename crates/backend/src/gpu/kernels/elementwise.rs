//! Arithmetic on each element. A chain is composed while its kernel is written, of as many tensors as it has, so it is written with the builder.

use impasto_graph::{Binary, DType, Op};
use impasto_kernel::prelude::*;
use impasto_kernel::{Builder, StoredBuf};

use super::vec4::{From4, To4};
use super::{F, LINE, U, element, gelu, scalar, unary};

/// Whole numbers as they are.
#[kernel(workgroup = LINE)]
pub(crate) fn copy(#[comptime] elements: u32, x: &[i32], out: &mut [i32]) {
    let i = element(elements);
    out[i] = x[i];
}

/// Numbers in 16 bits, each times `scale`. Buffers: operand, result, both a multiple of four long.
pub(crate) fn narrow(elements: u32, scale: f32, to: DType) -> Result<Kernel, KernelError> {
    Builder::kernel("narrow", [LINE, 1, 1], |k| {
        let x = From4::new(k, "x", DType::F32, elements);
        let out = To4::new(k, "out", to, elements);
        let at = element(k, elements / 4) * 4u32;
        out.set(k, at, k.lit(4u32), x.at(k, at, k.lit(4u32)).map(|x| x * scale));
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

/// The same, four elements of the last axis at a time; none where that is not made of vec4s for every tensor.
pub(crate) fn chain_by_4(
    term: &Term,
    shape: &[usize],
    leaves: &[Walked],
    to: DType,
) -> Option<Result<Kernel, KernelError>> {
    let last = shape.len().checked_sub(1)?;
    let whole = |strides: &[usize]| strides.iter().all(|s| s.is_multiple_of(4));
    let fits = |leaf: &Walked| match leaf.strides[last] {
        1 => whole(&leaf.strides[..last]),
        stride => stride == 0,
    };
    if !shape[last].is_multiple_of(4) || !leaves.iter().all(fits) {
        return None;
    }
    let mut vec4s = shape.to_vec();
    vec4s[last] /= 4;
    Some(Builder::kernel("chain", [LINE, 1, 1], |k| {
        let source = |(n, leaf): (usize, &Walked)| match leaf.strides[last] {
            0 => Leaf::One(k.stored(&format!("x{n}"), scalar(leaf.dtype))),
            _ => Leaf::Four(From4::new(k, &format!("x{n}"), leaf.dtype, 4)),
        };
        let sources: Vec<Leaf> = leaves.iter().enumerate().map(source).collect();
        let out = To4::new(k, "out", to, 4);
        let i = element(k, vec4s.iter().product::<usize>() as u32);
        let read: Vec<[F; 4]> = sources
            .iter()
            .zip(leaves)
            .map(|(source, leaf)| {
                let mut strides = leaf.strides.clone();
                strides[last] *= 4;
                let at = place(k, &vec4s, &strides, i);
                match source {
                    Leaf::One(source) => [source.load(at); 4],
                    Leaf::Four(source) => source.at(k, at, k.lit(4u32)),
                }
            })
            .collect();
        let element = |c: usize| term.write(k, &read.iter().map(|four| four[c]).collect::<Vec<F>>());
        out.set(k, i * 4u32, k.lit(4u32), [0, 1, 2, 3].map(element));
    }))
}

/// A tensor of a chain, of which four elements are read: one that is the same for all of them, or four that lie together.
enum Leaf<'k> {
    One(StoredBuf<'k, f32>),
    Four(From4<'k>),
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
