//! The inner loops over rows of numbers: conversion between element types, epilogues, softmax, sums.
//!
//! Each is written once as plain Rust and compiled once for each instruction set; [`Rows`] is the table of one
//! set's versions. All arithmetic is in `f32`.

use half::bf16;
use impasto_graph::{DType, Storage, Unary};

use super::Isa;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use super::math::FUSED;
#[cfg(not(target_arch = "aarch64"))]
use super::math::PLAIN;
#[cfg(target_arch = "x86_64")]
use super::math::{AVX512, AVX512_BF16};

/// A row of numbers of some element type, to be read.
#[derive(Clone, Copy)]
pub(crate) struct Src {
    pub(crate) ptr: *const u8,
    pub(crate) dtype: DType,
}

/// A row of numbers of some element type, to be written.
#[derive(Clone, Copy)]
pub(crate) struct Dst {
    pub(crate) ptr: *mut u8,
    pub(crate) dtype: DType,
}

// SAFETY: a pointer into tensor memory; the plan and the partition of the work say who touches what.
unsafe impl Send for Src {}
// SAFETY: as above.
unsafe impl Sync for Src {}
// SAFETY: as above.
unsafe impl Send for Dst {}
// SAFETY: as above.
unsafe impl Sync for Dst {}

impl Src {
    /// The row that begins `elements` further on.
    ///
    /// # Safety
    /// It lies in the same tensor.
    #[inline(always)]
    pub(crate) unsafe fn at(self, elements: usize) -> Src {
        // SAFETY: the caller's.
        Src { ptr: unsafe { self.ptr.add(elements * self.dtype.bytes() as usize) }, ..self }
    }
}

impl Dst {
    /// The row that begins `elements` further on.
    ///
    /// # Safety
    /// It lies in the same tensor.
    #[inline(always)]
    pub(crate) unsafe fn at(self, elements: usize) -> Dst {
        // SAFETY: the caller's.
        Dst { ptr: unsafe { self.ptr.add(elements * self.dtype.bytes() as usize) }, ..self }
    }

    /// The same row, to be read.
    #[inline(always)]
    pub(crate) fn src(self) -> Src {
        Src { ptr: self.ptr, dtype: self.dtype }
    }
}

/// What is done to a tile of sums before it is stored: `activation(sum + bias) + residual`, or the same of values and their gates.
#[derive(Clone, Copy)]
pub(crate) struct Finish {
    /// One for each column, or none.
    pub(crate) bias: Option<*const f32>,
    pub(crate) activation: Option<Unary>,
    /// First row, and elements from one row to the next.
    pub(crate) residual: Option<(Src, usize)>,
    /// First row, and elements from one row to the next.
    pub(crate) out: (Dst, usize),
    /// The tile has 16 columns of values, then their gates.
    pub(crate) gated: bool,
    /// Whole tiles go past the caches, where the machine can: the rows are then whole cache lines.
    pub(crate) streamed: bool,
}

/// The endings of a whole tile that networks use: its result, and what is added to it, are narrow (bf16) or wide (f32).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Ending {
    Narrow,
    NarrowPlusNarrow,
    NarrowPlusWide,
    Wide,
    WidePlusWide,
    /// Values and their gates become half as many narrow results.
    Gated,
}

impl Ending {
    /// The one with this number: constants are numbers.
    #[inline(always)]
    pub(crate) const fn of(number: u8) -> Ending {
        match number {
            0 => Ending::Narrow,
            1 => Ending::NarrowPlusNarrow,
            2 => Ending::NarrowPlusWide,
            3 => Ending::Wide,
            4 => Ending::WidePlusWide,
            _ => Ending::Gated,
        }
    }

    #[inline(always)]
    pub(crate) const fn is_wide(self) -> bool {
        matches!(self, Ending::Wide | Ending::WidePlusWide)
    }

    /// What is added.
    #[inline(always)]
    pub(crate) const fn residual(self) -> Option<DType> {
        match self {
            Ending::NarrowPlusNarrow => Some(DType::BF16),
            Ending::NarrowPlusWide | Ending::WidePlusWide => Some(DType::F32),
            Ending::Narrow | Ending::Wide | Ending::Gated => None,
        }
    }
}

