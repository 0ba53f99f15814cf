//! Attention on vector kernels: blocks of queries by blocks of keys, each block's scores at once.

use super::super::gemm::drive::convert_row;
use super::super::gemm::{Kernel, Number, PANEL, TILE_COLUMNS, Tile, pack};
use super::super::rows::{Rows, Softmax};
use super::{A, Block, Keys, Way, aligned, lay_out, tile};

/// Keys of a block: their scores for a block of queries stay in the first cache.
const KEYS: usize = 256;
/// Numbers from one row of scores to the next: a line more than needed spreads the rows over the cache's sets.
const SCORES: usize = KEYS + 16;

/// Queries of a block.
pub(super) fn queries(kernel: &Kernel) -> usize {
    (kernel.rows * if kernel.rows >= 12 { 4 } else { 8 }).min(64.max(kernel.rows))
}

/// Bytes of a thread's memory: queries, scores, sums, and by row maximum, total, factor.
pub(super) fn parts(way: &Way) -> [usize; 4] {
    [
        aligned(way.block * way.query_bytes),
        // Weights take the place of the scores.
        aligned(way.block * SCORES * 4),
        aligned(way.block * way.sum_stride * 4),
        aligned(way.block * 12),
    ]
}

/// One block of queries of one head against all keys.
///
/// # Safety
/// The keys are packed; nobody else writes these rows.
pub(super) unsafe fn attend(block: &Block) {
    let Block { rows, s, way, count, panels, own, .. } = *block;
    let [queries, scores, sums, tops] = lay_out(own, parts(way));
    let [scores, sums, tops] = [scores, sums, tops].map(|p| p.cast::<f32>());
    // SAFETY: everything stays inside the operands, the panels and the thread's memory as `parts` says.
    unsafe {
        let totals = tops.add(way.block);
        let factors = totals.add(way.block);

        load_queries(block, queries);
        for i in 0..count {
            *tops.add(i) = f32::NEG_INFINITY;
            *totals.add(i) = 0.0;
        }
        sums.write_bytes(0, way.block * way.sum_stride);

        let scale = s.scale * std::f32::consts::LOG2_E;
        let [first_seen, last_seen] = block.seen();
        for key in (0..last_seen).step_by(KEYS) {
            let keys = KEYS.min(s.keys - key);
            let padded = pack::padded_k(keys, way.number);
            let b = panels.add(key / PANEL * pack::panel_bytes(s.width, way.number));
            let a = A { ptr: queries, stride: way.query_bytes, k: way.width };
            product(way, count, keys, a, b, pack::panel_bytes(s.width, way.number), scores, SCORES, false);

            // Rows that see the same number of keys go together.
            let mut i = 0;
            while i < count {
                let seen = |i: usize| match s.causal {
                    true => (first_seen + i).saturating_sub(key).min(keys),
                    false => keys,
                };
                let same = (i..count).take_while(|&j| seen(j) == seen(i)).count();
                weigh(rows, way, scale, seen(i), padded, i, same, scores, [tops, totals, factors]);
                i += same;
            }
            for i in 0..count {
                if *factors.add(i) != 1.0 {
                    let row = std::slice::from_raw_parts_mut(sums.add(i * way.sum_stride), way.sum_stride);
                    (rows.scale)(row, *factors.add(i));
                }
            }

            let b = panels.add(way.keys_bytes + key * PANEL * way.number.bytes());
            let a = A { ptr: scores.cast(), stride: 4 * SCORES, k: padded };
            product(way, count, s.value_width, a, b, pack::panel_bytes(s.keys, way.number), sums, way.sum_stride, true);
        }
        store(block, sums, totals);
    }
}

