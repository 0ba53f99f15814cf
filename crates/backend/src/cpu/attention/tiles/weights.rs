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

use super::super::super::gemm::Tile;
use super::super::super::gemm::amx::bf16_beside;
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
/// Exponents of rows whose bound is no farther from zero are whole numbers of 32 bits, and offsets to them exact within a few steps.
const FAR: f32 = 268_435_456.0;

/// By the upper six bits of the fraction, counted from `PLACES` above it: `PLACES - 1` less what 2^f lacks to 1 + f in steps, such that the mean
/// square of the error is smallest in each. The test below computes it again.
static TABLE: [u8; 64] = [
    16, 15, 14, 13, 12, 11, 10, 9, 9, 8, 7, 7, 6, 5, 5, 4, 4, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2,
    2, 3, 3, 4, 4, 5, 6, 6, 7, 8, 9, 10, 10, 12, 13, 14, 15, 16, 18, 19, 20, 22, 23, 21, 20, 19, 18, 17,
];

/// The lower byte of each 16-bit number.
const LOW_BYTES: u64 = 0x5555_5555_5555_5555;

/// The scores of a block's queries for a strip of keys.
pub(super) struct Strip<'a> {
    pub(super) rows: usize,
    /// What scores are multiplied with.
    pub(super) scale: f32,
    pub(super) scores: *const f32,
    /// By row, a bit for each key that it sees. None: all rows see all keys.
    pub(super) seen: Option<&'a [u32; QUERIES]>,
}

/// What there is to look for in the exponents of a block's rows.
const NOTHING: u8 = 0;
/// Exponents above the ceiling.
const HIGH: u8 = 1;
/// The same in rows of scores of any size, and scores that are infinite or no numbers.
const ODD: u8 = 2;

