//! Norms and softmax.
//!
//! The statistics of an image are kept by row of pixels as (count, mean, M2) and combined in the order of the rows, so
//! that an image cut into bands of rows yields the same bits.

use impasto_graph::{Graph, Op, Unary, Value};

use super::Cpu;
use super::memory::ALIGNMENT;
use super::pool::Pool;
use super::rows::{Dst, Norm, Rows, Softmax, Src};
use super::session::{Env, Ptr, Run};
use crate::shapes::{Image, rows_together};

/// Rows of channels that each thread has for itself.
const OWN_ROWS: usize = 3;

fn row_len(i: &Image) -> usize {
    i.channels.next_multiple_of(ALIGNMENT as usize / 4)
}

/// The rows of a thread; they lie one after the other for all threads.
///
/// # Safety
/// `scratch` has [`OWN_ROWS`] rows for each thread, and only this thread uses its own.
unsafe fn own<'a>(scratch: Ptr, i: &Image, thread: usize) -> [&'a mut [f32]; OWN_ROWS] {
    let at = |part: usize| 4 * (thread * OWN_ROWS + part) * row_len(i);
    // SAFETY: the caller's; the rows do not overlap.
    std::array::from_fn(|part| unsafe {
        std::slice::from_raw_parts_mut(scratch.add(at(part)).cast::<f32>(), i.channels)
    })
}

pub(super) fn lines_scratch(cpu: &Cpu, graph: &Graph, value: Value) -> u64 {
    (4 * cpu.threads() * OWN_ROWS * row_len(&Image::of(graph, value))) as u64
}

/// Parts of the scratch memory of a whole group norm in `f32`, before the rows of the threads: statistics by line and group; mean,
/// scale and shift by channel.
fn parts(i: &Image) -> [usize; 2] {
    let align = |n: usize| n.next_multiple_of(ALIGNMENT as usize / 4);
    [align(i.batch * i.lines * i.groups * 2), align(i.batch * i.channels * 3)]
}

pub(super) fn group_norm_scratch(cpu: &Cpu, graph: &Graph, value: Value) -> u64 {
    4 * parts(&Image::of(graph, value)).iter().sum::<usize>() as u64 + lines_scratch(cpu, graph, value)
}

/// Statistics, factors and the norm itself, one after the other.
pub(super) fn group_norm(env: &Env, value: Value) -> Run {
    let Op::GroupNorm { eps, activation, .. } = env.graph.node(value).op else {
        unreachable!("called for group norms")
    };
    let i = Image::of(env.graph, value);
    let [stats_len, factors_len] = parts(&i);
    let rows = env.cpu.rows();
    let [x, gamma, beta] = [0, 1, 2].map(|o| env.operand(value, o));
    let (out, scratch) = (env.dst(value), env.scratch());
    Box::new(move |pool| {
        // SAFETY: the parts lie one after the other in the planned scratch memory.
        unsafe {
            let stats = Ptr::new(scratch.get());
            let factors = Ptr::new(scratch.add(4 * stats_len));
            let own = Ptr::new(scratch.add(4 * (stats_len + factors_len)));
            all_statistics(pool, rows, &i, x, stats, own);
            all_factors(rows, &i, eps, stats, [gamma, beta], factors);
            normalise_all(pool, rows, &i, activation, x, factors, out);
        }
    })
}

pub(super) fn line_statistics(env: &Env, value: Value) -> Run {
    let (i, rows) = (Image::of(env.graph, value), env.cpu.rows());
    let (x, stats, own) = (env.operand(value, 0), Ptr::new(env.dst(value).ptr), env.scratch());
    // SAFETY: result and scratch memory have the planned sizes.
    Box::new(move |pool| unsafe { all_statistics(pool, rows, &i, x, stats, own) })
}

pub(super) fn factors(env: &Env, value: Value) -> Run {
    let Op::NormFactors { eps, .. } = env.graph.node(value).op else { unreachable!("called for factors") };
    let (i, rows) = (Image::of(env.graph, value), env.cpu.rows());
    let [stats, gamma, beta] = [0, 1, 2].map(|o| env.operand(value, o));
    let (stats, out) = (Ptr::new(stats.ptr.cast_mut()), Ptr::new(env.dst(value).ptr));
    // SAFETY: statistics are `f32`, and the result has three rows for each picture.
    Box::new(move |_| unsafe { all_factors(rows, &i, eps, stats, [gamma, beta], out) })
}