/// Scores of `count` rows from `first` on to weights; what is hidden or padding weighs nothing.
///
/// # Safety
/// As [`attend`].
#[allow(clippy::too_many_arguments, reason = "rows of a block and where their parts lie")]
unsafe fn weigh(
    rows: &Rows,
    way: &Way,
    scale: f32,
    seen: usize,
    padded: usize,
    first: usize,
    count: usize,
    scores: *mut f32,
    [tops, totals, factors]: [*mut f32; 3],
) {
    // SAFETY: the caller's.
    unsafe {
        let scores = scores.add(first * SCORES);
        let narrow = scores.cast::<half::bf16>();
        let softmax = Softmax {
            rows: count,
            columns: seen,
            scale,
            scores: (scores, SCORES),
            weights: (way.number == Number::Bf16).then_some((narrow, 2 * SCORES)),
            tops: tops.add(first),
            totals: totals.add(first),
            factors: factors.add(first),
        };
        (rows.softmax)(&softmax);
        for row in 0..count {
            match way.number {
                Number::F32 => scores.add(row * SCORES + seen).write_bytes(0, padded - seen),
                Number::Bf16 => narrow.add(2 * row * SCORES + seen).write_bytes(0, padded - seen),
            }
        }
    }
}

/// `count` rows by `n` columns of sums.
///
/// # Safety
/// The pointers are good; `begin` was called.
#[allow(clippy::too_many_arguments, reason = "three matrices")]
unsafe fn product(
    way: &Way,
    count: usize,
    n: usize,
    a: A,
    b: *const u8,
    panel_stride: usize,
    c: *mut f32,
    c_stride: usize,
    accumulate: bool,
) {
    for column in (0..n).step_by(TILE_COLUMNS) {
        for row in (0..count).step_by(way.kernel.rows) {
            // SAFETY: the caller's.
            unsafe {
                let (a, b) = (A { ptr: a.ptr.add(row * a.stride), ..a }, b.add(column / PANEL * panel_stride));
                let panels = (n - column).min(TILE_COLUMNS).div_ceil(PANEL);
                let tile = tile(way, count - row, a, b, panel_stride, c.add(row * c_stride + column), c_stride);
                (way.kernel.run)(&Tile { panels, accumulate, ..tile });
            }
        }
    }
}

/// Write the queries in the compute type.
///
/// # Safety
/// `to` has room for them.
unsafe fn load_queries(block: &Block, to: *mut u8) {
    let Block { rows, s, way, q, count, .. } = *block;
    for i in 0..count {
        // SAFETY: these rows lie inside the operand.
        unsafe { convert_row(rows, way.number, q.at(i * s.heads * s.width), s.width, to.add(i * way.query_bytes)) };
    }
}

/// Divide rows of sums by their totals and write them.
///
/// # Safety
/// There are that many sums; nobody else writes these rows.
unsafe fn store(block: &Block, sums: *mut f32, totals: *const f32) {
    let Block { rows, s, way, out, count, .. } = *block;
    for i in 0..count {
        // SAFETY: these rows lie inside the result.
        unsafe {
            let row = std::slice::from_raw_parts_mut(sums.add(i * way.sum_stride), s.value_width);
            (rows.scale)(row, 1.0 / *totals.add(i));
            (rows.store)(row, out.at(i * s.heads * s.value_width));
        }
    }
}

/// Pack a range of one head's keys and values.
///
/// # Safety
/// The range begins at a multiple of 32 and of the panel; nobody else packs it.
pub(super) unsafe fn pack(keys: &Keys) {
    let Keys { rows, s, way, k, v, ref range, panels } = *keys;
    let (k_stride, v_stride) = (s.heads * s.width, s.heads * s.value_width);
    // SAFETY: everything stays inside the operands and the head's panels.
    unsafe {
        for key in range.clone().step_by(PANEL) {
            let to = panels.add(key / PANEL * pack::panel_bytes(s.width, way.number));
            let columns = PANEL.min(range.end - key);
            pack::pack_rows(rows, way.number, k.at(key * k_stride), k_stride, columns, s.width, to);
        }
        let padded = match range.end == s.keys {
            true => pack::padded_k(s.keys, way.number),
            false => range.end,
        };
        for column in (0..s.value_width).step_by(PANEL) {
            let to = panels.add(way.keys_bytes + column / PANEL * pack::panel_bytes(s.keys, way.number));
            let columns = PANEL.min(s.value_width - column);
            pack::pack_columns(rows, way.number, v.at(column), v_stride, columns, range.start, range.len(), to);
            for c in 0..PANEL {
                // Columns that do not exist are zero everywhere, the others behind the last key.
                let from = if c < columns { range.end } else { range.start };
                pack::write_column(to, way.number, c, from, std::iter::repeat_n(0.0, padded - from));
            }
        }
    }
}
