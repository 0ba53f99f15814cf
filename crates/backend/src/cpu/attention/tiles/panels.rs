//! Queries, keys and values into the layouts that matrix tiles read, and results out of them.

use std::arch::x86_64::*;

use impasto_graph::DType;

use super::super::super::gemm::{PANEL, pack};
use super::super::super::rows::{Dst, Src};
use super::super::{Block, Keys};
use super::weights::key_at;
use super::{QUERIES, STRIP};

/// Element types, for loops that are compiled for each. The graph refuses attention on whole numbers.
const BF16: u8 = 0;
const F16: u8 = 1;
const F32: u8 = 2;

/// The first `n` of 32 numbers as bf16, the others zero.
///
/// # Safety
/// The machine has the instructions, the row has `n` numbers.
#[inline]
#[target_feature(enable = "avx512vbmi,avx512bf16,avx512dq,avx512vl")]
unsafe fn load<const KIND: u8>(from: Src, n: usize) -> __m512i {
    let mask = if n < 32 { (1u32 << n) - 1 } else { u32::MAX };
    let [low, high] = [mask as u16, (mask >> 16) as u16];
    // SAFETY: what lies beyond the row is masked.
    unsafe {
        let (left, right) = match KIND {
            BF16 => return _mm512_maskz_loadu_epi16(mask, from.ptr.cast()),
            F16 => {
                let half = |mask, i| _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, from.ptr.wrapping_add(i).cast()));
                (half(low, 0), half(high, 32))
            }
            _ => {
                let half = |mask, i| _mm512_maskz_loadu_ps(mask, from.ptr.wrapping_add(i).cast());
                (half(low, 0), half(high, 64))
            }
        };
        std::mem::transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(right, left))
    }
}

/// The same of any element type.
#[inline]
#[target_feature(enable = "avx512vbmi,avx512bf16,avx512dq,avx512vl")]
unsafe fn load_any(from: Src, n: usize) -> __m512i {
    // SAFETY: the caller's.
    unsafe {
        match from.dtype {
            DType::BF16 => load::<BF16>(from, n),
            DType::F16 => load::<F16>(from, n),
            DType::F32 | DType::I32 => load::<F32>(from, n),
        }
    }
}

