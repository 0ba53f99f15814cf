//! Scores to weights: where attention spends most of its time.

use half::bf16;

use super::body::{reduce, to_bf16};
use super::{LANES, Softmax};
use crate::cpu::math;
#[cfg(target_arch = "x86_64")]
use crate::cpu::math::{AVX512, AVX512_BF16};

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
#[cfg(target_arch = "x86_64")]
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
            // `exp2` does not go down to zero: a row of nothing but -inf would have weights, and a result.
            match top == f32::NEG_INFINITY {
                true => x.fill(0.0),
                false => x.iter_mut().for_each(|v| *v = math::exp2::<L>((*v - top) * s.scale)),
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
                        let w = avx512_exp2(_mm512_fmadd_ps(_mm512_loadu_ps(scores(r).add(i)), scale, shifts[r]));
                        sums[r] = _mm512_add_ps(sums[r], w);
                        _mm512_storeu_ps(scores(r).add(i), w);
                    }
                }
                for r in 0..R {
                    let last = _mm512_maskz_loadu_ps(rest, scores(r).add(whole));
                    let w = avx512_exp2(_mm512_fmadd_ps(last, scale, shifts[r]));
                    sums[r] = _mm512_mask_add_ps(sums[r], rest, sums[r], w);
                    _mm512_mask_storeu_ps(scores(r).add(whole), rest, w);
                }
            }
            Some((weights, stride)) => {
                let weights = |r: usize| weights.add((row + r) * stride);
                for i in (0..whole).step_by(16) {
                    for r in 0..R {
                        let w = narrow_exp2(_mm512_fmadd_ps(_mm512_loadu_ps(scores(r).add(i)), scale, shifts[r]));
                        sums[r] = _mm512_add_ps(sums[r], w);
                        _mm256_storeu_si256(weights(r).add(i).cast(), avx512_round::<L>(w));
                    }
                }
                for r in 0..R {
                    let last = _mm512_maskz_loadu_ps(rest, scores(r).add(whole));
                    let w = narrow_exp2(_mm512_fmadd_ps(last, scale, shifts[r]));
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

/// 2 to the power t.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn avx512_exp2(t: std::arch::x86_64::__m512) -> std::arch::x86_64::__m512 {
    use std::arch::x86_64::*;
    // SAFETY: callers are compiled for these instructions.
    unsafe {
        let n = _mm512_roundscale_ps::<0x08>(t);
        let f = _mm512_sub_ps(t, n);
        let term = |w, c: f32| _mm512_fmadd_ps(w, f, _mm512_set1_ps(c));
        let w = term(term(_mm512_set1_ps(1.540_353e-4), 1.333_355_8e-3), 9.618_129e-3);
        let w = term(term(term(w, 5.550_411e-2), 2.402_265e-1), 6.931_472e-1);
        _mm512_scalef_ps(term(w, 1.0), n)
    }
}

/// 2 to the power t for a result that becomes a bf16: the error, 1e-4, is small beside that of rounding.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn narrow_exp2(t: std::arch::x86_64::__m512) -> std::arch::x86_64::__m512 {
    use std::arch::x86_64::*;
    // SAFETY: callers are compiled for these instructions.
    unsafe {
        // What lies above the next lower integer, to which `scalef` rounds by itself.
        let f = _mm512_reduce_ps::<0x09>(t);
        let term = |w, c: f32| _mm512_fmadd_ps(w, f, _mm512_set1_ps(c));
        let w = term(term(_mm512_set1_ps(7.706_705e-2), 2.276_45e-1), 6.951_168e-1);
        _mm512_scalef_ps(term(w, 1.0), t)
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
