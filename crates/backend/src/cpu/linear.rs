//! Linear layers and products of two computed matrices.

use std::ops::Range;

use impasto_graph::{DType, Graph, Op, Value};

use super::blocks::Decoding;
use super::gemm::drive::{Block, Product, Target, convert_row, spread, sums_bytes};
use super::gemm::share::{Partition, Room};
use super::gemm::{Kernel, PANEL, ProductType, pack};
use super::pool::Pool;
use super::rows::{Dst, Src};
use super::session::{Env, Ptr, Run, size};
use super::{Cpu, memory::ALIGNMENT};
use crate::shapes::epilogue;

/// Results of this size are no longer in L2 when they are read.
const STREAMED_BYTES: usize = 4 << 20;

/// A product of `m` rows by groups of rows that share a bias (pictures).
#[derive(Clone, Copy)]
struct Shape {
    groups: usize,
    /// Rows of a group.
    m: usize,
    /// Columns of the panels, and of the result: half as many, and without padding, where `gated`.
    n: usize,
    results: usize,
    gated: bool,
    k: usize,
    a_type: DType,
}

/// How a shape is computed.
#[derive(Clone, Copy)]
struct LinearPlan {
    number: ProductType,
    kernel: Kernel,
    partition: Partition,
    /// The rows of A are used where they lie.
    direct: bool,
    /// Bytes from one row of a converted block to the next.
    row_bytes: usize,
    /// Scratch memory of a thread.
    room: Room,
}

impl LinearPlan {
    fn new(cpu: &Cpu, s: &Shape) -> LinearPlan {
        let number = cpu.number();
        let kernel = cpu.kernel();
        let padded = pack::padded_k(s.k, number);
        let column_bytes = padded * number.bytes();
        let direct = number.dtype() == s.a_type && padded == s.k && Partition::passes(s.n, column_bytes, &kernel);
        let threads = cpu.threads().div_ceil(s.groups);
        let partition = Partition::new(s.m, s.n, column_bytes, direct, threads, &kernel);
        let row_bytes = spread(column_bytes);
        LinearPlan {
            number,
            kernel,
            partition,
            direct,
            row_bytes,
            room: Room::new(
                if direct { 0 } else { partition.rows * row_bytes },
                sums_bytes(&kernel, number, [1, partition.rows], partition.columns, 1, padded),
                1,
                s.n,
            ),
        }
    }
}

fn shape(graph: &Graph, value: Value) -> Shape {
    let node = graph.node(value);
    let (x, w) = (graph.ty(node.inputs[0]), graph.ty(node.inputs[1]));
    // A bias for each picture: rows of different pictures must not share a block.
    let per_picture =
        matches!(&node.op, Op::Linear { fused, .. } if fused.bias && graph.ty(node.inputs[2]).shape.len() == 2);
    let groups = if per_picture { x.shape[0] } else { 1 };
    let gated = matches!(node.op, Op::Linear { geglu: true, .. });
    Shape {
        groups,
        m: x.rows() / groups,
        n: pack::columns(w.shape[0], gated),
        results: graph.ty(value).channels(),
        gated,
        k: w.shape[1],
        a_type: x.dtype,
    }
}

/// How the weights of a linear layer are decoded first, if they are in blocks.
fn decoding(cpu: &Cpu, graph: &Graph, value: Value, plan: &LinearPlan) -> Option<Decoding> {
    let gated = matches!(graph.node(value).op, Op::Linear { geglu: true, .. });
    Decoding::new(cpu, graph, graph.node(value).inputs[1], gated, plan.partition.columns)
}

pub(super) fn scratch_bytes(cpu: &Cpu, graph: &Graph, value: Value) -> u64 {
    let plan = LinearPlan::new(cpu, &shape(graph, value));
    let decoded = decoding(cpu, graph, value, &plan).map_or(0, |decoding| decoding.bytes());
    (decoded + plan.room.bytes() * cpu.threads()) as u64
}

