//! The inner loops over rows of numbers: conversion between element types, epilogues, softmax, sums.
//!
//! Each is written once as plain Rust and compiled once for each instruction set; [`Rows`] is the table of one
//! set's versions. All arithmetic is in `f32`.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use impasto_graph::{DType, Unary};

use super::math::{self, FUSED, PLAIN};
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
}

/// What is done to a tile of sums before it is stored: `activation(sum + bias) + residual`.
#[derive(Clone, Copy)]
pub(crate) struct Finish {
    /// One for each column, or none.
    pub(crate) bias: Option<*const f32>,
    pub(crate) activation: Option<Unary>,
    /// First row, and elements from one row to the next.
    pub(crate) residual: Option<(Src, usize)>,
    /// First row, and elements from one row to the next.
    pub(crate) out: (Dst, usize),
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
    /// `n` numbers of any float type to `bf16`, in groups of 32 that are so many bytes apart, the last one filled with
    /// zeros: a row of matrix tiles.
    pub(crate) to_tiles: unsafe fn(Src, usize, *mut u8, usize),
    /// A function of each element.
    pub(crate) unary: unsafe fn(Unary, &mut [f32]),
    /// `x = x * scale + shift`, element by element.
    pub(crate) scale_shift: unsafe fn(&mut [f32], &[f32], &[f32]),
    /// `value * gelu(gate)`, into `value`.
    pub(crate) geglu: unsafe fn(&mut [f32], &[f32]),
    /// Sum of the elements.
    pub(crate) sum: unsafe fn(&[f32]) -> f32,
    /// Sum of the squares of `x - shift`.
    pub(crate) sum_squares: unsafe fn(&[f32], f32) -> f32,
    /// `sums += x`.
    pub(crate) add_to: unsafe fn(&mut [f32], &[f32]),
    /// `sums += (x - means)^2`.
    pub(crate) add_squares_to: unsafe fn(&mut [f32], &[f32], &[f32]),
    /// `rows x columns` sums (`stride` apart) through their epilogue into a tensor.
    pub(crate) finish: unsafe fn(*mut f32, usize, usize, usize, &Finish),
    /// One row of scores to weights: `2^(scale x - max)`; returns the new maximum (scaled) and the sum. The first
    /// argument holds the scores, the second is where the weights go, as `f32` or `bf16`.
    pub(crate) softmax: unsafe fn(&mut [f32], Option<&mut [bf16]>, f32, f32) -> (f32, f32),
    /// `x *= factor`.
    pub(crate) scale: unsafe fn(&mut [f32], f32),
}

/// Eight or sixteen sums side by side, so that the compiler can use vectors without changing the order of addition
/// from one instruction set to another.
const LANES: usize = 16;

mod body {
    use super::*;

    #[inline(always)]
    unsafe fn slice<'a, T>(ptr: *const u8, n: usize) -> &'a [T] {
        // SAFETY: the caller vouches for `n` elements, and tensors are aligned for their type.
        unsafe { std::slice::from_raw_parts(ptr.cast(), n) }
    }

    #[inline(always)]
    unsafe fn slice_mut<'a, T>(ptr: *mut u8, n: usize) -> &'a mut [T] {
        // SAFETY: as above, and nobody else touches them.
        unsafe { std::slice::from_raw_parts_mut(ptr.cast(), n) }
    }

    #[inline(always)]
    fn from_bf16(x: u16) -> f32 {
        f32::from_bits((x as u32) << 16)
    }

    /// Rounded to the nearest, ties to even; a NaN stays a NaN.
    #[inline(always)]
    fn to_bf16(x: f32) -> u16 {
        let bits = x.to_bits();
        let rounded = (bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16) as u16;
        if x.is_nan() { ((bits >> 16) | 0x40) as u16 } else { rounded }
    }

