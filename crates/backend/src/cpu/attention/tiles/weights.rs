//! Scores to weights, `2^(scaled score + offset)`, a strip of 32 keys at a time, built as bf16 from whole numbers.
//!
//! A bf16's bits are almost its logarithm: seven bits of fraction below the exponent. So an exponent in steps of 1/256 is converted to a
//! whole number, two vectors are packed into one of 16-bit numbers, and what the line between two powers of two lacks to the curve comes
//! from a table. Against rounding to bf16 alone, whose error is 0.17 % in the mean and 0.39 % at most, this has 0.19 and 0.59 %.
//!
//! Where a score cannot lie is known from the lengths of queries and keys. Most rows get their offset from that, and need no look at their
//! scores. Others have an offset by their largest score so far, which is lowered only when a score lies far above it, so that what was
//! summed is seldom scaled.

use std::arch::x86_64::*;

use super::{QUERIES, STRIP, WEIGHT_BYTES};

/// Steps of an exponent.
const STEPS: f32 = 256.0;
/// What scores are multiplied with to be exponents in steps.
pub(super) const PER_SCORE: f32 = std::f32::consts::LOG2_E * STEPS;

/// The sum of a place of `TABLE` and what the line lacks there.
const PLACES: u8 = 24;
/// The exponent of the weight 1: that of a bf16, less what the table adds, and a little more, which makes the error smallest.
const ONE: f32 = 127.0 * STEPS - PLACES as f32 + 0.6;
/// Above this a row's offset is lowered. Sums of so many times the largest value are far from where numbers overflow. Even, so that
/// numbers above it are those that are rounded to more.
const CEILING: u16 = (127 + 24) * STEPS as u16 - PLACES as u16;
/// What a row's largest score becomes when its offset is lowered: some way below the ceiling, so that it seldom happens again.
const LOWERED: f32 = ONE + 16.0 * STEPS;
/// Scores of rows whose bound is no farther from zero are all weighed by normal numbers under the ceiling.
const REACH: f32 = 74.0 * STEPS;
/// Exponents below this are finite, and so are those of the rows of a bound under it.
const FINITE: f32 = 1e9;

/// By the upper six bits of the fraction, counted from `PLACES` above it: `PLACES - 1` less what 2^f lacks to 1 + f in steps, such that the mean
/// square of the error is smallest in each. The test below computes it again.
static TABLE: [u8; 64] = [
    16, 15, 14, 13, 12, 11, 10, 9, 9, 8, 7, 7, 6, 5, 5, 4, 4, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2,
    2, 3, 3, 4, 4, 5, 6, 6, 7, 8, 9, 10, 10, 12, 13, 14, 15, 16, 18, 19, 20, 22, 23, 21, 20, 19, 18, 17,
];

/// The scores of a block's queries for a strip of keys.
pub(super) struct Strip {
    pub(super) rows: usize,
    /// What scores are multiplied with.
    pub(super) scale: f32,
    pub(super) scores: *const f32,
    /// By row, a bit for each key that it sees. None: all rows see all keys.
    pub(super) seen: Option<[u32; QUERIES]>,
}

/// What there is to look for in the exponents of a block's rows.
const NOTHING: u8 = 0;
/// Exponents above the ceiling.
const HIGH: u8 = 1;
/// The same, also where numbers are infinite or none.
const ODD: u8 = 2;

/// What is added to the scaled scores of a block's rows, for their weights to be numbers that can be summed.
pub(super) struct Offsets {
    by_row: [f32; QUERIES],
    /// Rows that have an offset, by bits. A row that has seen nothing but -inf needs none.
    settled: u32,
    /// Rows that have met what is no number, or +inf.
    spoiled: u32,
    all: u32,
    look_for: u8,
}

