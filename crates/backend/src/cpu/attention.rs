//! Scaled-dot-product attention with a running softmax: the matrix of scores never exists.
//!
//! First the keys and values of every head are packed into panels, once (memory linear in tokens). Then blocks of
//! queries go through blocks of keys: scores, weights, weighted values; when a larger score comes up, what was summed so
//! far is scaled down.

use impasto_graph::{Graph, Value};

use super::Cpu;
use super::gemm::drive::{convert_row, spread};
use super::gemm::{HALF, Kernel, Number, PANEL, TILE_COLUMNS, Tile, pack};
use super::memory::ALIGNMENT;
use super::rows::{Dst, Rows, Softmax, Src};
use super::session::{Env, Ptr, Run};
use crate::shapes::Heads;

/// Keys of a block: their scores for a block of queries stay in the first cache.
const KEYS: usize = 256;
/// Numbers from one row of scores to the next: a line more than needed spreads the rows over the cache's sets.
const SCORES: usize = KEYS + 16;
/// Keys that are packed in one task.
const PACK_KEYS: usize = 512;

/// Where everything lies in scratch memory.
#[derive(Clone, Copy)]
struct Way {
    number: Number,
    kernel: Kernel,
    /// Queries of a block.
    block: usize,
    /// Panels of one head's keys, and of its values.
    keys_bytes: usize,
    values_bytes: usize,
    /// Bytes from one row of queries to the next.
    query_bytes: usize,
    /// Width of a head as products go through it: a matrix kernel needs all of the padding, pairs need to be whole.
    width: usize,
    /// Numbers from one row of sums to the next.
    sum_stride: usize,
    /// Parts of a thread's memory, one after the other: queries, scores, sums, and by row maximum, total, factor.
    parts: [usize; 4],
}

impl Way {
    fn new(cpu: &Cpu, s: &Heads) -> Way {
        let number = cpu.number();
        let kernel = Kernel::of(cpu.isa(), number);
        let block = (kernel.rows * if kernel.rows >= 12 { 4 } else { 8 }).min(64.max(kernel.rows));
        let query_bytes = spread(pack::padded_k(s.width, number) * number.bytes());
        let sum_stride = s.value_width.next_multiple_of(PANEL);
        let align = |bytes: usize| bytes.next_multiple_of(ALIGNMENT as usize);
        Way {
            number,
            kernel,
            block,
            keys_bytes: pack::packed_bytes(s.keys, s.width, number),
            values_bytes: pack::packed_bytes(s.value_width, s.keys, number),
            query_bytes,
            width: match number {
                Number::Bf16 if !kernel.matrix => s.width.next_multiple_of(2),
                _ => pack::padded_k(s.width, number),
            },
            sum_stride,
            parts: [
                align(block * query_bytes),
                // Weights take the place of the scores.
                align(block * SCORES * 4),
                align(block * sum_stride * 4),
                align(block * 12),
            ],
        }
    }

    fn thread_bytes(&self) -> usize {
        self.parts.iter().sum()
    }

    fn head_bytes(&self) -> usize {
        self.keys_bytes + self.values_bytes
    }
}

pub(super) fn scratch_bytes(cpu: &Cpu, graph: &Graph, value: Value) -> u64 {
    let s = Heads::of(graph, value);
    let way = Way::new(cpu, &s);
    (s.batch * s.heads * way.head_bytes() + cpu.threads() * way.thread_bytes()) as u64
}

pub(super) fn prepare(env: &Env, value: Value) -> Run {
    let s = Heads::of(env.graph, value);
    let way = Way::new(env.cpu, &s);
    let rows = env.cpu.rows();
    let [q, k, v] = [0, 1, 2].map(|i| env.operand(value, i));
    let (out, scratch) = (env.dst(value), env.scratch());
    let heads = s.batch * s.heads;
    let parts = s.keys.div_ceil(PACK_KEYS);
    let blocks = s.queries.div_ceil(way.block);
    Box::new(move |pool| {
        pool.each(heads * parts, &|_, task| {
            let (head, part) = (task / parts, task % parts);
            let keys = part * PACK_KEYS..s.keys.min((part + 1) * PACK_KEYS);
            // SAFETY: a task packs its own keys; sizes are those of `scratch_bytes`.
            unsafe { pack_keys(rows, &s, &way, k, v, head, keys, scratch) };
        });
        pool.each(heads * blocks, &|thread, task| {
            let (head, block) = (task / blocks, task % blocks);
            let first = block * way.block;
            let count = way.block.min(s.queries - first);
            // SAFETY: a task has its own rows and columns of the result, a thread its own scratch memory.
            unsafe {
                let own = scratch.add(heads * way.head_bytes() + thread * way.thread_bytes());
                (way.kernel.begin)();
                attend(rows, &s, &way, q, out, head, first, count, scratch.add(head * way.head_bytes()), own);
                (way.kernel.end)();
            }
        });
    })
}