    /// Convert a whole row, by the machine's own instruction where it has one.
    #[inline(always)]
    fn round_row<const L: u8>(x: &[f32], out: &mut [u16]) {
        #[cfg(target_arch = "x86_64")]
        if L >= AVX512_BF16 {
            // SAFETY: this level is compiled for machines with these instructions; both slices have 16 numbers more.
            unsafe {
                use std::arch::x86_64::*;
                let whole = x.len().min(out.len()) / 16 * 16;
                for i in (0..whole).step_by(16) {
                    let rounded = _mm512_cvtneps_pbh(_mm512_loadu_ps(x.as_ptr().add(i)));
                    out.as_mut_ptr().add(i).cast::<__m256bh>().write_unaligned(rounded);
                }
                out[whole..].iter_mut().zip(&x[whole..]).for_each(|(o, &x)| *o = to_bf16(x));
            }
            return;
        }
        out.iter_mut().zip(x).for_each(|(o, &x)| *o = to_bf16(x));
    }

    #[inline(always)]
    pub(super) unsafe fn load<const L: u8>(src: Src, out: &mut [f32]) {
        let n = out.len();
        // SAFETY: the caller vouches for `n` elements.
        unsafe {
            match src.dtype {
                DType::F32 => out.copy_from_slice(slice(src.ptr, n)),
                DType::BF16 => out.iter_mut().zip(slice::<u16>(src.ptr, n)).for_each(|(o, &x)| *o = from_bf16(x)),
                DType::F16 => slice::<f16>(src.ptr, n).convert_to_f32_slice(out),
                DType::I32 => out.iter_mut().zip(slice::<i32>(src.ptr, n)).for_each(|(o, &x)| *o = x as f32),
            }
        }
    }

    #[inline(always)]
    pub(super) unsafe fn store<const L: u8>(x: &[f32], dst: Dst) {
        let n = x.len();
        // SAFETY: the caller vouches for `n` elements.
        unsafe {
            match dst.dtype {
                DType::F32 => slice_mut(dst.ptr, n).copy_from_slice(x),
                DType::BF16 => round_row::<L>(x, slice_mut(dst.ptr, n)),
                DType::F16 => slice_mut::<f16>(dst.ptr, n).convert_from_f32_slice(x),
                DType::I32 => slice_mut::<i32>(dst.ptr, n).iter_mut().zip(x).for_each(|(o, &x)| *o = x as i32),
            }
        }
    }

    #[inline(always)]
    pub(super) unsafe fn load_bf16<const L: u8>(src: Src, out: &mut [bf16]) {
        let n = out.len();
        // SAFETY: the caller vouches for `n` elements; a bf16 is a u16.
        unsafe {
            match src.dtype {
                DType::BF16 => out.copy_from_slice(slice(src.ptr, n)),
                DType::F32 => round_row::<L>(slice(src.ptr, n), slice_mut(out.as_mut_ptr().cast(), n)),
                _ => {
                    let mut buffer = [0.0; 256];
                    for (i, part) in out.chunks_mut(256).enumerate() {
                        load::<L>(src.at(256 * i), &mut buffer[..part.len()]);
                        round_row::<L>(&buffer[..part.len()], slice_mut(part.as_mut_ptr().cast(), part.len()));
                    }
                }
            }
        }
    }

    #[inline(always)]
    pub(super) unsafe fn to_tiles<const L: u8>(src: Src, n: usize, to: *mut u8, step: usize) {
        // SAFETY: the caller vouches for `n` numbers and as many groups of 64 bytes.
        unsafe {
            for (i, at) in (0..n).step_by(32).enumerate() {
                let group = slice_mut::<bf16>(to.add(i * step), 32);
                if at + 32 <= n {
                    load_bf16::<L>(src.at(at), group);
                } else {
                    group.fill(bf16::ZERO);
                    load_bf16::<L>(src.at(at), &mut group[..n - at]);
                }
            }
        }
    }

    #[inline(always)]
    pub(super) unsafe fn unary<const L: u8>(function: Unary, x: &mut [f32]) {
        math::unary::<L>(function, x);
    }

