//! Attention on matrix tiles: 32 queries by strips of 32 keys, whose scores are one tile and stay in L1.

use super::super::gemm::{HALF, PANEL, TILE_COLUMNS, Tile, amx, pack};
use super::{A, AttentionPlan, Block, PACK_KEYS, aligned, lay_out, tile};
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
pub(super) fn change(plan: &mut AttentionPlan, s: &Heads) {
    (plan.block, plan.pack, plan.attend) = (QUERIES, panels::pack, attend);
    // A column more: the totals of the weights.
    plan.values_bytes = pack::packed_bytes(s.value_width + 1, s.keys, plan.number);
    plan.sum_stride = (s.value_width + 1).next_multiple_of(PANEL);
    plan.head_bytes = plan.keys_bytes + plan.values_bytes + aligned(s.keys.div_ceil(PACK_KEYS) * 4);
    plan.thread_bytes = parts(plan).iter().sum();
}

impl AttentionPlan {
    /// Where it is written, of a head, how long the longest key is in the part that begins with `key`.
    fn longest_key(&self, panels: *mut u8, key: usize) -> *mut f32 {
        panels.wrapping_add(self.keys_bytes + self.values_bytes).cast::<f32>().wrapping_add(key / PACK_KEYS)
    }
}

/// Bytes of a thread's memory: queries, scores of two strips, weights, sums.
fn parts(plan: &AttentionPlan) -> [usize; 4] {
    [
        aligned(QUERIES * plan.query_bytes),
        2 * QUERIES * STRIP * 4,
        QUERIES * WEIGHT_BYTES,
        aligned(QUERIES * plan.sum_stride * 4),
    ]
}

/// How long the longest key of a head is.
///
/// # Safety
/// The keys are packed.
unsafe fn longest_key(block: &Block) -> f32 {
    let keys = (0..block.s.keys).step_by(PACK_KEYS);
    // SAFETY: the caller's.
    let lengths = keys.map(|key| unsafe { *block.plan.longest_key(block.panels.cast_mut(), key) });
    // By bits, so that NaN counts as the longest.
    lengths.fold(0.0f32, |a, b| f32::from_bits(a.to_bits().max(b.to_bits())))
}

/// By row, a bit for each key that it sees of the strip that begins with `key`.
#[inline(always)]
fn visible(block: &Block, key: usize) -> [u32; QUERIES] {
    let ([first_seen, _], keys) = (block.seen(), STRIP.min(block.s.keys - key));
    std::array::from_fn(|i| {
        let seen = if block.s.causal { (first_seen + i).saturating_sub(key).min(keys) } else { keys };
        u32::MAX.checked_shr((STRIP - seen) as u32).unwrap_or(0)
    })
}

/// One block of queries of one head against all keys.
///
/// # Safety
/// The keys are packed; nobody else writes these rows; the machine has tiles.
unsafe fn attend(block: &Block) {
    let Block { s, plan, count, own, .. } = *block;
    let [queries, scores, weights, sums] = lay_out(own, parts(plan));
    let sums = sums.cast::<f32>();
    // SAFETY: everything stays inside the operands, the panels and the thread's memory as `parts` says.
    unsafe {
        let scale = s.scale * PER_SCORE;
        let squares = panels::load_queries(block, queries);
        let mut offsets = Offsets::new(count, &squares, longest_key(block), scale);
        let products = Products::new(block, queries, scores.cast(), weights, sums);
        let [first_seen, last_seen] = block.seen();
        let mut seen = [0; QUERIES];
        // Strips that wait for their values.
        let mut waiting = 0;
        products.run(&products.scores(0));
        for key in (0..last_seen).step_by(STRIP) {
            // Where not every row sees the whole strip.
            let partly = key + STRIP > first_seen;
            if partly {
                seen = visible(block, key);
            }
            let strip = Strip { rows: count, scale, scores: products.strip(key), seen: partly.then_some(&seen) };
            let to = weights.add(2 * STRIP * waiting);
            // The next strip's scores are computed beside this one's weights.
            let next = (key + STRIP < last_seen).then(|| products.scores(key + STRIP));
            let beside = next.as_ref().filter(|_| products.is_full && !partly && offsets.settled());
            let mut weighed = beside.and_then(|tile| offsets.weigh_beside(&strip, to, tile));
            if weighed.is_none() {
                next.iter().for_each(|tile| products.run(tile));
                weighed = offsets.settled().then(|| offsets.weigh(&strip, to));
            }
            if weighed != Some(true) {
                products.add_values(key - waiting * STRIP, waiting);
                waiting = 0;
                offsets.lower(&strip, sums, plan.sum_stride);
                offsets.weigh(&strip, weights);
            }
            waiting += 1;
            if waiting == STRIPS || key + STRIP >= last_seen {
                products.add_values(key + STRIP - waiting * STRIP, waiting);
                waiting = 0;
            }
        }
        panels::store_results(block, sums, |row| offsets.spoiled(row));
    }
}

