//! Scaled-dot-product attention with a running softmax: the matrix of scores never exists.
//!
//! First the keys and values of every head are packed into panels, once (memory linear in tokens). Then blocks of
//! queries go through blocks of keys: scores, weights, weighted values; when a larger score comes up, what was summed so
//! far is scaled down. Vector kernels and matrix kernels go different ways through it (`rows`, `tiles`).

use impasto_graph::{Graph, Value};

use super::gemm::drive::spread;
use super::gemm::{HALF, Kernel, Near, PANEL, ProductType, Tile, pack};
use super::memory::ALIGNMENT;
use super::rows::{Dst, Rows, Src};
use super::session::{Env, Run};
use super::{Cpu, Isa};
use crate::shapes::Heads;

mod rows;
#[cfg(target_arch = "x86_64")]
mod tiles;

/// Keys that are packed in one task.
const PACK_KEYS: usize = 512;

/// Blocks of queries in a task, at most: what a thread sets up for a task then costs little.
const TASK_BLOCKS: usize = 16;

/// Packed keys and values that stay in L2 while rows pass by.
const NEAR_BYTES: usize = 512 << 10;

/// How a shape is computed, and where everything lies in scratch memory.
#[derive(Clone, Copy)]
struct AttentionPlan {
    number: ProductType,
    kernel: Kernel,
    /// Queries of a block.
    block: usize,
    /// Panels of one head's keys, of its values, and of all that is packed of a head.
    keys_bytes: usize,
    values_bytes: usize,
    head_bytes: usize,
    /// Bytes from one row of queries to the next.
    query_bytes: usize,
    /// Width of a head as products go through it: a matrix kernel needs all of the padding, pairs need to be whole.
    width: usize,
    /// Numbers from one row of sums to the next.
    sum_stride: usize,
    pack: unsafe fn(&Keys),
    attend: unsafe fn(&Block),
    /// Scratch memory of a thread.
    thread_bytes: usize,
}

impl AttentionPlan {
    fn new(cpu: &Cpu, s: &Heads) -> AttentionPlan {
        let number = cpu.number();
        let kernel = cpu.kernel();
        let mut plan = AttentionPlan {
            number,
            kernel,
            block: rows::queries(&kernel),
            keys_bytes: pack::packed_bytes(s.keys, s.width, number),
            values_bytes: pack::packed_bytes(s.value_width, s.keys, number),
            head_bytes: 0,
            query_bytes: spread(pack::padded_k(s.width, number) * number.bytes()),
            width: match number {
                ProductType::Bf16 if !kernel.is_matrix() => s.width.next_multiple_of(2),
                _ => pack::padded_k(s.width, number),
            },
            sum_stride: s.value_width.next_multiple_of(PANEL),
            pack: rows::pack,
            attend: rows::attend,
            thread_bytes: 0,
        };
        plan.head_bytes = plan.keys_bytes + plan.values_bytes;
        plan.thread_bytes = rows::parts(&plan).iter().sum();
        #[cfg(target_arch = "x86_64")]
        if kernel.is_matrix() && s.bias.is_none() {
            tiles::change(&mut plan, s);
        }
        plan
    }
}

/// A range of one head's keys and values, to be packed.
struct Keys<'a> {
    rows: &'a Rows,
    s: &'a Heads,
    plan: &'a AttentionPlan,
    /// The first key and the first value of the head.
    k: Src,
    v: Src,
    range: std::ops::Range<usize>,
    /// Where the head's panels lie.
    panels: *mut u8,
}

/// One block of queries of one head, to be compared with all keys.
struct Block<'a> {
    rows: &'a Rows,
    s: &'a Heads,
    plan: &'a AttentionPlan,
    /// The first query of the block, and the first row of its result.
    q: Src,
    out: Dst,
    /// The number of the first query, and how many.
    first: usize,
    count: usize,
    /// The packed keys and values of the head.
    panels: *const u8,
    /// The bias of the first query, and how far it is to that of the next.
    bias: Option<(Src, usize)>,
    /// This thread's memory.
    own: *mut u8,
}

impl Block<'_> {
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
}

