//! Attention on matrix tiles: 32 queries by strips of 32 keys, whose scores are one tile and stay in the nearest cache.

use super::super::gemm::{PANEL, TILE_COLUMNS, Tile, pack};
use super::{A, Block, PACK_KEYS, Way, aligned, lay_out, product, tile};
use crate::shapes::Heads;
use weights::{Offsets, PER_SCORE, Strip};

mod panels;
mod weights;

/// Queries of a block: the rows of a tile.
const QUERIES: usize = 32;
/// Keys of a strip: the columns of a tile.
const STRIP: usize = TILE_COLUMNS;
/// Strips whose weights are collected before the values are multiplied with them.
const STRIPS: usize = 8;
/// Bytes from one row of weights to the next: a line more than needed spreads the rows over the cache's sets.
const WEIGHT_BYTES: usize = 2 * STRIP * STRIPS + 64;

/// What is different from the way of vector kernels.
pub(super) fn change(way: &mut Way, s: &Heads) {
    (way.block, way.pack, way.attend) = (QUERIES, panels::pack, attend);
    // A column more: the totals of the weights.
    way.values_bytes = pack::packed_bytes(s.value_width + 1, s.keys, way.number);
    way.sum_stride = (s.value_width + 1).next_multiple_of(PANEL);
    way.head_bytes = way.keys_bytes + way.values_bytes + aligned(s.keys.div_ceil(PACK_KEYS) * 4);
    way.thread_bytes = parts(way).iter().sum();
}

impl Way {
    /// Where it is written, of a head, how long the longest key is in the part that begins with `key`.
    fn longest_key(&self, panels: *mut u8, key: usize) -> *mut f32 {
        panels.wrapping_add(self.keys_bytes + self.values_bytes).cast::<f32>().wrapping_add(key / PACK_KEYS)
    }
}

/// Bytes of a thread's memory: queries, scores of two strips, weights, sums.
fn parts(way: &Way) -> [usize; 4] {
    [
        aligned(QUERIES * way.query_bytes),
        2 * QUERIES * STRIP * 4,
        QUERIES * WEIGHT_BYTES,
        aligned(QUERIES * way.sum_stride * 4),
    ]
}

/// One block of queries of one head against all keys.
///
/// # Safety
/// The keys are packed; nobody else writes these rows; the machine has tiles.
unsafe fn attend(block: &Block) {
    let Block { s, way, count, panels, own, .. } = *block;
    let [queries, scores, weights, sums] = lay_out(own, parts(way));
    let (scores, sums) = (scores.cast::<f32>(), sums.cast::<f32>());
    // SAFETY: everything stays inside the operands, the panels and the thread's memory as `parts` says.
    unsafe {
        let scale = s.scale * PER_SCORE;
        let squares = panels::load_queries(block, queries);
        let lengths = (0..s.keys).step_by(PACK_KEYS).map(|key| *way.longest_key(panels.cast_mut(), key));
        // By bits, so that what is no number counts as the longest.
        let longest = lengths.fold(0.0f32, |a, b| f32::from_bits(a.to_bits().max(b.to_bits())));
        let mut offsets = Offsets::new(count, &squares, longest, scale);

        let [first_seen, last_seen] = block.seen();
        let panel_bytes = pack::panel_bytes(s.width, way.number);
        let a = A { ptr: queries, stride: way.query_bytes, k: way.width };
        let tile = tile(way, count, a, panels, panel_bytes, scores, STRIP);
        // The scores of the strip that begins with `key`, in one of two places.
        let score = |key: usize| {
            let c = scores.add(key / STRIP % 2 * QUERIES * STRIP);
            let b = panels.add(key / PANEL * panel_bytes);
            let panels = STRIP.min(s.keys - key).div_ceil(PANEL);
            (way.kernel.run)(&Tile { panels, b, fetch: b.wrapping_add(2 * panel_bytes), c, ..tile });
            c
        };
        let multiply = |first_key: usize, strips: usize| {
            if strips == 0 {
                return;
            }
            let b = panels.add(way.keys_bytes + first_key * PANEL * way.number.bytes());
            let a = A { ptr: weights, stride: WEIGHT_BYTES, k: strips * STRIP };
            let (n, bytes) = (s.value_width + 1, pack::panel_bytes(s.keys, way.number));
            product(way, count, n, a, b, bytes, sums, way.sum_stride, first_key > 0);
        };
        // Strips that wait for their values.
        let mut waiting = 0;
        for key in (0..last_seen).step_by(STRIP) {
            let keys = STRIP.min(s.keys - key);
            let scores = score(key);
            // Where not every row sees the whole strip.
            let seen = (key + STRIP > first_seen).then(|| {
                std::array::from_fn(|i| {
                    let seen = if s.causal { (first_seen + i).saturating_sub(key).min(keys) } else { keys };
                    u32::MAX.checked_shr((STRIP - seen) as u32).unwrap_or(0)
                })
            });
            let strip = Strip { rows: count, scale, scores, seen };
            if !offsets.weigh(&strip, weights.add(2 * STRIP * waiting)) {
                multiply(key - waiting * STRIP, waiting);
                waiting = 0;
                offsets.lower(&strip, sums, way.sum_stride);
                offsets.weigh_lowered(&strip, weights);
            }
            waiting += 1;
            if waiting == STRIPS {
                multiply(key + STRIP - waiting * STRIP, waiting);
                waiting = 0;
            }
        }
        multiply(last_seen.next_multiple_of(STRIP) - waiting * STRIP, waiting);
        panels::store_results(block, sums, |row| offsets.spoiled(row));
    }
}
