//! Queries, keys and values into the layouts that matrix tiles read, and results out of them.

use std::arch::x86_64::*;

use impasto_graph::DType;

use super::super::super::gemm::{PANEL, pack};
use super::super::super::rows::{Dst, Src};
use super::super::{Block, Keys};
use super::weights::key_at;
use super::{QUERIES, STRIP};

/// The first `n` of 32 numbers as bf16, the others zero.
///
/// # Safety
/// The machine has the instructions, the row has `n` numbers.
#[inline]
#[target_feature(enable = "avx512vbmi,avx512bf16,avx512dq,avx512vl")]
unsafe fn load(from: Src, n: usize) -> __m512i {
    let mask = if n < 32 { (1u32 << n) - 1 } else { u32::MAX };
    let [low, high] = [mask as u16, (mask >> 16) as u16];
    // SAFETY: what lies beyond the row is masked.
    unsafe {
        let (left, right) = match from.dtype {
            DType::BF16 => return _mm512_maskz_loadu_epi16(mask, from.ptr.cast()),
            DType::F16 => {
                let half = |mask, i| _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, from.ptr.wrapping_add(i).cast()));
                (half(low, 0), half(high, 32))
            }
            // The graph refuses attention on whole numbers.
            DType::F32 | DType::I32 => {
                let half = |mask, i| _mm512_maskz_loadu_ps(mask, from.ptr.wrapping_add(i).cast());
                (half(low, 0), half(high, 64))
            }
        };
        std::mem::transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(right, left))
    }
}

/// The first `n` of 16 numbers into a row.
///
/// # Safety
/// The machine has the instructions, the row has room for `n` numbers.
#[inline]
#[target_feature(enable = "avx512vbmi,avx512bf16,avx512dq,avx512vl")]
unsafe fn store(to: Dst, n: usize, x: __m512) {
    let mask = if n < 16 { (1u16 << n) - 1 } else { u16::MAX };
    // SAFETY: what lies beyond the row is masked.
    unsafe {
        match to.dtype {
            DType::BF16 => {
                let x = std::mem::transmute::<__m256bh, __m256i>(_mm512_cvtneps_pbh(x));
                _mm256_mask_storeu_epi16(to.ptr.cast(), mask, x);
            }
            DType::F16 => {
                let x = _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(x);
                _mm256_mask_storeu_epi16(to.ptr.cast(), mask, x);
            }
            DType::F32 | DType::I32 => _mm512_mask_storeu_ps(to.ptr.cast(), mask, x),
        }
    }
}

/// `sums` plus the squares of these bf16 numbers, two by two.
#[inline]
#[target_feature(enable = "avx512vbmi,avx512bf16,avx512dq,avx512vl")]
fn add_squares(sums: __m512, x: __m512i) -> __m512 {
    // SAFETY: the same bits.
    let x = unsafe { std::mem::transmute::<__m512i, __m512bh>(x) };
    _mm512_dpbf16_ps(sums, x, x)
}

/// Write the block's queries as rows of bf16. Their lengths squared.
///
/// # Safety
/// The machine has the instructions; `to` has room for the queries.
#[target_feature(enable = "avx512vbmi,avx512bf16,avx512dq,avx512vl")]
pub(super) unsafe fn load_queries(block: &Block, to: *mut u8) -> [__m512; 2] {
    let Block { s, q, count, .. } = *block;
    let x_bytes = q.dtype.bytes() as usize;
    let q_bytes = s.heads * s.width * x_bytes;
    let mut squares = [[_mm512_setzero_ps(); QUERIES / 2]; 2];
    // SAFETY: these rows lie inside the operand.
    unsafe {
        for (i, sum) in squares.as_flattened_mut()[..count].iter_mut().enumerate() {
            for k in (0..s.width).step_by(32) {
                let x = load(q.at(i * s.heads * s.width + k), s.width - k);
                *sum = add_squares(*sum, x);
                // The next block's queries are far away by now, and too far apart for the processor to guess them.
                _mm_prefetch::<_MM_HINT_T0>(q.ptr.wrapping_add(q_bytes * (count + i) + x_bytes * k).cast());
                _mm512_store_si512(to.add(i * block.way.query_bytes + 2 * k).cast(), x);
            }
        }
    }
    squares.map(|rows| sums_of_lanes(rows))
}