impl Offsets {
    /// For `rows` queries of these lengths squared, and keys that are at most so long.
    ///
    /// # Safety
    /// The machine has the instructions.
    #[target_feature(enable = "avx512vbmi,avx512bf16,avx512dq,avx512vl")]
    pub(super) unsafe fn new(rows: usize, squares: &[__m512; 2], longest_key: f32, scale: f32) -> Offsets {
        let mut by_row = [0.0; QUERIES];
        let (mut settled, mut finite) = (0, 0);
        // A little more than the product of the lengths, since all of this is rounded.
        let longest = _mm512_set1_ps(longest_key * scale.abs() * 1.001);
        for (i, &squares) in squares.iter().enumerate() {
            let bound = _mm512_mul_ps(_mm512_sqrt_ps(squares), longest);
            let near = _mm512_cmp_ps_mask::<_CMP_LE_OQ>(bound, _mm512_set1_ps(REACH));
            let below = _mm512_cmp_ps_mask::<_CMP_LE_OQ>(bound, _mm512_set1_ps(FINITE));
            settled |= u32::from(near) << (16 * i);
            finite |= u32::from(below) << (16 * i);
            // SAFETY: 16 numbers of the array.
            unsafe {
                let offset = _mm512_maskz_sub_ps(near, _mm512_set1_ps(f32::from(CEILING)), bound);
                _mm512_storeu_ps(by_row.as_mut_ptr().add(16 * i), offset);
            }
        }
        let all = u32::MAX >> (QUERIES - rows);
        let look_for = match (settled & all == all, finite & all == all) {
            (true, _) => NOTHING,
            (false, true) => HIGH,
            (false, false) => ODD,
        };
        Offsets { by_row, settled, spoiled: 0, all, look_for }
    }

    /// Scores to weights, in rows of `WEIGHT_BYTES`. `false` if offsets have to be lowered first: then nothing is to be used.
    ///
    /// # Safety
    /// The machine has the instructions; the pointers are good for the rows.
    pub(super) unsafe fn weigh(&self, strip: &Strip, weights: *mut u8) -> bool {
        // SAFETY: the caller's.
        unsafe {
            match self.look_for {
                NOTHING => self.weigh_seen::<NOTHING>(strip, weights),
                _ if self.settled & self.all != self.all => false,
                HIGH => self.weigh_seen::<HIGH>(strip, weights),
                _ => self.weigh_seen::<ODD>(strip, weights),
            }
        }
    }

    /// The same once offsets are lowered.
    ///
    /// # Safety
    /// As above.
    pub(super) unsafe fn weigh_lowered(&self, strip: &Strip, weights: *mut u8) {
        // SAFETY: the caller's.
        unsafe { self.weigh_seen::<NOTHING>(strip, weights) };
    }

    unsafe fn weigh_seen<const LOOK_FOR: u8>(&self, strip: &Strip, weights: *mut u8) -> bool {
        // SAFETY: the caller's.
        unsafe {
            match strip.seen {
                None => self.weigh_rows::<LOOK_FOR, true>(strip, weights),
                Some(_) => self.weigh_rows::<LOOK_FOR, false>(strip, weights),
            }
        }
    }

    #[target_feature(enable = "avx512vbmi,avx512bf16,avx512dq,avx512vl")]
    unsafe fn weigh_rows<const LOOK_FOR: u8, const ALL: bool>(&self, strip: &Strip, weights: *mut u8) -> bool {
        // SAFETY: the caller's.
        unsafe {
            let scale = _mm512_set1_ps(strip.scale);
            let table = _mm512_loadu_si512(TABLE.as_ptr().cast());
            // A mask that the compiler knows it makes an instruction of its own.
            let low_bytes = std::hint::black_box(0x5555_5555_5555_5555);
            let ceiling = _mm512_set1_ps(f32::from(CEILING) + 0.5);
            let mut largest = _mm512_setzero_si512();
            let mut odd = 0;
            for (row, &offset) in self.by_row.iter().enumerate().take(strip.rows) {
                let offset = _mm512_set1_ps(offset);
                let [x, y] = [0, 16].map(|i| {
                    let scores = _mm512_load_ps(strip.scores.add(row * STRIP + i));
                    _mm512_fmadd_ps(scores, scale, offset)
                });
                let seen = if ALL { u32::MAX } else { strip.seen(row) };
                let [low, high] = [seen as u16, (seen >> 16) as u16];
                let (left, right) = match ALL {
                    true => (_mm512_cvtps_epi32(x), _mm512_cvtps_epi32(y)),
                    false => (_mm512_maskz_cvtps_epi32(low, x), _mm512_maskz_cvtps_epi32(high, y)),
                };
                // Exponents below the smallest become zero here. Keys come out in the order of `key_at`.
                let exponents = _mm512_packus_epi32(left, right);
                if LOOK_FOR == HIGH {
                    largest = _mm512_max_epu16(largest, exponents);
                }
                if LOOK_FOR == ODD {
                    odd |= _mm512_mask_cmp_ps_mask::<_CMP_NLE_UQ>(low, x, ceiling)
                        | _mm512_mask_cmp_ps_mask::<_CMP_NLE_UQ>(high, y, ceiling);
                }
                _mm512_store_si512(weights.add(row * WEIGHT_BYTES).cast(), powers(exponents, table, low_bytes));
            }
            odd == 0 && _mm512_cmpgt_epu16_mask(largest, _mm512_set1_epi16(CEILING as i16)) == 0
        }
    }