/// The trial of what a matrix path needs beside its products.
pub(super) fn self_test(isa: Isa) -> Result<(), String> {
    match isa {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: this runs in the child process that finds out.
        Isa::Amx => unsafe { tiles::self_test() },
        _ => Ok(()),
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
    let plan = AttentionPlan::new(cpu, &s);
    (s.batch * s.kv_heads * plan.head_bytes + cpu.threads() * plan.thread_bytes) as u64
}

pub(super) fn prepare(env: &Env, value: Value) -> Run {
    let s = Heads::of(env.graph, value);
    let plan = AttentionPlan::new(env.cpu, &s);
    let rows = env.cpu.rows();
    let [q, k, v] = [0, 1, 2].map(|i| env.operand(value, i));
    let bias = s.bias.map(|bias| (env.operand(value, 3), bias.strides));
    let (out, scratch) = (env.dst(value), env.scratch());
    // Heads that ask, and heads that are packed, of all pictures.
    let (heads, packed) = (s.batch * s.heads, s.batch * s.kv_heads);
    let group = s.heads / s.kv_heads;
    let parts = s.keys.div_ceil(PACK_KEYS);
    let blocks = s.queries.div_ceil(plan.block);
    // Heads that go together through a block's rows, which lie beside each other, where the caches hold the keys of all.
    let together = if s.kv_heads * plan.head_bytes <= NEAR_BYTES { s.heads } else { 1 };
    let task_blocks = (heads / together * blocks / (8 * env.cpu.threads())).clamp(1, TASK_BLOCKS);
    let tasks = blocks.div_ceil(task_blocks);
    // Of a tensor with so many heads, tokens, and numbers in each head: where a token of a head begins.
    let at = |heads: usize, head: usize, tokens: usize, token: usize, width: usize| {
        ((head / heads * tokens + token) * heads + head % heads) * width
    };
    Box::new(move |pool| {
        pool.each(packed * parts, &|_, task| {
            let (head, part) = (task / parts, task % parts);
            let range = part * PACK_KEYS..s.keys.min((part + 1) * PACK_KEYS);
            // SAFETY: a task packs its own keys; sizes are those of `scratch_bytes`.
            unsafe {
                let [k, v] =
                    [(k, s.width), (v, s.value_width)].map(|(x, width)| x.at(at(s.kv_heads, head, s.keys, 0, width)));
                let panels = scratch.add(head * plan.head_bytes);
                (plan.pack)(&Keys { rows, s: &s, plan: &plan, k, v, range, panels });
            }
        });
        pool.each(heads / together * tasks, &|thread, task| {
            let (head, task) = (task / tasks * together, task % tasks);
            // SAFETY: a task has its own rows and columns of the result, a thread its own scratch memory.
            unsafe {
                let own = scratch.add(packed * plan.head_bytes + thread * plan.thread_bytes);
                (plan.kernel.begin)();
                for block in task * task_blocks..blocks.min((task + 1) * task_blocks) {
                    let first = block * plan.block;
                    let count = plan.block.min(s.queries - first);
                    for head in head..head + together {
                        let panels = scratch.add(head / group * plan.head_bytes);
                        let q = q.at(at(s.heads, head, s.queries, first, s.width));
                        let out = out.at(at(s.heads, head, s.queries, first, s.value_width));
                        let bias = bias.map(|(bias, [picture, by_head, query])| {
                            let start = head / s.heads * picture + head % s.heads * by_head + first * query;
                            (bias.at(start), query)
                        });
                        (plan.attend)(&Block { rows, s: &s, plan: &plan, q, out, first, count, panels, bias, own });
                    }
                }
                (plan.kernel.end)();
            }
        });
    })
}

/// Rows of A in the compute type.
#[derive(Clone, Copy)]
struct A {
    ptr: *const u8,
    stride: usize,
    k: usize,
}

/// The call for as many of `rows` rows as a tile has and two panels.
fn tile(
    plan: &AttentionPlan,
    rows: usize,
    a: A,
    b: *const u8,
    panel_stride: usize,
    c: *mut f32,
    c_stride: usize,
) -> Tile {
    Tile {
        rows: plan.kernel.halves(rows),
        panels: 2,
        a: [a.ptr, a.ptr.wrapping_add(HALF * a.stride)],
        a_stride: a.stride,
        near: Near::A,
        fetch: b,
        fetch_lines: 4,
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