pub(super) fn prepare(env: &Env, value: Value) -> Run {
    let node = env.graph.node(value);
    let Op::Linear { fused, .. } = node.op else { unreachable!("called for linear layers") };
    let s = shape(env.graph, value);
    let (bias, residual) = epilogue(env.graph, value, fused);
    let [bias, residual] = [bias, residual].map(|operand| operand.map(|v| env.src(v)));
    let (a, out, scratch) = (env.src(node.inputs[0]), env.dst(value), env.scratch());
    let plan = LinearPlan::new(env.cpu, &s);
    let decoder = decoding(env.cpu, env.graph, value, &plan).map(|decoding| decoding.of(env, node.inputs[1]));
    let panels = if decoder.is_some() { std::ptr::null() } else { env.panels(node.inputs[1], s.gated) };
    let product = Product { kernel: plan.kernel, rows: env.cpu.rows(), number: plan.number, panels, k: s.k };
    // Held rows write a strip of columns, then the next: each line would be fetched from far away to be overwritten.
    let row_bytes = s.results * size(out.dtype);
    // A tile of values and gates may be half a line of results.
    let lines = !s.gated && [row_bytes, out.ptr as usize].iter().all(|at| at.is_multiple_of(ALIGNMENT as usize));
    let streamed = plan.kernel.is_matrix()
        && !plan.direct
        && residual.is_none()
        && lines
        && s.groups * s.m * row_bytes >= STREAMED_BYTES;
    let biases = if s.gated { 2 * s.results } else { s.results };
    // Columns `all` of the result, with panels that are there and scratch memory for each thread.
    let multiply = move |pool: &Pool, product: Product, all: Range<usize>, scratch: Ptr| {
        let (row_blocks, column_blocks) =
            (s.m.div_ceil(plan.partition.rows), all.len().div_ceil(plan.partition.columns));
        pool.each(s.groups * row_blocks * column_blocks, &|thread, task| {
            // Neighbouring tasks share their columns: the panels are still in the cache.
            let (columns, block) = (task / (s.groups * row_blocks), task % (s.groups * row_blocks));
            let (group, block) = (block / row_blocks, block % row_blocks);
            let n0 = all.start + columns * plan.partition.columns;
            let n = n0..all.end.min(n0 + plan.partition.columns);
            let m0 = block * plan.partition.rows;
            let m = plan.partition.rows.min(s.m - m0);
            let first = group * s.m + m0;
            // SAFETY: a task has its own rows and columns of the result, a thread its own scratch memory; sizes are
            // those that `scratch_bytes` and the plan agreed on.
            unsafe {
                let scratch = scratch.add(thread * plan.room.bytes());
                let first_bias = if s.groups > 1 { group * biases } else { 0 };
                let bias = bias.map(|b| b.at(first_bias)).map(|b| match s.gated {
                    true => plan.room.gated_bias(scratch, product.rows, b, biases, &n),
                    false => plan.room.bias(scratch, product.rows, b, 1, s.n, &n),
                });
                let target = Target {
                    bias,
                    bias_stride: 0,
                    activation: fused.activation,
                    residual: residual.map(|r| r.at(first * s.results)),
                    out: out.at(first * s.results),
                    row_stride: s.results,
                    line_stride: 0,
                    gated: s.gated,
                    streamed,
                };
                multiply_rows(&product, &plan, a.at(first * s.k), s.k, m, n, scratch, &target);
            }
        });
    };
    match decoder {
        None => Box::new(move |pool| multiply(pool, product, 0..s.n, scratch)),
        Some(decoder) => Box::new(move |pool| {
            for first in (0..s.n).step_by(decoder.decoding.columns) {
                // SAFETY: panels, then a room for each thread, as `scratch_bytes` has planned; the steps before are done.
                let (product, rooms) = unsafe {
                    let rooms = Ptr::new(scratch.add(decoder.decoding.bytes()));
                    (decoder.panels(pool, &product, first, scratch), rooms)
                };
                multiply(pool, product, first..s.n.min(first + decoder.decoding.columns), rooms);
            }
        }),
    }
}