/// What is added to the scaled scores of a block's rows, for their weights to be numbers that can be summed.
pub(super) struct Offsets {
    by_row: [f32; QUERIES],
    /// What is subtracted from the scores of a row before they are scaled: zero but for rows that are `odd`.
    tops: [f32; QUERIES],
    /// Rows that have an offset, by bits. A row that has seen nothing but -inf needs none.
    settled: u32,
    /// Rows whose scores may be of any size, infinite or no numbers.
    odd: u32,
    /// Rows that have met what is no number, or a score that would outweigh everything.
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
        let (mut settled, mut known) = (0, 0);
        // A little more than the product of the lengths, since all of this is rounded.
        let longest = _mm512_set1_ps(longest_key * scale.abs() * 1.001);
        for (i, &squares) in squares.iter().enumerate() {
            let bound = _mm512_mul_ps(_mm512_sqrt_ps(squares), longest);
            let near = _mm512_cmp_ps_mask::<_CMP_LE_OQ>(bound, _mm512_set1_ps(REACH));
            let far = _mm512_cmp_ps_mask::<_CMP_LE_OQ>(bound, _mm512_set1_ps(FAR));
            settled |= u32::from(near) << (16 * i);
            known |= u32::from(far) << (16 * i);
            // SAFETY: 16 numbers of the array.
            unsafe {
                let offset = _mm512_maskz_sub_ps(near, _mm512_set1_ps(f32::from(CEILING)), bound);
                _mm512_storeu_ps(by_row.as_mut_ptr().add(16 * i), offset);
            }
        }
        let all = u32::MAX >> (QUERIES - rows);
        let look_for = match (settled & all == all, known & all == all) {
            (true, _) => NOTHING,
            (false, true) => HIGH,
            (false, false) => ODD,
        };
        Offsets { by_row, tops: [0.0; QUERIES], settled, odd: !known, spoiled: 0, all, look_for }
    }

    /// Whether all rows have what they need.
    pub(super) fn settled(&self) -> bool {
        self.settled & self.all == self.all
    }

    /// Scores to weights, in rows of `WEIGHT_BYTES`. `false` if offsets have to be lowered first, or if that did not help since numbers are none.
    ///
    /// # Safety
    /// The machine has the instructions; the pointers are good for the rows.
    pub(super) unsafe fn weigh(&self, strip: &Strip, weights: *mut u8) -> bool {
        // SAFETY: the caller's.
        unsafe {
            match (self.look_for, strip.seen) {
                (NOTHING, None) => self.weigh_rows::<NOTHING, true>(strip, weights),
                (NOTHING, _) => self.weigh_rows::<NOTHING, false>(strip, weights),
                (HIGH, None) => self.weigh_rows::<HIGH, true>(strip, weights),
                (HIGH, _) => self.weigh_rows::<HIGH, false>(strip, weights),
                _ => self.weigh_rows::<ODD, false>(strip, weights),
            }
        }
    }

    #[target_feature(enable = "avx512vbmi,avx512bf16,avx512dq,avx512vl")]
    unsafe fn weigh_rows<const LOOK_FOR: u8, const ALL: bool>(&self, strip: &Strip, weights: *mut u8) -> bool {
        // SAFETY: the caller's.
        unsafe {
            let mut scribe = Scribe::new(strip.scale);
            for row in 0..strip.rows {
                scribe.weigh::<LOOK_FOR, ALL>(self, strip, row, weights);
            }
            scribe.found_nothing()
        }
    }

    /// As [`Offsets::weigh`] of 32 rows that see the whole strip, while `tile` is computed, which has 32 rows, too. `None` if this is not the way
    /// for these rows: then neither is done.
    ///
    /// # Safety
    /// As there, and as of [`bf16_beside`].
    pub(super) unsafe fn weigh_beside(&self, strip: &Strip, weights: *mut u8, tile: &Tile) -> Option<bool> {
        // SAFETY: the caller's.
        unsafe {
            match (self.look_for, tile.panels) {
                (NOTHING, 2) => Some(self.weigh_rows_beside::<NOTHING, true>(strip, weights, tile)),
                (NOTHING, _) => Some(self.weigh_rows_beside::<NOTHING, false>(strip, weights, tile)),
                (HIGH, 2) => Some(self.weigh_rows_beside::<HIGH, true>(strip, weights, tile)),
                _ => None,
            }
        }
    }

    #[target_feature(enable = "avx512vbmi,avx512bf16,avx512dq,avx512vl")]
    unsafe fn weigh_rows_beside<const LOOK_FOR: u8, const RIGHT: bool>(
        &self,
        strip: &Strip,
        weights: *mut u8,
        tile: &Tile,
    ) -> bool {
        // SAFETY: the caller's.
        unsafe {
            let mut scribe = Scribe::new(strip.scale);
            let mut row = 0;
            let mut go_on = |rows: usize| {
                let until = QUERIES.min(row + rows);
                while row < until {
                    scribe.weigh::<LOOK_FOR, true>(self, strip, row, weights);
                    row += 1;
                }
            };
            let share = QUERIES.div_ceil(tile.segment_k / 32 * if RIGHT { 4 } else { 2 });
            bf16_beside::<RIGHT>(tile, || go_on(share));
            go_on(QUERIES);
            scribe.found_nothing()
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
            let bit = 1 << row;
            let settled = self.settled & bit != 0;
            let seen = strip.seen(row);
            // SAFETY: the caller's.
            let scores = [(seen as u16, 0), ((seen >> 16) as u16, 16)]
                .map(|(mask, i)| (mask, unsafe { _mm512_load_ps(strip.scores.add(row * STRIP + i)) }));
            // The score of the largest weight.
            let top = if strip.scale < 0.0 {
                let [x, y] = scores.map(|(m, x)| _mm512_mask_mov_ps(_mm512_set1_ps(f32::INFINITY), m, x));
                _mm512_reduce_min_ps(_mm512_min_ps(x, y))
            } else {
                let [x, y] = scores.map(|(m, x)| _mm512_mask_mov_ps(_mm512_set1_ps(f32::NEG_INFINITY), m, x));
                _mm512_reduce_max_ps(_mm512_max_ps(x, y))
            };
            let numbers = scores.iter().all(|&(m, x)| _mm512_mask_cmp_ps_mask::<_CMP_UNORD_Q>(m, x, x) == 0);
            let scaled = top * strip.scale;
            // With a scale of zero this is no number.
            if !numbers || top.is_infinite() && scaled != f32::NEG_INFINITY {
                self.spoiled |= bit;
                self.settled |= bit;
                continue;
            }
            // Each row by itself, as `weigh` looks for it: its bits must not depend on what else is in the block.
            let (old, old_top) = (self.by_row[row], self.tops[row]);
            let high = scores.iter().any(|&(mask, x)| {
                let x = _mm512_sub_ps(x, _mm512_set1_ps(old_top));
                let exponents = _mm512_fmadd_ps(x, scale, _mm512_set1_ps(old));
                _mm512_mask_cmp_ps_mask::<_CMP_GT_OQ>(mask, exponents, ceiling) != 0
            });
            let stays = if settled { !high } else { top.is_infinite() };
            if stays {
                continue;
            }
            let lowered_by = match self.odd & bit != 0 {
                true => {
                    (self.by_row[row], self.tops[row]) = (LOWERED, top);
                    (top - old_top) * strip.scale
                }
                false => {
                    self.by_row[row] = LOWERED - scaled;
                    old - self.by_row[row]
                }
            };
            if settled {
                let factor = _mm512_set1_ps((-lowered_by / STEPS).exp2());
                for i in (0..sum_stride).step_by(16) {
                    // SAFETY: the caller's.
                    unsafe {
                        let sums = sums.add(row * sum_stride + i);
                        _mm512_store_ps(sums, _mm512_mul_ps(_mm512_load_ps(sums), factor));
                    }
                }
            }
            self.settled |= bit;
        }
    }

    /// Whether a row's result is no number, whatever its sums are.
    pub(super) fn spoiled(&self, row: usize) -> bool {
        self.spoiled >> row & 1 == 1
    }
}