    #[inline(always)]
    pub(super) unsafe fn scale_shift<const L: u8>(x: &mut [f32], scale: &[f32], shift: &[f32]) {
        for ((x, &a), &b) in x.iter_mut().zip(scale).zip(shift) {
            *x = math::fma::<L>(*x, a, b);
        }
    }

    #[inline(always)]
    pub(super) unsafe fn geglu<const L: u8>(value: &mut [f32], gate: &[f32]) {
        for (v, &g) in value.iter_mut().zip(gate) {
            *v *= math::gelu::<L>(g);
        }
    }

    /// Lane sums of `f(x)`, added up in a fixed order.
    #[inline(always)]
    fn reduce(x: &[f32], f: impl Fn(f32, f32) -> f32) -> f32 {
        let mut lanes = [0.0f32; LANES];
        let chunks = x.chunks_exact(LANES);
        for (lane, &v) in lanes.iter_mut().zip(chunks.remainder()) {
            *lane = f(*lane, v);
        }
        for chunk in chunks {
            for i in 0..LANES {
                lanes[i] = f(lanes[i], chunk[i]);
            }
        }
        lanes.iter().sum()
    }

    #[inline(always)]
    pub(super) unsafe fn sum<const L: u8>(x: &[f32]) -> f32 {
        reduce(x, |sum, v| sum + v)
    }

    #[inline(always)]
    pub(super) unsafe fn sum_squares<const L: u8>(x: &[f32], shift: f32) -> f32 {
        reduce(x, |sum, v| math::fma::<L>(v - shift, v - shift, sum))
    }

    #[inline(always)]
    pub(super) unsafe fn add_to<const L: u8>(sums: &mut [f32], x: &[f32]) {
        for (s, &v) in sums.iter_mut().zip(x) {
            *s += v;
        }
    }

    #[inline(always)]
    pub(super) unsafe fn add_squares_to<const L: u8>(sums: &mut [f32], x: &[f32], means: &[f32]) {
        for ((s, &v), &m) in sums.iter_mut().zip(x).zip(means) {
            *s = math::fma::<L>(v - m, v - m, *s);
        }
    }

    #[inline(always)]
    pub(super) unsafe fn finish<const L: u8>(c: *mut f32, stride: usize, rows: usize, columns: usize, f: &Finish) {
        // SAFETY: the caller vouches for `rows x columns` sums and the same of residual and result.
        unsafe {
            let bias = f.bias.map(|b| std::slice::from_raw_parts(b, columns));
            for row in 0..rows {
                let c = std::slice::from_raw_parts_mut(c.add(row * stride), columns);
                if let Some(bias) = bias {
                    add_to::<L>(c, bias);
                }
                if let Some(activation) = f.activation {
                    unary::<L>(activation, c);
                }
                let out = f.out.0.at(row * f.out.1);
                let Some((residual, stride)) = f.residual else {
                    store::<L>(c, out);
                    continue;
                };
                let residual = residual.at(row * stride);
                match residual.dtype {
                    DType::F32 => add_to::<L>(c, slice(residual.ptr, columns)),
                    DType::BF16 => {
                        let r = slice::<u16>(residual.ptr, columns);
                        c.iter_mut().zip(r).for_each(|(c, &r)| *c += from_bf16(r));
                    }
                    _ => {
                        let mut buffer = [0.0; 64];
                        for (i, part) in c.chunks_mut(64).enumerate() {
                            load::<L>(residual.at(64 * i), &mut buffer[..part.len()]);
                            add_to::<L>(part, &buffer);
                        }
                    }
                }
                store::<L>(c, out);
            }
        }
    }

