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

/// Compute what vectors compute here, and compare it with plain arithmetic: the trial of instructions that products do not use.
///
/// # Safety
/// The machine has the instructions, or this is the process that finds out.
pub(super) unsafe fn self_test() -> Result<(), String> {
    // SAFETY: the caller's.
    unsafe { weights::self_test() }
}

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
        2 * QUERIES * WEIGHT_BYTES,
        aligned(QUERIES * way.sum_stride * 4),
    ]
}

/// Weights of some strips, to be multiplied with their values.
#[derive(Clone, Copy)]
struct Chunk {
    weights: *const u8,
    first_key: usize,
    strips: usize,
}

/// Temporary: variants to be measured, from IMPASTO_LAB, as in `a1p2s8f0`.
#[derive(Clone, Copy)]
struct Lab {
    ahead: bool,
    pieces: usize,
    strips: usize,
    fetch: usize,
    mix: usize,
}

fn lab() -> Lab {
    static LAB: std::sync::OnceLock<Lab> = std::sync::OnceLock::new();
    *LAB.get_or_init(|| {
        let text = std::env::var("IMPASTO_LAB").unwrap_or_default();
        let number = |c: char, or: usize| {
            let Some(at) = text.find(c) else { return or };
            text[at + 1..].chars().take_while(char::is_ascii_digit).collect::<String>().parse().unwrap_or(or)
        };
        let strips = number('s', 8).clamp(1, STRIPS);
        Lab { ahead: number('a', 1) == 1, pieces: number('p', 0), strips, fetch: number('f', 0), mix: number('m', 0) }
    })
}

/// One block of queries of one head against all keys.
///
/// # Safety
/// The keys are packed; nobody else writes these rows; the machine has tiles.
unsafe fn attend(block: &Block) {
    let Block { s, way, count, panels, own, .. } = *block;
    let [queries, scores, weights, sums] = lay_out(own, parts(way));
    let (scores, sums) = (scores.cast::<f32>(), sums.cast::<f32>());
    let lab = lab();
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
        let value_bytes = pack::panel_bytes(s.keys, way.number);
        let a = A { ptr: queries, stride: way.query_bytes, k: way.width };
        let tile = tile(way, count, a, panels, panel_bytes, scores, STRIP);
        let place = |key: usize| scores.add(key / STRIP % 2 * QUERIES * STRIP);
        // The scores of the strip that begins with `key`, in one of two places.
        let score_tile = |key: usize| {
            let b = panels.add(key / PANEL * panel_bytes);
            let panels = STRIP.min(s.keys - key).div_ceil(PANEL);
            let fetch = b.wrapping_add(2 * panel_bytes);
            Tile { panels, b, fetch, c: place(key), ..tile }
        };
        let score = |key: usize| (way.kernel.run)(&score_tile(key));
        // One of the pieces in which a chunk's products are done.
        let n = s.value_width + 1;
        let parts = lab.pieces.max(1);
        let pieces = n.div_ceil(STRIP) * parts;
        let piece = |chunk: &Chunk, i: usize| {
            let (column, part) = (i / parts * STRIP, i % parts);
            let [from, to] = [part, part + 1].map(|p| chunk.strips * p / parts);
            if from == to {
                return;
            }
            let first_key = chunk.first_key + from * STRIP;
            let b = panels.add(way.keys_bytes + column / PANEL * value_bytes + first_key * PANEL * 2);
            let a = A { ptr: chunk.weights.add(2 * STRIP * from), stride: WEIGHT_BYTES, k: (to - from) * STRIP };
            let columns = STRIP.min(n - column);
            product(way, count, columns, a, b, value_bytes, sums.add(column), way.sum_stride, first_key > 0);
        };
        // The chunk that waits for its products, how many of its pieces are done, and the strips that wait for being one.
        let mut chunk = Chunk { weights: std::ptr::null(), first_key: 0, strips: 0 };
        let (mut done, mut waiting, mut side) = (pieces, 0, 0);
        let mut seen = [0; QUERIES];
        if lab.ahead {
            score(0);
        }
        for key in (0..last_seen).step_by(STRIP) {
            let keys = STRIP.min(s.keys - key);
            let mix = lab.mix > 0
                && count == QUERIES
                && key + STRIP < first_seen
                && key + STRIP + PANEL < s.keys
                && offsets.simple();
            match lab.ahead {
                true if mix => {}
                true if key + STRIP < last_seen => score(key + STRIP),
                true => {}
                false => score(key),
            }
            if lab.pieces > 0 {
                let until = (pieces * (waiting + 1)).div_ceil(lab.strips);
                (done..until).for_each(|i| piece(&chunk, i));
                done = done.max(until);
            }
            if lab.fetch & 1 == 1 {
                let next = panels.add((key + 2 * STRIP) / PANEL * panel_bytes);
                for i in (0..2 * panel_bytes).step_by(64) {
                    std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(next.wrapping_add(i).cast());
                }
            }
            // Where not every row sees the whole strip.
            let partly = key + STRIP > first_seen;
            if partly {
                for (i, row) in seen.iter_mut().enumerate() {
                    let seen = if s.causal { (first_seen + i).saturating_sub(key).min(keys) } else { keys };
                    *row = u32::MAX.checked_shr((STRIP - seen) as u32).unwrap_or(0);
                }
            }
            let seen = partly.then_some(&seen);
            let strip = Strip { rows: count, scale, scores: place(key), seen };
            let weights = weights.add(side * QUERIES * WEIGHT_BYTES);
            if mix {
                offsets.weigh_beside(&strip, weights.add(2 * STRIP * waiting), &score_tile(key + STRIP));
            } else if !offsets.settled() || !offsets.weigh(&strip, weights.add(2 * STRIP * waiting)) {
                (done..pieces).for_each(|i| piece(&chunk, i));
                chunk = Chunk { weights, first_key: key - waiting * STRIP, strips: waiting };
                (0..pieces).for_each(|i| piece(&chunk, i));
                (done, waiting) = (pieces, 0);
                offsets.lower(&strip, sums, way.sum_stride);
                offsets.weigh(&strip, weights);
            }
            waiting += 1;
            if waiting == lab.strips || key + STRIP >= last_seen {
                (done..pieces).for_each(|i| piece(&chunk, i));
                chunk = Chunk { weights, first_key: key + STRIP - waiting * STRIP, strips: waiting };
                (done, waiting) = (0, 0);
                if lab.pieces == 0 || key + STRIP >= last_seen {
                    (0..pieces).for_each(|i| piece(&chunk, i));
                    done = pieces;
                } else {
                    side = 1 - side;
                }
            }
        }
        panels::store_results(block, sums, |row| offsets.spoiled(row));
    }
}
