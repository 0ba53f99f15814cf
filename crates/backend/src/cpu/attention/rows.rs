//! Attention on vector kernels: blocks of queries by blocks of keys, each block's scores at once.

use impasto_graph::HIDDEN;

use super::super::gemm::drive::convert_row;
use super::super::gemm::{Kernel, PANEL, ProductType, TILE_COLUMNS, Tile, pack};
use super::super::rows::{Rows, Softmax, Src};
use super::{A, AttentionPlan, Block, Keys, aligned, lay_out, tile};

/// Keys of a block: their scores for a block of queries stay in the first cache.
const KEYS: usize = 256;
/// Numbers from one row of scores to the next: a line more than needed spreads the rows over the cache's sets.
const SCORES: usize = KEYS + 16;

/// Queries of a block.
pub(super) fn queries(kernel: &Kernel) -> usize {
    (kernel.rows * if kernel.rows >= 12 { 4 } else { 8 }).min(64.max(kernel.rows))
}

/// Bytes of a thread's memory: queries, scores, sums, and by row maximum, total, factor.
pub(super) fn parts(plan: &AttentionPlan) -> [usize; 4] {
    [
        aligned(plan.block * plan.query_bytes),
        // Weights take the place of the scores.
        aligned(plan.block * SCORES * 4),
        aligned(plan.block * plan.sum_stride * 4),
        aligned(plan.block * 12),
    ]
}

/// One block of queries of one head against all keys.
///
/// # Safety
/// The keys are packed; nobody else writes these rows.
pub(super) unsafe fn attend(block: &Block) {
    let Block { rows, s, plan, count, panels, own, .. } = *block;
    let [queries, scores, sums, tops] = lay_out(own, parts(plan));
    let [scores, sums, tops] = [scores, sums, tops].map(|p| p.cast::<f32>());
    // SAFETY: everything stays inside the operands, the panels and the thread's memory as `parts` says.
    unsafe {
        let totals = tops.add(plan.block);
        let factors = totals.add(plan.block);

        load_queries(block, queries);
        for i in 0..count {
            *tops.add(i) = f32::NEG_INFINITY;
            *totals.add(i) = 0.0;
        }
        sums.write_bytes(0, plan.block * plan.sum_stride);

        let scale = if block.bias.is_some() { 1.0 } else { s.scale } * std::f32::consts::LOG2_E;
        let [first_seen, last_seen] = block.seen();
        for key in (0..last_seen).step_by(KEYS) {
            let keys = KEYS.min(s.keys - key);
            let padded = pack::padded_k(keys, plan.number);
            let b = panels.add(key / PANEL * pack::panel_bytes(s.width, plan.number));
            let a = A { ptr: queries, stride: plan.query_bytes, k: plan.width };
            product(plan, count, keys, a, b, pack::panel_bytes(s.width, plan.number), scores, SCORES, false);

            if let Some((bias, stride)) = block.bias {
                for i in 0..count {
                    let row = std::slice::from_raw_parts_mut(scores.add(i * SCORES), keys);
                    add_bias(rows, s.scale, bias.at(i * stride + key), row);
                }
            }

            // Rows that see the same number of keys go together.
            let mut i = 0;
            while i < count {
                let seen = |i: usize| match s.causal {
                    true => (first_seen + i).saturating_sub(key).min(keys),
                    false => keys,
                };
                let same = (i..count).take_while(|&j| seen(j) == seen(i)).count();
                weigh(rows, plan, scale, seen(i), padded, i, same, scores, [tops, totals, factors]);
                i += same;
            }
            for i in 0..count {
                if *factors.add(i) != 1.0 {
                    let row = std::slice::from_raw_parts_mut(sums.add(i * plan.sum_stride), plan.sum_stride);
                    (rows.scale)(row, *factors.add(i));
                }
            }

            let b = panels.add(plan.keys_bytes + key * PANEL * plan.number.bytes());
            let a = A { ptr: scores.cast(), stride: 4 * SCORES, k: padded };
            product(
                plan,
                count,
                s.value_width,
                a,
                b,
                pack::panel_bytes(s.keys, plan.number),
                sums,
                plan.sum_stride,
                true,
            );
        }
        store(block, sums, totals);
    }
}