pub(super) fn normalise(env: &Env, value: Value) -> Run {
    let Op::Normalise { activation } = env.graph.node(value).op else { unreachable!("called for norms") };
    let (i, rows) = (Image::of(env.graph, value), env.cpu.rows());
    let (x, factors) = (env.operand(value, 0), Ptr::new(env.operand(value, 1).ptr.cast_mut()));
    let out = env.dst(value);
    // SAFETY: the result has the planned size; factors are `f32`.
    Box::new(move |pool| unsafe { normalise_all(pool, rows, &i, activation, x, factors, out) })
}

/// Mean and M2 of each group of each line.
///
/// # Safety
/// `x` is the image, `stats` has two numbers for each line and group, `scratch` the rows of each thread.
unsafe fn all_statistics(pool: &Pool, rows: &Rows, i: &Image, x: Src, stats: Ptr, scratch: Ptr) {
    pool.each(i.batch * i.lines, &|thread, line| {
        // SAFETY: the line lies in the tensor, its statistics in their own place, which no other task writes.
        unsafe {
            let [sums, means, room] = own(scratch, i, thread);
            let x = x.at(line * i.pixels * i.channels);
            let to = stats.add(4 * line * i.groups * 2).cast::<f32>();
            let to = std::slice::from_raw_parts_mut(to, i.groups * 2);
            of_line(rows, x, i.pixels, i.channels / i.groups, sums, means, room, to);
        }
    });
}

/// Mean, scale and shift of each channel of each picture.
///
/// # Safety
/// As [`all_statistics`], which has run; `factors` has three rows for each picture.
unsafe fn all_factors(rows: &Rows, i: &Image, eps: f32, stats: Ptr, [gamma, beta]: [Src; 2], factors: Ptr) {
    let (c, group) = (i.channels, i.channels / i.groups);
    for picture in 0..i.batch {
        // SAFETY: all statistics are written, and no other thread runs now.
        unsafe {
            let stats = stats.add(4 * picture * i.lines * i.groups * 2).cast::<f32>();
            let stats = std::slice::from_raw_parts(stats, i.lines * i.groups * 2);
            let factors = std::slice::from_raw_parts_mut(factors.add(4 * picture * 3 * c).cast::<f32>(), 3 * c);
            let (means, rest) = factors.split_at_mut(c);
            let (scale, shift) = rest.split_at_mut(c);
            (rows.load)(gamma, scale);
            (rows.load)(beta, shift);
            for g in 0..i.groups {
                let (mean, variance) = combine(stats, g, i);
                let inverse = 1.0 / (variance + eps as f64).sqrt();
                for j in g * group..(g + 1) * group {
                    means[j] = mean as f32;
                    scale[j] = (scale[j] as f64 * inverse) as f32;
                }
            }
        }
    }
}

/// Every pixel by the factors of its picture.
///
/// # Safety
/// `x` and `out` are the image, which may be the same; `factors` has three rows for each picture.
unsafe fn normalise_all(
    pool: &Pool,
    rows: &Rows,
    i: &Image,
    activation: Option<Unary>,
    x: Src,
    factors: Ptr,
    out: Dst,
) {
    let c = i.channels;
    pool.each(i.batch * i.lines, &|_, line| {
        // SAFETY: each task has its own line of the result, which may be the operand's own.
        unsafe {
            let factors = factors.add(4 * (line / i.lines) * 3 * c).cast::<f32>();
            let factors = std::slice::from_raw_parts(factors, 3 * c);
            let (mean, rest) = factors.split_at(c);
            let (scale, shift) = rest.split_at(c);
            let at = line * i.pixels * c;
            (rows.normalise)(x.at(at), out.at(at), i.pixels, &Norm { mean, scale, shift, activation });
        }
    });
}

/// Mean and M2 of each group over one line of pixels.
///
/// # Safety
/// `x` is good for the line; the slices have a number for each channel.
#[allow(clippy::too_many_arguments, reason = "a line of pixels, room for three rows, and the result")]
unsafe fn of_line(
    rows: &Rows,
    x: Src,
    pixels: usize,
    group: usize,
    sums: &mut [f32],
    means: &mut [f32],
    room: &mut [f32],
    to: &mut [f32],
) {
    let count = (pixels * group) as f32;
    // SAFETY: the caller's.
    unsafe {
        sums.fill(0.0);
        (rows.add_rows)(sums, x, pixels, room);
        for (g, to) in to.chunks_exact_mut(2).enumerate() {
            to[0] = (rows.sum)(&sums[g * group..(g + 1) * group]) / count;
            means[g * group..(g + 1) * group].fill(to[0]);
        }
        sums.fill(0.0);
        (rows.add_squares)(sums, x, pixels, means, room);
        for (g, to) in to.chunks_exact_mut(2).enumerate() {
            to[1] = (rows.sum)(&sums[g * group..(g + 1) * group]);
        }
    }
}