    /// Give an offset to rows that have none, lower those that the strip's scores ask for, and scale what was summed under them.
    ///
    /// # Safety
    /// As [`Offsets::weigh`]; there are `sum_stride` sums for each row that has an offset, a multiple of 16.
    #[target_feature(enable = "avx512vbmi,avx512bf16,avx512dq,avx512vl")]
    pub(super) unsafe fn lower(&mut self, strip: &Strip, sums: *mut f32, sum_stride: usize) {
        let scale = _mm512_set1_ps(strip.scale);
        let ceiling = _mm512_set1_ps(f32::from(CEILING) + 0.5);
        for row in 0..strip.rows {
            let seen = strip.seen(row);
            let [low, high] = [seen as u16, (seen >> 16) as u16];
            // SAFETY: the caller's.
            let [left, right] = [0, 16].map(|i| unsafe { _mm512_load_ps(strip.scores.add(row * STRIP + i)) });
            let nothing = _mm512_set1_ps(f32::NEG_INFINITY);
            let scaled = [(low, left), (high, right)].map(|(m, x)| _mm512_mask_mul_ps(nothing, m, x, scale));
            let largest = _mm512_reduce_max_ps(_mm512_max_ps(scaled[0], scaled[1]));
            let no_numbers = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(scaled[0], scaled[1]);
            let (bit, old) = (1 << row, self.by_row[row]);
            let settled = self.settled & bit != 0;
            let offset = if no_numbers != 0 || largest == f32::INFINITY {
                self.spoiled |= bit;
                f32::NEG_INFINITY
            } else {
                // Each row by itself, as `weigh` looks for it: its bits must not depend on what else is in the block.
                let high_up = [(low, left), (high, right)].map(|(mask, x)| {
                    let exponent = _mm512_fmadd_ps(x, scale, _mm512_set1_ps(old));
                    _mm512_mask_cmp_ps_mask::<_CMP_GT_OQ>(mask, exponent, ceiling)
                });
                if if settled { high_up == [0; 2] } else { largest == f32::NEG_INFINITY } {
                    continue;
                }
                LOWERED - largest
            };
            if settled {
                let factor = _mm512_set1_ps(((offset - old) / STEPS).exp2());
                for i in (0..sum_stride).step_by(16) {
                    // SAFETY: the caller's.
                    unsafe {
                        let sums = sums.add(row * sum_stride + i);
                        _mm512_store_ps(sums, _mm512_mul_ps(_mm512_load_ps(sums), factor));
                    }
                }
            }
            self.by_row[row] = offset;
            self.settled |= bit;
        }
    }

    /// Whether a row's result is no number, whatever its sums are.
    pub(super) fn spoiled(&self, row: usize) -> bool {
        self.spoiled >> row & 1 == 1
    }
}

impl Strip {
    fn seen(&self, row: usize) -> u32 {
        self.seen.as_ref().map_or(u32::MAX, |seen| seen[row])
    }
}

/// 2 to these exponents, in steps above the smallest, as bf16. Zero becomes a number so small that products take it for zero.
#[inline]
#[target_feature(enable = "avx512vbmi,avx512bf16,avx512dq,avx512vl")]
fn powers(exponents: __m512i, table: __m512i, low_bytes: u64) -> __m512i {
    let place = _mm512_srli_epi16::<2>(exponents);
    // The mean of the two, rounded up: half of their sum, as a bf16's fraction has one bit less.
    _mm512_avg_epu16(exponents, _mm512_maskz_permutexvar_epi8(low_bytes, place, table))
}

/// The key of a strip whose weight stands at a place: two vectors are packed in pieces of four.
pub(super) fn key_at(place: usize) -> usize {
    place / 8 * 4 + place % 4 + place / 4 % 2 * 16
}