/// Scales a row of scores and adds its bias.
///
/// # Safety
/// There are as many biases, and at most `KEYS`.
unsafe fn add_bias(rows: &Rows, scale: f32, bias: Src, scores: &mut [f32]) {
    let mut biases = [0.0; KEYS];
    let biases = &mut biases[..scores.len()];
    // SAFETY: the caller's.
    unsafe { (rows.load)(bias, biases) };
    for (score, bias) in scores.iter_mut().zip(biases) {
        *score = *score * scale + bias.max(HIDDEN);
    }
}

/// Scores of `count` rows from `first` on to weights; what is hidden or padding weighs nothing.
///
/// # Safety
/// As [`attend`].
#[allow(clippy::too_many_arguments, reason = "rows of a block and where their parts lie")]
unsafe fn weigh(
    rows: &Rows,
    plan: &AttentionPlan,
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
            weights: (plan.number == ProductType::Bf16).then_some((narrow, 2 * SCORES)),
            tops: tops.add(first),
            totals: totals.add(first),
            factors: factors.add(first),
        };
        (rows.softmax)(&softmax);
        for row in 0..count {
            match plan.number {
                ProductType::F32 => scores.add(row * SCORES + seen).write_bytes(0, padded - seen),
                ProductType::Bf16 => narrow.add(2 * row * SCORES + seen).write_bytes(0, padded - seen),
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
    plan: &AttentionPlan,
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
        for row in (0..count).step_by(plan.kernel.rows) {
            // SAFETY: the caller's.
            unsafe {
                let (a, b) = (A { ptr: a.ptr.add(row * a.stride), ..a }, b.add(column / PANEL * panel_stride));
                let panels = (n - column).min(TILE_COLUMNS).div_ceil(PANEL);
                let tile = tile(plan, count - row, a, b, panel_stride, c.add(row * c_stride + column), c_stride);
                (plan.kernel.run)(&Tile { panels, accumulate, ..tile });
            }
        }
    }
}

/// Write the queries in the compute type.
///
/// # Safety
/// `to` has room for them.
unsafe fn load_queries(block: &Block, to: *mut u8) {
    let Block { rows, s, plan, q, count, .. } = *block;
    for i in 0..count {
        // SAFETY: these rows lie inside the operand.
        unsafe { convert_row(rows, plan.number, q.at(i * s.heads * s.width), s.width, to.add(i * plan.query_bytes)) };
    }
}

/// Divide rows of sums by their totals and write them.
///
/// # Safety
/// There are that many sums; nobody else writes these rows.
unsafe fn store(block: &Block, sums: *mut f32, totals: *const f32) {
    let Block { rows, s, plan, out, count, .. } = *block;
    for i in 0..count {
        // SAFETY: these rows lie inside the result.
        unsafe {
            let row = std::slice::from_raw_parts_mut(sums.add(i * plan.sum_stride), s.value_width);
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
    let Keys { rows, s, plan, k, v, ref range, panels } = *keys;
    let (k_stride, v_stride) = (s.kv_heads * s.width, s.kv_heads * s.value_width);
    // SAFETY: everything stays inside the operands and the head's panels.
    unsafe {
        for key in range.clone().step_by(PANEL) {
            let to = panels.add(key / PANEL * pack::panel_bytes(s.width, plan.number));
            let columns = PANEL.min(range.end - key);
            pack::pack_rows(rows, plan.number, k.at(key * k_stride), k_stride, columns, s.width, to);
        }
        let padded = match range.end == s.keys {
            true => pack::padded_k(s.keys, plan.number),
            false => range.end,
        };
        for column in (0..s.value_width).step_by(PANEL) {
            let to = panels.add(plan.keys_bytes + column / PANEL * pack::panel_bytes(s.keys, plan.number));
            let columns = PANEL.min(s.value_width - column);
            pack::pack_columns(rows, plan.number, v.at(column), v_stride, columns, range.start, range.len(), to);
            for c in 0..PANEL {
                // Columns that do not exist are zero everywhere, the others after the last key.
                let from = if c < columns { range.end } else { range.start };
                pack::write_column(to, plan.number, c, from, std::iter::repeat_n(0.0, padded - from));
            }
        }
    }
}
