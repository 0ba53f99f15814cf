//! Attention on matrix tiles: 32 queries by strips of 32 keys, whose scores are one tile and stay in the nearest cache.
//!
//! A row's weights are `2^(scale (score - top))`, where `top` need not be the largest score: it is raised only when a score lies far
//! above it, so that what was summed is seldom scaled, and no strip waits for its maxima.

use std::arch::x86_64::*;

use super::super::gemm::{PANEL, TILE_COLUMNS, pack};
use super::super::rows::narrow_exp2;
use super::{A, Block, Way, aligned, lay_out, product, tile};

/// Queries of a block: the rows of a tile.
pub(super) const QUERIES: usize = 32;
/// Keys of a strip: the columns of a tile.
const STRIP: usize = TILE_COLUMNS;
/// Strips whose weights are collected before the values are multiplied with them.
const STRIPS: usize = 8;
/// Bytes from one row of weights to the next: a line more than needed spreads the rows over the cache's sets.
const WEIGHT_BYTES: usize = 2 * STRIP * STRIPS + 64;
/// The largest exponent of a weight before the top is raised. Far from where numbers overflow, and seldom reached.
const SLACK: f32 = 8.0;
/// Totals of a row: one for each lane of a vector.
const LANES: usize = 16;

/// Bytes of a thread's memory: queries, scores, weights, sums, tops, shifts, totals of before and after a strip.
pub(super) fn parts(way: &Way) -> [usize; 8] {
    [
        aligned(QUERIES * way.query_bytes),
        QUERIES * STRIP * 4,
        QUERIES * WEIGHT_BYTES,
        aligned(QUERIES * way.sum_stride * 4),
        QUERIES * 4,
        QUERIES * 4,
        QUERIES * LANES * 4,
        QUERIES * LANES * 4,
    ]
}

/// What a strip's scores become weights by.
struct Strip {
    rows: usize,
    scale: f32,
    scores: *mut f32,
    /// By row: the score whose weight is 1, and what is subtracted from exponents for it.
    tops: *mut f32,
    shifts: *mut f32,
    /// By row and lane: the sums of the weights so far.
    totals: *mut f32,
}

/// One block of queries of one head against all keys.
///
/// # Safety
/// The keys are packed; nobody else writes these rows; the machine has tiles.
pub(super) unsafe fn attend(block: &Block) {
    let Block { s, way, count, panels, own, .. } = *block;
    let [queries, scores, weights, sums, tops, shifts, totals, after] = lay_out(own, parts(way));
    let [scores, sums, tops, shifts] = [scores, sums, tops, shifts].map(|p| p.cast::<f32>());
    let [mut totals, mut after] = [totals, after].map(|p| p.cast::<f32>());
    // SAFETY: everything stays inside the operands, the panels and the thread's memory as `parts` says.
    unsafe {
        block.load_queries(queries);
        (0..count).for_each(|i| *tops.add(i) = f32::NEG_INFINITY);
        totals.write_bytes(0, QUERIES * LANES);
        sums.write_bytes(0, QUERIES * way.sum_stride);

        let scale = s.scale * std::f32::consts::LOG2_E;
        let [first_seen, last_seen] = block.seen();
        let panel_bytes = pack::panel_bytes(s.width, way.number);
        let multiply = |first_key: usize, strips: usize| {
            if strips == 0 {
                return;
            }
            let b = panels.add(way.keys_bytes + first_key * PANEL * way.number.bytes());
            let a = A { ptr: weights, stride: WEIGHT_BYTES, k: strips * STRIP };
            product(way, count, s.value_width, a, b, pack::panel_bytes(s.keys, way.number), sums, way.sum_stride, true);
        };
        let a = A { ptr: queries, stride: way.query_bytes, k: way.width };
        let mut tile = tile(way, count, a, panels, panel_bytes, scores, STRIP);
        // Strips that wait for their values, and whether all rows have a top.
        let (mut waiting, mut settled) = (0, false);
        for key in (0..last_seen).step_by(STRIP) {
            let keys = STRIP.min(s.keys - key);
            tile.panels = keys.div_ceil(PANEL);
            tile.b = panels.add(key / PANEL * panel_bytes);
            tile.fetch = tile.b.wrapping_add(2 * panel_bytes);
            (way.kernel.run)(&tile);
            if key + STRIP > first_seen {
                for i in 0..count {
                    let seen = if s.causal { (first_seen + i).saturating_sub(key).min(keys) } else { keys };
                    (seen..STRIP).for_each(|j| *scores.add(i * STRIP + j) = f32::NEG_INFINITY);
                }
            }
            let strip = Strip { rows: count, scale, scores, tops, shifts, totals };
            if !settled || !weigh(&strip, weights.add(2 * STRIP * waiting), after) {
                multiply(key - waiting * STRIP, waiting);
                waiting = 0;
                settled = raise(&strip, sums, way.sum_stride);
                weigh(&strip, weights, after);
            }
            (totals, after) = (after, totals);
            waiting += 1;
            if waiting == STRIPS {
                multiply(key + STRIP - waiting * STRIP, waiting);
                waiting = 0;
            }
        }
        multiply(last_seen.next_multiple_of(STRIP) - waiting * STRIP, waiting);
        block.store(sums, |i| std::slice::from_raw_parts(totals.add(i * LANES), LANES).iter().sum());
    }
}