/// The sum of each vector's lanes.
#[inline]
#[target_feature(enable = "avx512vbmi,avx512bf16,avx512dq,avx512vl")]
fn sums_of_lanes(mut x: [__m512; 16]) -> __m512 {
    // Two vectors become one in each round, with half as many lanes for each row; the last two rounds are about quarters.
    for i in 0..8 {
        let (a, b) = (x[2 * i], x[2 * i + 1]);
        x[i] = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
    }
    for i in 0..4 {
        let [a, b] = [x[2 * i], x[2 * i + 1]].map(|x| _mm512_castps_pd(x));
        let [low, high] = [_mm512_unpacklo_pd(a, b), _mm512_unpackhi_pd(a, b)].map(|x| _mm512_castpd_ps(x));
        x[i] = _mm512_add_ps(low, high);
    }
    for i in 0..2 {
        let (a, b) = (x[2 * i], x[2 * i + 1]);
        x[i] = _mm512_add_ps(_mm512_shuffle_f32x4::<0b1000_1000>(a, b), _mm512_shuffle_f32x4::<0b1101_1101>(a, b));
    }
    let (a, b) = (x[0], x[1]);
    _mm512_add_ps(_mm512_shuffle_f32x4::<0b1000_1000>(a, b), _mm512_shuffle_f32x4::<0b1101_1101>(a, b))
}

/// Write rows of sums, each divided by its total, which stands behind it; rows that are `spoiled` are no numbers.
///
/// # Safety
/// The machine has the instructions; there are that many sums; nobody else writes these rows.
#[target_feature(enable = "avx512vbmi,avx512bf16,avx512dq,avx512vl")]
pub(super) unsafe fn store_results(block: &Block, sums: *const f32, spoiled: impl Fn(usize) -> bool) {
    let Block { s, way, out, count, .. } = *block;
    // SAFETY: these rows lie inside the result.
    unsafe {
        for i in 0..count {
            let sums = sums.add(i * way.sum_stride);
            let total = *sums.add(s.value_width);
            let factor = _mm512_set1_ps(if spoiled(i) { f32::NAN } else { 1.0 / total });
            for column in (0..s.value_width).step_by(PANEL) {
                let x = _mm512_mul_ps(_mm512_load_ps(sums.add(column)), factor);
                store(out.at(i * s.heads * s.value_width + column), s.value_width - column, x);
            }
        }
    }
}

/// Pack a range of a head's keys and values. Values stand in the order of `key_at`, and behind them a column of ones, whose sums are the
/// totals of the weights. Write down how long the longest of these keys is.
///
/// # Safety
/// The machine has the instructions; the range begins at a multiple of 32; nobody else packs it.
#[target_feature(enable = "avx512vbmi,avx512bf16,avx512dq,avx512vl")]
pub(super) unsafe fn pack(keys: &Keys) {
    let Keys { s, way, ref range, panels, .. } = *keys;
    let (k_stride, v_stride) = (s.heads * s.width, s.heads * s.value_width);
    // SAFETY: everything stays inside the operands and the head's panels.
    unsafe {
        let mut longest = _mm512_setzero_si512();
        for key in range.clone().step_by(PANEL) {
            let to = panels.add(key / PANEL * pack::panel_bytes(s.width, way.number));
            let mut squares = _mm512_setzero_ps();
            for k in (0..s.width).step_by(32) {
                let mut rows = [_mm512_setzero_si512(); PANEL];
                for (i, row) in rows.iter_mut().take(range.end - key).enumerate() {
                    *row = load(keys.k.at((key + i) * k_stride + k), s.width - k);
                }
                for (i, row) in turned(rows).into_iter().enumerate() {
                    squares = add_squares(squares, row);
                    _mm512_store_si512(to.add((k / 2 + i) * 64).cast(), row);
                }
            }
            // Without its sign a NaN is larger than all numbers, as whole numbers are compared.
            longest = _mm512_max_epi32(longest, _mm512_castps_si512(_mm512_abs_ps(squares)));
        }
        let longest = f32::from_bits(_mm512_reduce_max_epi32(longest) as u32).sqrt();
        *way.longest_key(panels, range.start) = longest;

        let (first, second) = pairs();
        let values = panels.add(way.keys_bytes);
        let panel_bytes = pack::panel_bytes(s.keys, way.number);
        for place in (range.start..range.end.next_multiple_of(STRIP)).step_by(2) {
            let key = place / STRIP * STRIP + key_at(place % STRIP);
            for column in (0..s.value_width + 1).step_by(2 * PANEL) {
                let columns = s.value_width - column;
                let row = |key: usize| {
                    let n = if key < range.end { columns } else { 0 };
                    let from = if key < range.end { keys.v.at(key * v_stride + column) } else { keys.v };
                    let one = if columns < 32 { 1u32 << columns } else { 0 };
                    _mm512_mask_set1_epi16(load(from, n), one, ONE)
                };
                let (a, b) = (row(key), row(key + 1));
                let to = values.add(column / PANEL * panel_bytes + place / 2 * 64);
                _mm512_store_si512(to.cast(), _mm512_permutex2var_epi16(a, first, b));
                if columns >= PANEL {
                    _mm512_store_si512(to.add(panel_bytes).cast(), _mm512_permutex2var_epi16(a, second, b));
                }
            }
        }
    }
}