/// Mean and variance of a group of one picture: its lines combined from top to bottom.
fn combine(stats: &[f32], g: usize, i: &Image) -> (f64, f64) {
    let line_count = (i.pixels * (i.channels / i.groups)) as f64;
    let (mut count, mut mean, mut m2) = (0.0, 0.0, 0.0);
    for line in 0..i.lines {
        let at = (line * i.groups + g) * 2;
        let (line_mean, line_m2) = (stats[at] as f64, stats[at + 1] as f64);
        let total = count + line_count;
        let delta = line_mean - mean;
        mean += delta * line_count / total;
        m2 += line_m2 + delta * delta * count * line_count / total;
        count = total;
    }
    (mean, m2 / count)
}

/// Rows that are done in one task.
const TASK_ROWS: usize = 16;

pub(super) fn by_row_scratch(cpu: &Cpu, graph: &Graph, value: Value) -> u64 {
    let c = graph.ty(value).channels().next_multiple_of(ALIGNMENT as usize / 4);
    (4 * cpu.threads() * c * 3) as u64
}

/// Layer norm, root-mean-square norm and softmax: each row by itself.
pub(super) fn by_row(env: &Env, value: Value) -> Run {
    let node = env.graph.node(value);
    let op = node.op.clone();
    let ty = env.graph.ty(value);
    let (m, c) = (ty.rows(), ty.channels());
    let padded = c.next_multiple_of(ALIGNMENT as usize / 4);
    let rows = env.cpu.rows();
    let x = env.operand(value, 0);
    let params: Vec<Src> = (1..node.inputs.len()).map(|i| env.operand(value, i)).collect();
    // Rows that have the same scale and shift.
    let together = rows_together(env.graph, value);
    let (out, scratch): (Dst, _) = (env.dst(value), env.scratch());
    Box::new(move |pool| {
        pool.each(m.div_ceil(TASK_ROWS), &|thread, task| {
            // SAFETY: each thread has its own rows of scratch memory, each task its own rows of the result.
            unsafe {
                let own = scratch.add(4 * thread * padded * 3).cast::<f32>();
                let row = std::slice::from_raw_parts_mut(own, c);
                let scale = std::slice::from_raw_parts_mut(own.add(padded), c);
                let shift = std::slice::from_raw_parts_mut(own.add(2 * padded), c);
                shift.fill(0.0);
                let mut loaded = None;
                for i in task * TASK_ROWS..m.min((task + 1) * TASK_ROWS) {
                    let picture = i / together;
                    if loaded.replace(picture) != Some(picture) {
                        for (param, to) in params.iter().zip([&mut *scale, &mut *shift]) {
                            (rows.load)(param.at(picture * c), to);
                        }
                    }
                    (rows.load)(x.at(i * c), row);
                    one_row(rows, &op, row, scale, shift);
                    (rows.store)(row, out.at(i * c));
                }
            }
        });
    })
}

/// # Safety
/// The machine has the instructions of `rows`.
unsafe fn one_row(rows: &Rows, op: &Op, row: &mut [f32], scale: &[f32], shift: &[f32]) {
    let n = row.len() as f32;
    // SAFETY: the caller's.
    unsafe {
        match op {
            Op::LayerNorm { eps } => {
                let mean = (rows.sum)(row) / n;
                let inverse = 1.0 / ((rows.sum_squares)(row, mean) / n + eps).sqrt();
                (rows.normalise_row)(row, mean, inverse, scale, shift);
            }
            Op::RmsNorm { eps } => {
                let inverse = 1.0 / ((rows.sum_squares)(row, 0.0) / n + eps).sqrt();
                (rows.normalise_row)(row, 0.0, inverse, scale, shift);
            }
            _ => {
                let (mut top, mut total, mut factor) = (f32::NEG_INFINITY, 0.0, 1.0);
                (rows.softmax)(&Softmax {
                    rows: 1,
                    columns: row.len(),
                    scale: std::f32::consts::LOG2_E,
                    scores: (row.as_mut_ptr(), 0),
                    weights: None,
                    tops: &mut top,
                    totals: &mut total,
                    factors: &mut factor,
                });
                (rows.scale)(row, 1.0 / total);
            }
        }
    }
}