    #[inline(always)]
    pub(super) unsafe fn softmax<const L: u8>(
        x: &mut [f32],
        out: Option<&mut [bf16]>,
        scale: f32,
        old: f32,
    ) -> (f32, f32) {
        #[cfg(target_arch = "x86_64")]
        if L >= AVX512 {
            // SAFETY: this level is compiled for machines with these instructions.
            return unsafe { softmax_avx512::<L>(x, out, scale, old) };
        }
        let mut lanes = [f32::NEG_INFINITY; LANES];
        let chunks = x.chunks_exact(LANES);
        for (lane, &v) in lanes.iter_mut().zip(chunks.remainder()) {
            *lane = math::max(*lane, v);
        }
        for chunk in chunks {
            for i in 0..LANES {
                lanes[i] = math::max(lanes[i], chunk[i]);
            }
        }
        let largest = lanes.into_iter().fold(f32::NEG_INFINITY, math::max) * scale;
        let top = if largest > old { largest } else { old };
        // A row that sees nothing (or only -inf) has no largest score; any finite number will do.
        let shift = if top == f32::NEG_INFINITY { 0.0 } else { top };
        for v in x.iter_mut() {
            *v = math::exp2::<L>(math::fma::<L>(*v, scale, -shift));
        }
        let total = reduce(x, |sum, v| sum + v);
        if let Some(out) = out {
            out.iter_mut().zip(x.iter()).for_each(|(o, &x)| *o = bf16::from_bits(to_bf16(x)));
        }
        (top, total)
    }

    /// The same by hand: attention spends most of its time here. Weights that are stored as bf16 need a polynomial of
    /// lower degree: its error of 3e-6 is far below their rounding.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn softmax_avx512<const L: u8>(x: &mut [f32], out: Option<&mut [bf16]>, scale: f32, old: f32) -> (f32, f32) {
        use std::arch::x86_64::*;
        let whole = x.len() / 16 * 16;
        // SAFETY: the caller's level; offsets stay below the length, the rest is masked.
        unsafe {
            let rest = ((1u32 << (x.len() - whole)) - 1) as __mmask16;
            let none = _mm512_set1_ps(f32::NEG_INFINITY);
            let p = x.as_mut_ptr();
            let mut tops = [_mm512_mask_loadu_ps(none, rest, p.add(whole)), none, none, none];
            let mut i = 0;
            while i + 64 <= whole {
                for (j, top) in tops.iter_mut().enumerate() {
                    *top = _mm512_max_ps(*top, _mm512_loadu_ps(p.add(i + 16 * j)));
                }
                i += 64;
            }
            while i < whole {
                tops[1] = _mm512_max_ps(tops[1], _mm512_loadu_ps(p.add(i)));
                i += 16;
            }
            let pairs = [_mm512_max_ps(tops[0], tops[1]), _mm512_max_ps(tops[2], tops[3])];
            let largest = _mm512_reduce_max_ps(_mm512_max_ps(pairs[0], pairs[1])) * scale;
            let top = if largest > old { largest } else { old };
            let shift = _mm512_set1_ps(if top == f32::NEG_INFINITY { 0.0 } else { -top });
            let factor = _mm512_set1_ps(scale);
            let constant = |c: f32| _mm512_set1_ps(c);
            let narrow = out.is_some();
            let weight = |v: __m512| {
                let t = _mm512_fmadd_ps(v, factor, shift);
                let n = _mm512_roundscale_ps::<0x08>(t);
                let f = _mm512_sub_ps(t, n);
                let mut w;
                if narrow {
                    w = _mm512_fmadd_ps(constant(9.582_8e-3), f, constant(5.590_643e-2));
                    w = _mm512_fmadd_ps(w, f, constant(2.402_41e-1));
                } else {
                    w = _mm512_fmadd_ps(constant(1.540_353e-4), f, constant(1.333_355_8e-3));
                    w = _mm512_fmadd_ps(w, f, constant(9.618_129e-3));
                    w = _mm512_fmadd_ps(w, f, constant(5.550_410_9e-2));
                    w = _mm512_fmadd_ps(w, f, constant(2.402_265e-1));
                }
                w = _mm512_fmadd_ps(w, f, constant(if narrow { 6.931_242e-1 } else { 6.931_472e-1 }));
                w = _mm512_fmadd_ps(w, f, constant(1.0));
                _mm512_scalef_ps(w, n)
            };
            let mut sums = [_mm512_setzero_ps(); 2];
            let to = out.map_or(std::ptr::null_mut(), |o| o.as_mut_ptr().cast::<u16>());
            for i in (0..x.len()).step_by(16) {
                let mask = if i < whole { 0xffff } else { rest };
                let w = weight(_mm512_maskz_loadu_ps(mask, p.add(i)));
                sums[(i / 16) & 1] = _mm512_mask_add_ps(sums[(i / 16) & 1], mask, sums[(i / 16) & 1], w);
                if !narrow {
                    _mm512_mask_storeu_ps(p.add(i), mask, w);
                } else if L >= AVX512_BF16 {
                    let rounded = std::mem::transmute::<__m256bh, __m256i>(_mm512_cvtneps_pbh(w));
                    _mm256_mask_storeu_epi16(to.add(i).cast(), mask, rounded);
                } else {
                    // Weights are finite and not negative: rounding is an addition.
                    let bits = _mm512_castps_si512(w);
                    let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
                    let sum = _mm512_add_epi32(_mm512_add_epi32(bits, odd), _mm512_set1_epi32(0x7fff));
                    let rounded = _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(sum));
                    _mm256_mask_storeu_epi16(to.add(i).cast(), mask, rounded);
                }
            }
            (top, _mm512_reduce_add_ps(_mm512_add_ps(sums[0], sums[1])))
        }
    }

    #[inline(always)]
    pub(super) unsafe fn scale<const L: u8>(x: &mut [f32], factor: f32) {
        for v in x {
            *v *= factor;
        }
    }
}