/// 1 as a bf16.
const ONE: i16 = 0x3f80;

/// For `permutex2var`: the first and the second 16 of two rows, as pairs.
#[inline]
#[target_feature(enable = "avx512vbmi,avx512bf16,avx512dq,avx512vl")]
fn pairs() -> (__m512i, __m512i) {
    // SAFETY: two arrays of 32 numbers of 16 bits.
    unsafe {
        let [first, second] = [0, 16].map(|from| {
            let places: [u16; 32] = std::array::from_fn(|i| (from + i / 2 + i % 2 * 32) as u16);
            _mm512_loadu_si512(places.as_ptr().cast())
        });
        (first, second)
    }
}

/// Rows to columns: 16 by 16 pairs.
#[inline]
#[target_feature(enable = "avx512vbmi,avx512bf16,avx512dq,avx512vl")]
fn turned(x: [__m512i; 16]) -> [__m512i; 16] {
    let mut y = x;
    for i in (0..16).step_by(2) {
        y[i] = _mm512_unpacklo_epi32(x[i], x[i + 1]);
        y[i + 1] = _mm512_unpackhi_epi32(x[i], x[i + 1]);
    }
    // In each quarter of `z[4 i + c]`: column `c` of that quarter, of rows `4 i` to `4 i + 3`.
    let mut z = y;
    for i in (0..16).step_by(4) {
        z[i] = _mm512_unpacklo_epi64(y[i], y[i + 2]);
        z[i + 1] = _mm512_unpackhi_epi64(y[i], y[i + 2]);
        z[i + 2] = _mm512_unpacklo_epi64(y[i + 1], y[i + 3]);
        z[i + 3] = _mm512_unpackhi_epi64(y[i + 1], y[i + 3]);
    }
    let mut turned = z;
    for c in 0..4 {
        let [a, b] = [0, 8].map(|i| (z[i + c], z[i + c + 4]));
        let even = [a, b].map(|(x, y)| _mm512_shuffle_i32x4::<0b1000_1000>(x, y));
        let odd = [a, b].map(|(x, y)| _mm512_shuffle_i32x4::<0b1101_1101>(x, y));
        turned[c] = _mm512_shuffle_i32x4::<0b1000_1000>(even[0], even[1]);
        turned[c + 8] = _mm512_shuffle_i32x4::<0b1101_1101>(even[0], even[1]);
        turned[c + 4] = _mm512_shuffle_i32x4::<0b1000_1000>(odd[0], odd[1]);
        turned[c + 12] = _mm512_shuffle_i32x4::<0b1101_1101>(odd[0], odd[1]);
    }
    turned
}
