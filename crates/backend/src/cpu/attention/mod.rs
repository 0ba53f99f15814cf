//! Scaled-dot-product attention with a running softmax: the matrix of scores never exists.
//!
//! First the keys and values of every head are packed into panels, once (memory linear in tokens). Then blocks of
//! queries go through blocks of keys: scores, weights, weighted values; when a larger score comes up, what was summed so
//! far is scaled down. Vector kernels and matrix kernels go different ways through it (`rows`, `tiles`).

use impasto_graph::{Graph, Value};

use super::Cpu;
use super::gemm::drive::{convert_row, spread};
use super::gemm::{Expected, HALF, Kernel, Near, Number, PANEL, TILE_COLUMNS, Tile, pack};
use super::memory::ALIGNMENT;
use super::rows::{Dst, Rows, Src};
use super::session::{Env, Ptr, Run};
use crate::shapes::Heads;

mod rows;
#[cfg(target_arch = "x86_64")]
mod tiles;

/// Keys that are packed in one task.
const PACK_KEYS: usize = 512;

/// How a shape is computed, and where everything lies in scratch memory.
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
    attend: unsafe fn(&Block),
    /// Scratch memory of a thread.
    thread_bytes: usize,
}

impl Way {
    fn new(cpu: &Cpu, s: &Heads) -> Way {
        let number = cpu.number();
        let kernel = Kernel::of(cpu.isa(), number);
        let mut way = Way {
            number,
            kernel,
            block: rows::queries(&kernel),
            keys_bytes: pack::packed_bytes(s.keys, s.width, number),
            values_bytes: pack::packed_bytes(s.value_width, s.keys, number),
            query_bytes: spread(pack::padded_k(s.width, number) * number.bytes()),
            width: match number {
                Number::Bf16 if !kernel.matrix => s.width.next_multiple_of(2),
                _ => pack::padded_k(s.width, number),
            },
            sum_stride: s.value_width.next_multiple_of(PANEL),
            attend: rows::attend,
            thread_bytes: 0,
        };
        way.thread_bytes = rows::parts(&way).iter().sum();
        #[cfg(target_arch = "x86_64")]
        if kernel.matrix {
            (way.block, way.attend) = (tiles::QUERIES, tiles::attend);
            way.thread_bytes = tiles::parts(&way).iter().sum();
        }
        way
    }

    fn head_bytes(&self) -> usize {
        self.keys_bytes + self.values_bytes
    }
}

/// One block of queries of one head, to be compared with all keys.
struct Block<'a> {
    rows: &'a Rows,
    s: &'a Heads,
    way: &'a Way,
    q: Src,
    out: Dst,
    head: usize,
    /// The first query, and how many.
    first: usize,
    count: usize,
    /// The packed keys and values of the head.
    panels: *const u8,
    /// This thread's memory.
    own: *mut u8,
}

impl Block<'_> {
    /// Write the queries in the compute type.
    ///
    /// # Safety
    /// `to` has room for them.
    unsafe fn load_queries(&self, to: *mut u8) {
        let (s, stride) = (self.s, self.s.heads * self.s.width);
        // SAFETY: these rows lie inside the operand.
        unsafe {
            let q = self.q.at((self.head / s.heads * s.queries + self.first) * stride + self.head % s.heads * s.width);
            for i in 0..self.count {
                let to = to.add(i * self.way.query_bytes);
                convert_row(self.rows, self.way.number, q.at(i * stride), s.width, to);
            }
        }
    }

    /// The first key that the block's first query does not see, and the first that none of them sees.
    fn seen(&self) -> [usize; 2] {
        let s = self.s;
        // Where attention is causal, query `i` sees the keys up to `i` plus this.
        let offset = s.keys - s.queries.min(s.keys);
        match s.causal {
            true => [self.first + 1, self.first + self.count].map(|end| (end + offset).min(s.keys)),
            false => [s.keys; 2],
        }
    }

    /// Divide rows of sums by their totals and write them.
    ///
    /// # Safety
    /// There are that many sums; nobody else writes these rows.
    unsafe fn store(&self, sums: *mut f32, total: impl Fn(usize) -> f32) {
        let (s, stride) = (self.s, self.s.heads * self.s.value_width);
        // SAFETY: these rows lie inside the result.
        unsafe {
            let at = (self.head / s.heads * s.queries + self.first) * stride + self.head % s.heads * s.value_width;
            let out = self.out.at(at);
            for i in 0..self.count {
                let row = std::slice::from_raw_parts_mut(sums.add(i * self.way.sum_stride), s.value_width);
                (self.rows.scale)(row, 1.0 / total(i));
                (self.rows.store)(row, out.at(i * stride));
            }
        }
    }
}

/// Where the parts of a thread's memory begin, which have so many bytes.
fn lay_out<const N: usize>(own: *mut u8, bytes: [usize; N]) -> [*mut u8; N] {
    let mut at = 0;
    bytes.map(|bytes| {
        at += bytes;
        own.wrapping_add(at - bytes)
    })
}

/// Bytes of a part of scratch memory.
fn aligned(bytes: usize) -> usize {
    bytes.next_multiple_of(ALIGNMENT as usize)
}

pub(super) fn scratch_bytes(cpu: &Cpu, graph: &Graph, value: Value) -> u64 {
    let s = Heads::of(graph, value);
    let way = Way::new(cpu, &s);
    (s.batch * s.heads * way.head_bytes() + cpu.threads() * way.thread_bytes) as u64
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
                let own = scratch.add(heads * way.head_bytes() + thread * way.thread_bytes);
                let panels = scratch.add(head * way.head_bytes());
                (way.kernel.begin)();
                (way.attend)(&Block { rows, s: &s, way: &way, q, out, head, first, count, panels, own });
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

/// Rows of A in the compute type.
#[derive(Clone, Copy)]
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
                let (a, b) = (A { ptr: a.ptr.add(row * a.stride), ..a }, b.add(column / PANEL * panel_stride));
                let panels = (n - column).min(TILE_COLUMNS).div_ceil(PANEL);
                let tile = tile(way, count - row, a, b, panel_stride, c.add(row * c_stride + column), c_stride);
                (way.kernel.run)(&Tile { panels, accumulate, ..tile });
            }
        }
    }
}

/// The call for as many of `rows` rows as a tile has and two panels.
fn tile(way: &Way, rows: usize, a: A, b: *const u8, panel_stride: usize, c: *mut f32, c_stride: usize) -> Tile {
    Tile {
        rows: way.kernel.halves(rows),
        panels: 2,
        a: [a.ptr, a.ptr.wrapping_add(HALF * a.stride)],
        a_stride: a.stride,
        near: Near::A,
        fetch: b,
        fetch_lines: 4,
        expected: [Expected::NOTHING; 2],
        segments: &0,
        segment_count: 1,
        segment_k: a.k,
        b,
        panel_stride,
        c,
        c_stride,
        accumulate: false,
    }
}