/// Compile every inner loop for one instruction set.
macro_rules! rows {
    ($name:ident, $level:expr $(, $feature:literal)?) => {
        mod $name {
            use super::*;

            rows!(@each ($level) [$($feature)?]
                load = load(src: Src, out: &mut [f32]);
                store = store(x: &[f32], dst: Dst);
                to_bf16 = load_bf16(src: Src, out: &mut [bf16]);
                to_tiles = to_tiles(src: Src, n: usize, to: *mut u8, step: usize);
                unary = unary(function: Unary, x: &mut [f32]);
                scale_shift = scale_shift(x: &mut [f32], scale: &[f32], shift: &[f32]);
                geglu = geglu(value: &mut [f32], gate: &[f32]);
                sum = sum(x: &[f32]) -> f32;
                sum_squares = sum_squares(x: &[f32], shift: f32) -> f32;
                add_to = add_to(sums: &mut [f32], x: &[f32]);
                add_squares_to = add_squares_to(sums: &mut [f32], x: &[f32], means: &[f32]);
                finish = finish(c: *mut f32, stride: usize, rows: usize, columns: usize, f: &Finish);
                softmax = softmax(x: &mut [f32], out: Option<&mut [bf16]>, scale: f32, old: f32) -> (f32, f32);
                scale = scale(x: &mut [f32], factor: f32);
            );
        }
    };
    (@each $level:tt $feature:tt
        $($name:ident = $body:ident($($arg:ident: $ty:ty),*) $(-> $ret:ty)?;)*) => {
        $(rows!(@one $level $feature $name $body ($($arg: $ty),*) ($($ret)?));)*
        pub(super) static TABLE: Rows = Rows { $($name),* };
    };
    (@one ($level:expr) [$($feature:literal)?] $name:ident $body:ident ($($arg:ident: $ty:ty),*) ($($ret:ty)?)) => {
        $(#[target_feature(enable = $feature)])?
        unsafe fn $name($($arg: $ty),*) $(-> $ret)? {
            // SAFETY: the caller's.
            unsafe { body::$body::<{ $level }>($($arg),*) }
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
    pub(crate) fn of(isa: super::Isa) -> &'static Rows {
        use super::Isa;
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