/// The matrix products of a block of queries, in a thread's memory as `parts` says. The safety of [`attend`] is that of every method.
struct Products<'a> {
    block: &'a Block<'a>,
    /// The scores of the first strip; those of the others differ in what they read and where they go.
    first: Tile,
    weights: *const u8,
    sums: *mut f32,
    /// All rows of the tiles are queries: the tiles are configured, and other work may be done beside products.
    is_full: bool,
}

impl<'a> Products<'a> {
    unsafe fn new(
        block: &'a Block<'a>,
        queries: *const u8,
        scores: *mut f32,
        weights: *const u8,
        sums: *mut f32,
    ) -> Products<'a> {
        let Block { s, plan, count, panels, .. } = *block;
        let is_full = count == QUERIES;
        if is_full {
            // SAFETY: the caller's.
            unsafe { amx::configure([HALF; 2]) };
        }
        let a = A { ptr: queries, stride: plan.query_bytes, k: plan.width };
        let first = tile(plan, count, a, panels, pack::panel_bytes(s.width, plan.number), scores, STRIP);
        Products { block, first, weights, sums, is_full }
    }

    #[inline]
    unsafe fn run(&self, tile: &Tile) {
        // SAFETY: the caller's.
        unsafe {
            match (self.is_full, tile.panels) {
                (true, 2) => amx::bf16_beside::<true>(tile, || {}),
                (true, _) => amx::bf16_beside::<false>(tile, || {}),
                _ => (self.block.plan.kernel.run)(tile),
            }
        }
    }

    /// Where the scores of the strip that begins with `key` lie, in one of two places.
    #[inline(always)]
    unsafe fn strip(&self, key: usize) -> *mut f32 {
        // SAFETY: the caller's.
        unsafe { self.first.c.add(key / STRIP % 2 * QUERIES * STRIP) }
    }

    /// The scores of the strip that begins with `key`.
    #[inline(always)]
    unsafe fn scores(&self, key: usize) -> Tile {
        // SAFETY: the caller's.
        unsafe {
            Tile {
                panels: STRIP.min(self.block.s.keys - key).div_ceil(PANEL),
                b: self.first.b.add(key / PANEL * self.first.panel_stride),
                c: self.strip(key),
                ..self.first
            }
        }
    }

    /// Adds the values of so many strips, times their weights.
    #[inline(always)]
    unsafe fn add_values(&self, first_key: usize, strips: usize) {
        let Block { s, plan, count, panels, .. } = *self.block;
        let value_bytes = pack::panel_bytes(s.keys, plan.number);
        let columns = if strips > 0 { s.value_width + 1 } else { 0 };
        for column in (0..columns).step_by(STRIP) {
            // SAFETY: the caller's.
            unsafe {
                let b = panels.add(plan.keys_bytes + column / PANEL * value_bytes + first_key * PANEL * 2);
                let a = A { ptr: self.weights, stride: WEIGHT_BYTES, k: strips * STRIP };
                let tile = tile(plan, count, a, b, value_bytes, self.sums.add(column), plan.sum_stride);
                let panels = STRIP.min(columns - column).div_ceil(PANEL);
                self.run(&Tile { panels, accumulate: first_key > 0, ..tile });
            }
        }
    }
}