/// What weighing rows keeps in registers.
struct Scribe {
    scale: __m512,
    table: __m512i,
    low_bytes: u64,
    /// What was looked for: the largest exponents, and whether some are odd.
    largest: __m512i,
    odd: u16,
}

impl Scribe {
    #[inline]
    #[target_feature(enable = "avx512vbmi,avx512bf16,avx512dq,avx512vl")]
    fn new(scale: f32) -> Scribe {
        Scribe {
            scale: _mm512_set1_ps(scale),
            // SAFETY: 64 bytes.
            table: unsafe { _mm512_loadu_si512(TABLE.as_ptr().cast()) },
            // A mask that the compiler knows it makes an instruction of its own.
            low_bytes: std::hint::black_box(LOW_BYTES),
            largest: _mm512_setzero_si512(),
            odd: 0,
        }
    }

    /// Weigh a row. `ALL`: it sees the whole strip.
    #[inline]
    #[target_feature(enable = "avx512vbmi,avx512bf16,avx512dq,avx512vl")]
    unsafe fn weigh<const LOOK_FOR: u8, const ALL: bool>(
        &mut self,
        offsets: &Offsets,
        strip: &Strip,
        row: usize,
        weights: *mut u8,
    ) {
        // SAFETY: the caller's.
        unsafe {
            let offset = _mm512_set1_ps(*offsets.by_row.get_unchecked(row));
            let [x, y] = [0, 16].map(|i| {
                let scores = _mm512_load_ps(strip.scores.add(row * STRIP + i));
                let scores = match LOOK_FOR {
                    ODD => _mm512_sub_ps(scores, _mm512_set1_ps(offsets.tops[row])),
                    _ => scores,
                };
                _mm512_fmadd_ps(scores, self.scale, offset)
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
                self.largest = _mm512_max_epu16(self.largest, exponents);
            }
            if LOOK_FOR == ODD {
                let ceiling = _mm512_set1_ps(f32::from(CEILING) + 0.5);
                self.odd |= _mm512_mask_cmp_ps_mask::<_CMP_NLE_UQ>(low, x, ceiling)
                    | _mm512_mask_cmp_ps_mask::<_CMP_NLE_UQ>(high, y, ceiling);
            }
            let powers = powers(exponents, self.table, self.low_bytes);
            _mm512_store_si512(weights.add(row * WEIGHT_BYTES).cast(), powers);
        }
    }

    #[inline]
    #[target_feature(enable = "avx512vbmi,avx512bf16,avx512dq,avx512vl")]
    fn found_nothing(&self) -> bool {
        self.odd == 0 && _mm512_cmpgt_epu16_mask(self.largest, _mm512_set1_epi16(CEILING as i16)) == 0
    }
}

impl Strip<'_> {
    fn seen(&self, row: usize) -> u32 {
        self.seen.map_or(u32::MAX, |seen| seen[row])
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

/// The same of one exponent, in plain arithmetic.
fn power(exponent: u16) -> u16 {
    ((u32::from(exponent) + u32::from(TABLE[usize::from(exponent >> 2 & 63)]) + 1) >> 1) as u16
}

/// Whether the vectors compute every weight as plain arithmetic does.
///
/// # Safety
/// The machine has the instructions, or this is the process that finds out.
#[target_feature(enable = "avx512vbmi,avx512bf16,avx512dq,avx512vl")]
pub(super) unsafe fn self_test() -> Result<(), String> {
    for first in (0..=u16::MAX).step_by(32) {
        let exponents: [u16; 32] = std::array::from_fn(|i| first + i as u16);
        let mut weights = [0u16; 32];
        // SAFETY: arrays of 64 bytes.
        unsafe {
            let table = _mm512_loadu_si512(TABLE.as_ptr().cast());
            let powers = powers(_mm512_loadu_si512(exponents.as_ptr().cast()), table, LOW_BYTES);
            _mm512_storeu_si512(weights.as_mut_ptr().cast(), powers);
        }
        if let Some(i) = (0..32).find(|&i| weights[i] != power(exponents[i])) {
            let [got, want] = [weights[i], power(exponents[i])];
            return Err(format!("the weight of exponent {} is {got:#x} instead of {want:#x}", exponents[i]));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn weight(bits: u16) -> f64 {
        f64::from(f32::from_bits(u32::from(bits) << 16))
    }

    /// By how much the weight of a whole exponent is off, at 33 places between those that are rounded to it.
    fn errors(exponent: u16, bits: u16) -> impl Iterator<Item = f64> {
        (0..33).map(move |i| {
            let exact = f64::from(exponent) + (f64::from(i) - 16.0) / 32.0;
            weight(bits) / ((exact - f64::from(ONE)) / f64::from(STEPS)).exp2() - 1.0
        })
    }

    #[test]
    fn weights_are_as_near_as_is_said() {
        let (mut largest, mut squares, mut mean, mut n) = (0f64, 0.0, 0.0, 0.0);
        // From the smallest normal number to the largest that is used.
        for exponent in 256..=CEILING {
            for e in errors(exponent, power(exponent)) {
                (largest, squares, mean, n) = (largest.max(e.abs()), squares + e * e, mean + e, n + 1.0);
            }
        }
        let (root, mean) = ((squares / n).sqrt(), mean / n);
        println!("weights: error {largest:.5} at most, {root:.5} in the mean square, {mean:.6} in the mean");
        assert!(largest < 0.006 && root < 0.0019 && mean.abs() < 1e-4, "{largest} {root} {mean}");
        // Nothing: a number that tiles take for zero.
        assert!(power(0) < 128);
        if is_x86_feature_detected!("avx512vbmi") && is_x86_feature_detected!("avx512bf16") {
            // SAFETY: these two are the latest of the instructions.
            assert_eq!(unsafe { self_test() }, Ok(()));
        }
    }

    #[test]
    fn larger_exponents_have_larger_weights() {
        assert!((1..=CEILING).all(|exponent| power(exponent) >= power(exponent - 1)));
    }

    /// No other number at any place of the table has a smaller mean square error there.
    #[test]
    fn the_table_is_the_best_there_is() {
        for (place, &best) in TABLE.iter().enumerate() {
            let cost = |entry: u8| -> f64 {
                let exponents = (0..4).map(|i| 128 * 256 + 4 * place as u16 + i);
                let bits = |e: u16| ((u32::from(e) + u32::from(entry) + 1) >> 1) as u16;
                exponents.flat_map(|e| errors(e, bits(e))).map(|e| e * e).sum()
            };
            assert!((0..PLACES).all(|entry| cost(best) <= cost(entry)), "{place}");
        }
    }

    #[test]
    fn every_key_has_a_place() {
        let mut keys: Vec<usize> = (0..STRIP).map(key_at).collect();
        assert!(keys.chunks(2).all(|pair| pair[0] % 2 == 0 && pair[1] == pair[0] + 1), "values are packed in pairs");
        keys.sort_unstable();
        assert!(keys.into_iter().eq(0..STRIP));
    }
}