/// Pack a range of one head's keys and values.
///
/// # Safety
/// The range begins at a multiple of 32 and of the panel; nobody else packs it.
#[allow(clippy::too_many_arguments, reason = "two operands, a head and a range of keys")]
unsafe fn pack_keys(
    rows: &Rows,
    s: &Heads,
    way: &Way,
    k: Src,
    v: Src,
    head: usize,
    keys: std::ops::Range<usize>,
    scratch: Ptr,
) {
    let (picture, head_of) = (head / s.heads, head % s.heads);
    let (k_stride, v_stride) = (s.heads * s.width, s.heads * s.value_width);
    // SAFETY: everything stays inside the operands and the head's panels.
    unsafe {
        let k = k.at(picture * s.keys * k_stride + head_of * s.width);
        let v = v.at(picture * s.keys * v_stride + head_of * s.value_width);
        let panels = scratch.add(head * way.head_bytes());
        for key in keys.clone().step_by(PANEL) {
            let to = panels.add(key / PANEL * pack::panel_bytes(s.width, way.number));
            let columns = PANEL.min(keys.end - key);
            pack::pack_rows(rows, way.number, k.at(key * k_stride), k_stride, columns, s.width, to);
        }
        let padded = match keys.end == s.keys {
            true => pack::padded_k(s.keys, way.number),
            false => keys.end,
        };
        for column in (0..s.value_width).step_by(PANEL) {
            let to = panels.add(way.keys_bytes + column / PANEL * pack::panel_bytes(s.keys, way.number));
            let columns = PANEL.min(s.value_width - column);
            pack::pack_columns(rows, way.number, v.at(column), v_stride, columns, keys.start, keys.len(), to);
            for c in 0..PANEL {
                // Columns that do not exist are zero everywhere, the others behind the last key.
                let from = if c < columns { keys.end } else { keys.start };
                pack::write_column(to, way.number, c, from, std::iter::repeat_n(0.0, padded - from));
            }
        }
    }
}

/// One block of queries of one head against all keys.
///
/// # Safety
/// The keys are packed; `own` is this thread's memory; nobody else writes these rows.
#[allow(clippy::too_many_arguments, reason = "an operand, a result, a block of a head and two pieces of memory")]
unsafe fn attend(
    rows: &Rows,
    s: &Heads,
    way: &Way,
    q: Src,
    out: Dst,
    head: usize,
    first: usize,
    count: usize,
    panels: *const u8,
    own: *mut u8,
) {
    let (picture, head_of) = (head / s.heads, head % s.heads);
    // SAFETY: everything stays inside the operands, the panels and the thread's memory as `Way` has laid it out.
    unsafe {
        let queries = own;
        let scores = own.add(way.parts[0]).cast::<f32>();
        let sums = own.add(way.parts[0] + way.parts[1]).cast::<f32>();
        let tops = own.add(way.parts[0] + way.parts[1] + way.parts[2]).cast::<f32>();
        let totals = tops.add(way.block);
        let factors = totals.add(way.block);

        let q_stride = s.heads * s.width;
        let q = q.at((picture * s.queries + first) * q_stride + head_of * s.width);
        for i in 0..count {
            convert_row(rows, way.number, q.at(i * q_stride), s.width, queries.add(i * way.query_bytes));
            *tops.add(i) = f32::NEG_INFINITY;
            *totals.add(i) = 0.0;
        }
        sums.write_bytes(0, way.block * way.sum_stride);

        let scale = s.scale * std::f32::consts::LOG2_E;
        // Query i sees the keys up to i + offset.
        let offset = s.keys - s.queries.min(s.keys);
        let last_seen = if s.causal { (first + count + offset).min(s.keys) } else { s.keys };
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
                    true => (first + i + offset + 1).saturating_sub(key).min(keys),
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

        let out_stride = s.heads * s.value_width;
        let out = out.at((picture * s.queries + first) * out_stride + head_of * s.value_width);
        for i in 0..count {
            let row = std::slice::from_raw_parts_mut(sums.add(i * way.sum_stride), s.value_width);
            (rows.scale)(row, 1.0 / *totals.add(i));
            (rows.store)(row, out.at(i * out_stride));
        }
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

/// Rows of A in the compute type.
struct A {
    ptr: *const u8,
    stride: usize,
    k: usize,
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
                (way.kernel.run)(&Tile {
                    rows: way.kernel.halves(count - row),
                    panels: (n - column).min(TILE_COLUMNS).div_ceil(PANEL),
                    a: [a.ptr.add(row * a.stride), a.ptr.wrapping_add((row + HALF) * a.stride)],
                    a_stride: a.stride,
                    stream_a: false,
                    fetch: b,
                    segments: &0,
                    segment_count: 1,
                    segment_k: a.k,
                    b: b.add(column / PANEL * panel_stride),
                    panel_stride,
                    c: c.add(row * c_stride + column),
                    c_stride,
                    accumulate,
                });
            }
        }
    }
}