/// Scores to weights, in rows of `WEIGHT_BYTES`, and new totals. `false` if a score lies too far above its top: then nothing is to be
/// used. A NaN becomes a NaN.
///
/// # Safety
/// The machine has the instructions; the pointers are good for the rows.
#[target_feature(enable = "avx512bf16,avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
unsafe fn weigh(strip: &Strip, weights: *mut u8, after: *mut f32) -> bool {
    // SAFETY: the caller's.
    unsafe {
        let Strip { rows, scores, shifts, totals, .. } = *strip;
        let scale = _mm512_set1_ps(strip.scale);
        let mut largest = _mm512_set1_ps(f32::NEG_INFINITY);
        for row in 0..rows {
            let shift = _mm512_set1_ps(*shifts.add(row));
            let exponent = |i: usize| _mm512_fmsub_ps(_mm512_load_ps(scores.add(row * STRIP + i)), scale, shift);
            let (x, y) = (exponent(0), exponent(16));
            largest = _mm512_max_ps(_mm512_max_ps(x, y), largest);
            let (x, y) = (narrow_exp2(x), narrow_exp2(y));
            let total = _mm512_load_ps(totals.add(row * LANES));
            _mm512_store_ps(after.add(row * LANES), _mm512_add_ps(total, _mm512_add_ps(x, y)));
            let both = std::mem::transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(y, x));
            _mm512_store_si512(weights.add(row * WEIGHT_BYTES).cast(), both);
        }
        _mm512_cmp_ps_mask::<_CMP_GT_OQ>(largest, _mm512_set1_ps(SLACK)) == 0
    }
}

/// Raise the tops to what the strip's scores ask for, and scale what was summed so far. Whether all rows have a top then.
///
/// # Safety
/// As [`weigh`]; there are `sum_stride` sums for each row.
unsafe fn raise(strip: &Strip, sums: *mut f32, sum_stride: usize) -> bool {
    let mut settled = true;
    for row in 0..strip.rows {
        // SAFETY: the caller's.
        let [scores, totals, sums] = unsafe {
            [
                std::slice::from_raw_parts_mut(strip.scores.add(row * STRIP), STRIP),
                std::slice::from_raw_parts_mut(strip.totals.add(row * LANES), LANES),
                std::slice::from_raw_parts_mut(sums.add(row * sum_stride), sum_stride),
            ]
        };
        // SAFETY: as above.
        let (top, shift) = unsafe { (&mut *strip.tops.add(row), &mut *strip.shifts.add(row)) };
        let (old, new) = (*top, scores.iter().copied().fold(*top, f32::max));
        // Each row by itself: its bits must not depend on what else is in the block.
        if old == f32::NEG_INFINITY || new.mul_add(strip.scale, -*shift) > SLACK {
            if old > f32::NEG_INFINITY {
                // Both products are rounded as they are where weights are computed: the errors cancel.
                let factor = (old * strip.scale - new * strip.scale).exp2();
                totals.iter_mut().chain(sums).for_each(|x| *x *= factor);
            }
            *top = new;
        }
        // A row that has seen nothing but -inf has no top, any finite number will do.
        let has_top = *top > f32::NEG_INFINITY;
        *shift = if has_top { *top * strip.scale } else { 0.0 };
        settled &= has_top;
    }
    settled
}