impl Finish {
    /// The first row of the result and of what is added to it, and the bytes from each to the next. Where nothing is added the result stands
    /// for it.
    #[inline(always)]
    pub(crate) fn places(&self) -> (*mut u8, *const u8, [usize; 2]) {
        let (out, stride) = self.out;
        let (residual, residual_stride) = self.residual.unwrap_or((out.src(), stride));
        let bytes = |dtype: DType, stride: usize| stride * dtype.bytes() as usize;
        (out.ptr, residual.ptr, [bytes(out.dtype, stride), bytes(residual.dtype, residual_stride)])
    }

    /// If this is one of them. An activation is not part of it.
    pub(crate) fn ending(&self) -> Option<Ending> {
        match (self.out.0.dtype, self.residual.map(|(r, _)| r.dtype)) {
            (DType::BF16, None) if self.gated => Some(Ending::Gated),
            _ if self.gated => None,
            (DType::BF16, None) => Some(Ending::Narrow),
            (DType::BF16, Some(DType::BF16)) => Some(Ending::NarrowPlusNarrow),
            (DType::BF16, Some(DType::F32)) => Some(Ending::NarrowPlusWide),
            (DType::F32, None) => Some(Ending::Wide),
            (DType::F32, Some(DType::F32)) => Some(Ending::WidePlusWide),
            _ => None,
        }
    }
}

/// What a norm does to each column of its rows: `activation((x - mean) * scale + shift)`.
#[derive(Clone, Copy)]
pub(crate) struct Norm<'a> {
    pub(crate) mean: &'a [f32],
    pub(crate) scale: &'a [f32],
    pub(crate) shift: &'a [f32],
    pub(crate) activation: Option<Unary>,
}

/// Rows of scores that become weights `2^(scale (score - top))`, `top` being the largest score so far.
#[derive(Clone, Copy)]
pub(crate) struct Softmax {
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    pub(crate) scale: f32,
    /// The scores, and numbers from one row to the next. Weights in `f32` take their place.
    pub(crate) scores: (*mut f32, usize),
    /// Where weights in `bf16` go instead; each row may begin where its scores begin.
    pub(crate) weights: Option<(*mut bf16, usize)>,
    /// By row: the largest score so far, and the sum of the weights so far.
    pub(crate) tops: *mut f32,
    pub(crate) totals: *mut f32,
    /// By row: what earlier weights must be multiplied with, since the top has changed.
    pub(crate) factors: *mut f32,
}

/// One instruction set's version of every inner loop.
///
/// All of them are unsafe: the machine must have the instructions, and pointers must be good for the stated lengths.
pub(crate) struct Rows {
    /// `n` numbers of any float type to `f32`.
    pub(crate) load: unsafe fn(Src, &mut [f32]),
    /// `f32` to numbers of any float type.
    pub(crate) store: unsafe fn(&[f32], Dst),
    /// Numbers of any float type to `bf16`.
    pub(crate) to_bf16: unsafe fn(Src, &mut [bf16]),
    /// A function of each element.
    pub(crate) unary: unsafe fn(Unary, &mut [f32]),
    /// `x = (x - mean) * inverse * scale + shift`, with one mean and inverse for the row, a scale and shift for each column.
    pub(crate) normalise_row: unsafe fn(&mut [f32], f32, f32, &[f32], &[f32]),
    /// Rows through a norm whose factors are known.
    pub(crate) normalise: unsafe fn(Src, Dst, usize, &Norm),
    /// `value * gelu(gate)` of `n` values and as many gates.
    pub(crate) geglu: unsafe fn(Src, Src, usize, Dst),
    /// Sum of the elements.
    pub(crate) sum: unsafe fn(&[f32]) -> f32,
    /// Sum of the squares of `x - shift`.
    pub(crate) sum_squares: unsafe fn(&[f32], f32) -> f32,
    /// `sums += x` for each of so many rows, with room for one of them.
    pub(crate) add_rows: unsafe fn(&mut [f32], Src, usize, &mut [f32]),
    /// `sums += (x - means)^2` for each of so many rows, with room for one of them.
    pub(crate) add_squares: unsafe fn(&mut [f32], Src, usize, &[f32], &mut [f32]),
    /// `activation(sum + bias)` of `rows x columns` sums (`stride` apart, at most 32 columns), in their place.
    pub(crate) activate: unsafe fn(*mut f32, usize, usize, usize, &Finish),
    /// `sum + bias + residual` of as many into a tensor: apart from activations, since this is most of what short products cost.
    pub(crate) finish: unsafe fn(*mut f32, usize, usize, usize, &Finish),
    /// `(sum + bias) * gelu(sum + bias) + residual` of `rows` rows of values and their gates, 16 columns each, into so many columns of a tensor.
    pub(crate) gate: unsafe fn(*mut f32, usize, usize, usize, &Finish),
    /// Rows of scores to weights, each with its running maximum and total.
    pub(crate) softmax: unsafe fn(&Softmax),
    /// `x *= factor`.
    pub(crate) scale: unsafe fn(&mut [f32], f32),
    /// `n` numbers of a model file into another element type.
    pub(crate) convert: unsafe fn(Src, Dst, usize),
    /// Rows of a model file into a panel, but for its padding.
    pub(crate) panel: unsafe fn(&PanelRows, *mut u8),
    /// Whole blocks of a model file to numbers.
    pub(crate) decode: unsafe fn(Storage, &[u8], &mut [f32]),
}