/// One block of rows of A against some columns of B, converting the rows first where that is needed.
///
/// # Safety
/// As [`Product::block`]; `scratch` has the bytes of `way`.
#[allow(clippy::too_many_arguments, reason = "a block of rows, a range of columns, and where they go")]
unsafe fn multiply_rows(
    product: &Product,
    plan: &LinearPlan,
    a: Src,
    k: usize,
    m: usize,
    n: Range<usize>,
    scratch: *mut u8,
    target: &Target,
) {
    // SAFETY: the caller's.
    unsafe {
        let (ptr, row_stride) = if plan.direct {
            (a.ptr, k * plan.number.bytes())
        } else {
            for row in 0..m {
                convert_row(product.rows, plan.number, a.at(row * k), k, scratch.add(row * plan.row_bytes));
            }
            (scratch.cast_const(), plan.row_bytes)
        };
        let block = Block {
            ptr,
            row_stride,
            lines: 1,
            line_rows: m,
            line_stride: 0,
            segments: &[0],
            segment_k: pack::padded_k(k, plan.number),
            passing: plan.direct,
        };
        product.block(&block, n, plan.room.sums(scratch), target);
    }
}

/// A product of computed matrices: B is packed into scratch memory first.
pub(super) mod matmul {
    use super::*;

    fn shape(graph: &Graph, value: Value) -> (Shape, usize) {
        let node = graph.node(value);
        let (a, out) = (graph.ty(node.inputs[0]), graph.ty(value));
        let rank = a.shape.len();
        let batch = a.shape[..rank - 2].iter().product();
        let (m, n, k) = (a.shape[rank - 2], out.channels(), a.channels());
        (Shape { groups: 1, m, n, results: n, gated: false, k, a_type: a.dtype }, batch)
    }

    fn packed_bytes(cpu: &Cpu, s: &Shape) -> usize {
        pack::packed_bytes(s.n, s.k, cpu.number()).next_multiple_of(ALIGNMENT as usize)
    }

    pub(in super::super) fn scratch_bytes(cpu: &Cpu, graph: &Graph, value: Value) -> u64 {
        let (s, _) = shape(graph, value);
        (packed_bytes(cpu, &s) + LinearPlan::new(cpu, &s).room.bytes() * cpu.threads()) as u64
    }

    pub(in super::super) fn prepare(env: &Env, value: Value) -> Run {
        let node = env.graph.node(value);
        let Op::MatMul { transpose_b } = node.op else { unreachable!("called for matrix products") };
        let (s, batch) = shape(env.graph, value);
        let plan = LinearPlan::new(env.cpu, &s);
        let (a, b, out): (Src, Src, Dst) = (env.src(node.inputs[0]), env.src(node.inputs[1]), env.dst(value));
        let panels = env.scratch();
        let packed = packed_bytes(env.cpu, &s);
        let product =
            Product { kernel: plan.kernel, rows: env.cpu.rows(), number: plan.number, panels: panels.get(), k: s.k };
        Box::new(move |pool| {
            for entry in 0..batch {
                // SAFETY: a task has its own panel, then its own rows and columns; sizes are as planned.
                let b = unsafe { b.at(entry * s.n * s.k) };
                // SAFETY: as above.
                pool.each(s.n.div_ceil(PANEL), &|_, panel| unsafe {
                    let columns = PANEL.min(s.n - panel * PANEL);
                    let to = panels.add(panel * pack::panel_bytes(s.k, plan.number));
                    if transpose_b {
                        pack::pack_rows(product.rows, plan.number, b.at(panel * PANEL * s.k), s.k, columns, s.k, to);
                    } else {
                        pack::pack_columns(product.rows, plan.number, b.at(panel * PANEL), s.n, columns, 0, s.k, to);
                        pack::zero_padding(to, plan.number, columns, s.k);
                    }
                });
                let (row_blocks, column_blocks) =
                    (s.m.div_ceil(plan.partition.rows), s.n.div_ceil(plan.partition.columns));
                pool.each(row_blocks * column_blocks, &|thread, task| {
                    let n0 = task / row_blocks * plan.partition.columns;
                    let n = n0..s.n.min(n0 + plan.partition.columns);
                    let m0 = task % row_blocks * plan.partition.rows;
                    let m = plan.partition.rows.min(s.m - m0);
                    // SAFETY: as above.
                    unsafe {
                        let target = Target {
                            bias: None,
                            bias_stride: 0,
                            activation: None,
                            residual: None,
                            out: out.at((entry * s.m + m0) * s.n),
                            row_stride: s.n,
                            line_stride: 0,
                            gated: false,
                            streamed: false,
                        };
                        let scratch = panels.add(packed + thread * plan.room.bytes());
                        multiply_rows(&product, &plan, a.at((entry * s.m + m0) * s.k), s.k, m, n, scratch, &target);
                    }
                });
            }
        })
    }
}
