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

    /// The same row, to be read.
    #[inline(always)]
    pub(crate) fn src(self) -> Src {
        Src { ptr: self.ptr, dtype: self.dtype }
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
    /// `x = x * scale + shift`, element by element.
    pub(crate) scale_shift: unsafe fn(&mut [f32], &[f32], &[f32]),
    /// `x = (x - mean) * scale + shift`, element by element.
    pub(crate) normalise: unsafe fn(&mut [f32], &[f32], &[f32], &[f32]),
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
    /// `rows x columns` sums (`stride` apart, at most 32 columns) through their epilogue into a tensor.
    pub(crate) finish: unsafe fn(*mut f32, usize, usize, usize, &Finish),
    /// Rows of scores to weights, each with its running maximum and total.
    pub(crate) softmax: unsafe fn(&Softmax),
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
    pub(super) unsafe fn normalise<const L: u8>(x: &mut [f32], mean: &[f32], scale: &[f32], shift: &[f32]) {
        for (((x, &m), &a), &b) in x.iter_mut().zip(mean).zip(scale).zip(shift) {
            *x = math::fma::<L>(*x - m, a, b);
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
            let mut bias = f.bias;
            if let Some(activation) = f.activation {
                for row in 0..rows {
                    let c = std::slice::from_raw_parts_mut(c.add(row * stride), columns);
                    if let Some(bias) = f.bias {
                        add_to::<L>(c, std::slice::from_raw_parts(bias, columns));
                    }
                    unary::<L>(activation, c);
                }
                bias = None;
            }
            let types = (f.out.0.dtype, f.residual.map(|(r, _)| r.dtype));
            match types {
                // The types that networks use, in rows of a known length.
                (DType::BF16, None) if columns == WIDE => finish_wide::<L, true, 0>(c, stride, rows, bias, f),
                (DType::BF16, Some(DType::BF16)) if columns == WIDE => {
                    finish_wide::<L, true, 2>(c, stride, rows, bias, f)
                }
                (DType::BF16, Some(DType::F32)) if columns == WIDE => {
                    finish_wide::<L, true, 1>(c, stride, rows, bias, f)
                }
                (DType::F32, None) if columns == WIDE => finish_wide::<L, false, 0>(c, stride, rows, bias, f),
                (DType::F32, Some(DType::F32)) if columns == WIDE => {
                    finish_wide::<L, false, 1>(c, stride, rows, bias, f)
                }
                _ => finish_any::<L>(c, stride, rows, columns, bias, f),
            }
        }
    }

    /// Columns of a whole tile.
    const WIDE: usize = 32;

    /// A whole tile. `NARROW`: the result is bf16, else f32. `RESIDUAL`: 0 none, 1 f32, 2 bf16.
    #[inline(always)]
    unsafe fn finish_wide<const L: u8, const NARROW: bool, const RESIDUAL: u8>(
        c: *mut f32,
        stride: usize,
        rows: usize,
        bias: Option<*const f32>,
        f: &Finish,
    ) {
        // SAFETY: the caller's.
        unsafe {
            let bias = bias.map_or([0.0; WIDE], |b| b.cast::<[f32; WIDE]>().read());
            let (out, out_stride) = f.out;
            let (residual, residual_stride) = f.residual.unwrap_or((out.src(), 0));
            for row in 0..rows {
                let mut v = c.add(row * stride).cast::<[f32; WIDE]>().read();
                for i in 0..WIDE {
                    v[i] += bias[i];
                }
                if RESIDUAL == 1 {
                    let r = residual.ptr.cast::<f32>().add(row * residual_stride).cast::<[f32; WIDE]>().read();
                    for i in 0..WIDE {
                        v[i] += r[i];
                    }
                } else if RESIDUAL == 2 {
                    let r = residual.ptr.cast::<u16>().add(row * residual_stride).cast::<[u16; WIDE]>().read();
                    for i in 0..WIDE {
                        v[i] += from_bf16(r[i]);
                    }
                }
                if NARROW {
                    let mut narrow = [0; WIDE];
                    round_row::<L>(&v, &mut narrow);
                    out.ptr.cast::<u16>().add(row * out_stride).cast::<[u16; WIDE]>().write(narrow);
                } else {
                    out.ptr.cast::<f32>().add(row * out_stride).cast::<[f32; WIDE]>().write(v);
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn finish_any<const L: u8>(
        c: *mut f32,
        stride: usize,
        rows: usize,
        columns: usize,
        bias: Option<*const f32>,
        f: &Finish,
    ) {
        // SAFETY: the caller's.
        unsafe {
            let mut buffer = [0.0; WIDE];
            for row in 0..rows {
                let c = std::slice::from_raw_parts_mut(c.add(row * stride), columns);
                if let Some(bias) = bias {
                    add_to::<L>(c, std::slice::from_raw_parts(bias, columns));
                }
                if let Some((residual, stride)) = f.residual {
                    load::<L>(residual.at(row * stride), &mut buffer[..columns]);
                    add_to::<L>(c, &buffer);
                }
                store::<L>(c, f.out.0.at(row * f.out.1));
            }
        }
    }

    /// A row's new top and the factor for what was summed under the old one.
    #[inline(always)]
    fn raise<const L: u8>(old: f32, largest: f32, scale: f32) -> (f32, f32) {
        // Not `>`: a NaN must come through.
        let top = if largest <= old { old } else { largest };
        let stays = top == old || old == f32::NEG_INFINITY;
        // Both products are rounded as they are where weights are computed: the errors cancel.
        (top, if stays { 1.0 } else { math::exp2::<L>(old * scale - top * scale) })
    }

    /// What is subtracted from scores: a row that has seen nothing but -inf has no top, any finite number will do.
    #[inline(always)]
    fn shift(top: f32) -> f32 {
        if top == f32::NEG_INFINITY { 0.0 } else { top }
    }

    #[inline(always)]
    pub(super) unsafe fn softmax<const L: u8>(s: &Softmax) {
        #[cfg(target_arch = "x86_64")]
        if L >= AVX512 {
            // SAFETY: this level is compiled for machines with these instructions.
            return unsafe { avx512_softmax::<L>(s) };
        }
        for row in 0..s.rows {
            // SAFETY: the caller vouches for the rows.
            unsafe {
                let x = std::slice::from_raw_parts_mut(s.scores.0.add(row * s.scores.1), s.columns);
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
                let largest = lanes.into_iter().fold(f32::NEG_INFINITY, math::max);
                let (top, factor) = raise::<L>(*s.tops.add(row), largest, s.scale);
                for v in x.iter_mut() {
                    *v = math::exp2::<L>((*v - shift(top)) * s.scale);
                }
                *s.tops.add(row) = top;
                *s.factors.add(row) = factor;
                *s.totals.add(row) = *s.totals.add(row) * factor + reduce(x, |sum, v| sum + v);
                if let Some((weights, stride)) = s.weights {
                    // Weights may lie where scores were: never ahead of those that are still to be read.
                    let (from, to) = (x.as_ptr(), weights.add(row * stride));
                    for i in 0..s.columns {
                        to.add(i).write(bf16::from_bits(to_bf16(from.add(i).read())));
                    }
                }
            }
        }
    }

    /// The same by hand, four rows at a time: attention spends most of its time here, and one row alone waits for its
    /// own maximum and sum.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn avx512_softmax<const L: u8>(s: &Softmax) {
        // SAFETY: the caller's.
        unsafe {
            let whole = s.rows / 4 * 4;
            for row in (0..whole).step_by(4) {
                avx512_softmax_rows::<L, 4>(s, row);
            }
            for row in whole..s.rows {
                avx512_softmax_rows::<L, 1>(s, row);
            }
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn avx512_softmax_rows<const L: u8, const R: usize>(s: &Softmax, row: usize) {
        use std::arch::x86_64::*;
        let whole = s.columns / 16 * 16;
        let rest = ((1u32 << (s.columns - whole)) - 1) as __mmask16;
        // SAFETY: offsets stay inside the rows, what is beyond them is masked.
        unsafe {
            let scores = |r: usize| s.scores.0.add((row + r) * s.scores.1);
            let mut tops = [_mm512_set1_ps(f32::NEG_INFINITY); R];
            for i in (0..whole).step_by(16) {
                for (r, top) in tops.iter_mut().enumerate() {
                    *top = _mm512_max_ps(*top, _mm512_loadu_ps(scores(r).add(i)));
                }
            }
            let mut factors = [1.0; R];
            let mut shifts = [_mm512_setzero_ps(); R];
            for r in 0..R {
                let last = _mm512_mask_loadu_ps(tops[r], rest, scores(r).add(whole));
                let largest = _mm512_reduce_max_ps(_mm512_max_ps(tops[r], last));
                let (top, factor) = raise::<L>(*s.tops.add(row + r), largest, s.scale);
                *s.tops.add(row + r) = top;
                *s.factors.add(row + r) = factor;
                factors[r] = factor;
                shifts[r] = _mm512_set1_ps(-shift(top) * s.scale);
            }
            let scale = _mm512_set1_ps(s.scale);
            let mut sums = [_mm512_setzero_ps(); R];
            match s.weights {
                None => {
                    for i in (0..whole).step_by(16) {
                        for r in 0..R {
                            let w = avx512_exp2::<false>(_mm512_fmadd_ps(
                                _mm512_loadu_ps(scores(r).add(i)),
                                scale,
                                shifts[r],
                            ));
                            sums[r] = _mm512_add_ps(sums[r], w);
                            _mm512_storeu_ps(scores(r).add(i), w);
                        }
                    }
                    for r in 0..R {
                        let last = _mm512_maskz_loadu_ps(rest, scores(r).add(whole));
                        let w = avx512_exp2::<false>(_mm512_fmadd_ps(last, scale, shifts[r]));
                        sums[r] = _mm512_mask_add_ps(sums[r], rest, sums[r], w);
                        _mm512_mask_storeu_ps(scores(r).add(whole), rest, w);
                    }
                }
                Some((weights, stride)) => {
                    let weights = |r: usize| weights.add((row + r) * stride);
                    for i in (0..whole).step_by(16) {
                        for r in 0..R {
                            let w = avx512_exp2::<true>(_mm512_fmadd_ps(
                                _mm512_loadu_ps(scores(r).add(i)),
                                scale,
                                shifts[r],
                            ));
                            sums[r] = _mm512_add_ps(sums[r], w);
                            _mm256_storeu_si256(weights(r).add(i).cast(), avx512_round::<L>(w));
                        }
                    }
                    for r in 0..R {
                        let last = _mm512_maskz_loadu_ps(rest, scores(r).add(whole));
                        let w = avx512_exp2::<true>(_mm512_fmadd_ps(last, scale, shifts[r]));
                        sums[r] = _mm512_mask_add_ps(sums[r], rest, sums[r], w);
                        _mm256_mask_storeu_epi16(weights(r).add(whole).cast(), rest, avx512_round::<L>(w));
                    }
                }
            }
            for r in 0..R {
                let total = s.totals.add(row + r);
                *total = *total * factors[r] + _mm512_reduce_add_ps(sums[r]);
            }
        }
    }

    /// 2 to the power t. `NARROW`: the result becomes a bf16, for which a polynomial of lower degree (error 3e-6) will do.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn avx512_exp2<const NARROW: bool>(t: std::arch::x86_64::__m512) -> std::arch::x86_64::__m512 {
        use std::arch::x86_64::*;
        // SAFETY: callers are compiled for these instructions.
        unsafe {
            let n = _mm512_roundscale_ps::<0x08>(t);
            let f = _mm512_sub_ps(t, n);
            let term = |w, c: f32| _mm512_fmadd_ps(w, f, _mm512_set1_ps(c));
            let w = match NARROW {
                true => term(term(term(_mm512_set1_ps(9.582_8e-3), 5.590_643e-2), 2.402_41e-1), 6.931_242e-1),
                false => {
                    let w = term(term(_mm512_set1_ps(1.540_353e-4), 1.333_355_8e-3), 9.618_129e-3);
                    term(term(term(w, 5.550_410_9e-2), 2.402_265e-1), 6.931_472e-1)
                }
            };
            _mm512_scalef_ps(term(w, 1.0), n)
        }
    }

    /// 16 weights to bf16. They are finite and not negative, so that rounding is an addition.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn avx512_round<const L: u8>(w: std::arch::x86_64::__m512) -> std::arch::x86_64::__m256i {
        use std::arch::x86_64::*;
        // SAFETY: callers are compiled for these instructions.
        unsafe {
            if L >= AVX512_BF16 {
                return std::mem::transmute::<__m256bh, __m256i>(_mm512_cvtneps_pbh(w));
            }
            let bits = _mm512_castps_si512(w);
            let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
            let sum = _mm512_add_epi32(_mm512_add_epi32(bits, odd), _mm512_set1_epi32(0x7fff));
            _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(sum))
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
                unary = unary(function: Unary, x: &mut [f32]);
                scale_shift = scale_shift(x: &mut [f32], scale: &[f32], shift: &[f32]);
                normalise = normalise(x: &mut [f32], mean: &[f32], scale: &[f32], shift: &[f32]);
                geglu = geglu(value: &mut [f32], gate: &[f32]);
                sum = sum(x: &[f32]) -> f32;
                sum_squares = sum_squares(x: &[f32], shift: f32) -> f32;
                add_to = add_to(sums: &mut [f32], x: &[f32]);
                add_squares_to = add_squares_to(sums: &mut [f32], x: &[f32], means: &[f32]);
                finish = finish(c: *mut f32, stride: usize, rows: usize, columns: usize, f: &Finish);
                softmax = softmax(s: &Softmax);
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