/// Eight or sixteen sums side by side, so that the compiler can use vectors without changing the order of addition
/// from one instruction set to another.
const LANES: usize = 16;

pub(crate) mod body;
mod softmax;
mod stored;

pub(crate) use stored::PanelRows;

/// Compile every inner loop for one instruction set.
macro_rules! rows {
    ($name:ident, $level:expr $(, $feature:literal)?) => {
        mod $name {
            use super::*;

            rows!(@each ($level) [$($feature)?]
                load = body::load(src: Src, out: &mut [f32]);
                store = body::store(x: &[f32], dst: Dst);
                to_bf16 = body::load_bf16(src: Src, out: &mut [bf16]);
                unary = body::unary(function: Unary, x: &mut [f32]);
                normalise_row = body::normalise_row(
                    x: &mut [f32], mean: f32, inverse: f32, scale: &[f32], shift: &[f32]
                );
                normalise = body::normalise(x: Src, out: Dst, count: usize, norm: &Norm);
                geglu = body::geglu(values: Src, gates: Src, n: usize, out: Dst);
                sum = body::sum(x: &[f32]) -> f32;
                sum_squares = body::sum_squares(x: &[f32], shift: f32) -> f32;
                add_rows = body::add_rows(sums: &mut [f32], x: Src, count: usize, room: &mut [f32]);
                add_squares = body::add_squares(
                    sums: &mut [f32], x: Src, count: usize, means: &[f32], room: &mut [f32]
                );
                activate = body::activate(c: *mut f32, stride: usize, rows: usize, columns: usize, f: &Finish);
                finish = body::finish(c: *mut f32, stride: usize, rows: usize, columns: usize, f: &Finish);
                gate = body::gate(c: *mut f32, stride: usize, rows: usize, columns: usize, f: &Finish);
                softmax = softmax::softmax(s: &Softmax);
                scale = body::scale(x: &mut [f32], factor: f32);
                convert = stored::convert(src: Src, dst: Dst, n: usize);
                panel = stored::panel(rows: &PanelRows, panel: *mut u8);
                decode = stored::decode(storage: Storage, bytes: &[u8], out: &mut [f32]);
            );
        }
    };
    (@each $level:tt $feature:tt
        $($name:ident = $module:ident::$body:ident($($arg:ident: $ty:ty),*) $(-> $ret:ty)?;)*) => {
        $(rows!(@one $level $feature $name $module $body ($($arg: $ty),*) ($($ret)?));)*
        pub(super) static TABLE: Rows = Rows { $($name),* };
    };
    (@one ($level:expr) [$($feature:literal)?] $name:ident $module:ident $body:ident ($($arg:ident: $ty:ty),*) ($($ret:ty)?)) => {
        $(#[target_feature(enable = $feature)])?
        unsafe fn $name($($arg: $ty),*) $(-> $ret)? {
            // SAFETY: the caller's.
            unsafe { $module::$body::<{ $level }>($($arg),*) }
        }
    };
}

#[cfg(not(target_arch = "aarch64"))]
rows!(portable, PLAIN);
#[cfg(target_arch = "aarch64")]
rows!(portable, FUSED);
#[cfg(target_arch = "x86_64")]
rows!(avx2, FUSED, "avx2,fma,f16c");
#[cfg(target_arch = "x86_64")]
rows!(avx512, AVX512, "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c");
#[cfg(target_arch = "x86_64")]
rows!(avx512bf16, AVX512_BF16, "avx512bf16,avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c");

impl Rows {
    /// The table of an instruction path.
    pub(crate) fn of(isa: Isa) -> &'static Rows {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Amx | Isa::Avx512Bf16 => &avx512bf16::TABLE,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => &avx512::TABLE,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => &avx2::TABLE,
            _ => &portable::TABLE,
        }
    }
}