/// The first `n` of 16 numbers into a row.
///
/// # Safety
/// The machine has the instructions, the row has room for `n` numbers.
#[inline]
#[target_feature(enable = "avx512vbmi,avx512bf16,avx512dq,avx512vl")]
unsafe fn store<const KIND: u8>(to: Dst, n: usize, x: __m512) {
    let mask = if n < 16 { (1u16 << n) - 1 } else { u16::MAX };
    // SAFETY: what lies beyond the row is masked.
    unsafe {
        let narrow = match KIND {
            BF16 => std::mem::transmute::<__m256bh, __m256i>(_mm512_cvtneps_pbh(x)),
            F16 => _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(x),
            _ => return _mm512_mask_storeu_ps(to.ptr.cast(), mask, x),
        };
        // Whole vectors without a mask, which is dear on some processors.
        match n < 16 {
            true => _mm256_mask_storeu_epi16(to.ptr.cast(), mask, narrow),
            false => _mm256_storeu_si256(to.ptr.cast(), narrow),
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
    // SAFETY: the caller's.
    unsafe {
        match block.q.dtype {
            DType::BF16 => load_rows::<BF16>(block, to),
            DType::F16 => load_rows::<F16>(block, to),
            DType::F32 | DType::I32 => load_rows::<F32>(block, to),
        }
    }
}

#[target_feature(enable = "avx512vbmi,avx512bf16,avx512dq,avx512vl")]
unsafe fn load_rows<const KIND: u8>(block: &Block, to: *mut u8) -> [__m512; 2] {
    let Block { s, plan, q, count, .. } = *block;
    let row = s.heads * s.width;
    let mut squares = [[_mm512_setzero_ps(); QUERIES / 2]; 2];
    // SAFETY: these rows lie inside the operand.
    unsafe {
        for (i, sum) in squares.as_flattened_mut()[..count].iter_mut().enumerate() {
            let (from, to) = (q.at(i * row), to.add(i * plan.query_bytes));
            // The next block's queries are far away by now, and too far apart for the processor to guess them.
            let next = from.ptr.wrapping_add(QUERIES * row * q.dtype.bytes() as usize);
            let whole = s.width / 32 * 32;
            for k in (0..whole).step_by(32) {
                let x = load::<KIND>(from.at(k), 32);
                *sum = add_squares(*sum, x);
                _mm512_store_si512(to.add(2 * k).cast(), x);
                _mm_prefetch::<_MM_HINT_T1>(next.wrapping_add(k * q.dtype.bytes() as usize).cast());
            }
            if whole < s.width {
                let x = load::<KIND>(from.at(whole), s.width - whole);
                *sum = add_squares(*sum, x);
                _mm512_store_si512(to.add(2 * whole).cast(), x);
                _mm_prefetch::<_MM_HINT_T1>(next.wrapping_add(s.width * q.dtype.bytes() as usize - 1).cast());
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

/// Write rows of sums, each divided by its total, which follows it; rows that are `spoiled` become NaN.
///
/// # Safety
/// The machine has the instructions; there are that many sums; nobody else writes these rows.
#[target_feature(enable = "avx512vbmi,avx512bf16,avx512dq,avx512vl")]
pub(super) unsafe fn store_results(block: &Block, sums: *const f32, spoiled: impl Fn(usize) -> bool) {
    // SAFETY: the caller's.
    unsafe {
        match block.out.dtype {
            DType::BF16 => store_rows::<BF16>(block, sums, spoiled),
            DType::F16 => store_rows::<F16>(block, sums, spoiled),
            DType::F32 | DType::I32 => store_rows::<F32>(block, sums, spoiled),
        }
    }
}

#[target_feature(enable = "avx512vbmi,avx512bf16,avx512dq,avx512vl")]
unsafe fn store_rows<const KIND: u8>(block: &Block, sums: *const f32, spoiled: impl Fn(usize) -> bool) {
    let Block { s, plan, out, count, .. } = *block;
    let whole = s.value_width / PANEL * PANEL;
    // SAFETY: these rows lie inside the result.
    unsafe {
        for i in 0..count {
            let (sums, out) = (sums.add(i * plan.sum_stride), out.at(i * s.heads * s.value_width));
            let total = *sums.add(s.value_width);
            let factor = _mm512_set1_ps(if spoiled(i) { f32::NAN } else { 1.0 / total });
            for column in (0..whole).step_by(PANEL) {
                store::<KIND>(out.at(column), PANEL, _mm512_mul_ps(_mm512_load_ps(sums.add(column)), factor));
            }
            if whole < s.value_width {
                let x = _mm512_mul_ps(_mm512_load_ps(sums.add(whole)), factor);
                store::<KIND>(out.at(whole), s.value_width - whole, x);
            }
        }
    }
}

/// Pack a range of a head's keys and values. Values stand in the order of `key_at`, and after them a column of ones, whose sums are the
/// totals of the weights. Write down how long the longest of these keys is.
///
/// # Safety
/// The machine has the instructions; the range begins at a multiple of 32; nobody else packs it.
#[target_feature(enable = "avx512vbmi,avx512bf16,avx512dq,avx512vl")]
pub(super) unsafe fn pack(keys: &Keys) {
    let Keys { s, plan, ref range, panels, .. } = *keys;
    let (k_stride, v_stride) = (s.kv_heads * s.width, s.kv_heads * s.value_width);
    // SAFETY: everything stays inside the operands and the head's panels.
    unsafe {
        let mut longest = _mm512_setzero_si512();
        for key in range.clone().step_by(PANEL) {
            let to = panels.add(key / PANEL * pack::panel_bytes(s.width, plan.number));
            let mut squares = _mm512_setzero_ps();
            for k in (0..s.width).step_by(32) {
                let mut rows = [_mm512_setzero_si512(); PANEL];
                for (i, row) in rows.iter_mut().take(range.end - key).enumerate() {
                    *row = load_any(keys.k.at((key + i) * k_stride + k), s.width - k);
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
        *plan.longest_key(panels, range.start) = longest;

        let (first, second) = pairs();
        let values = panels.add(plan.keys_bytes);
        let panel_bytes = pack::panel_bytes(s.keys, plan.number);
        for place in (range.start..range.end.next_multiple_of(STRIP)).step_by(2) {
            let key = place / STRIP * STRIP + key_at(place % STRIP);
            for column in (0..s.value_width + 1).step_by(2 * PANEL) {
                let columns = s.value_width - column;
                let row = |key: usize| {
                    let n = if key < range.end { columns } else { 0 };
                    let from = if key < range.end { keys.v.at(key * v_stride + column) } else { keys.v };
                    let one = if columns < 32 { 1u32 << columns } else { 0 };
                    _mm512_mask_set1_epi16(load_any(from, n), one, ONE)
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
