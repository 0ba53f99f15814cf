//! Norms and softmax.
//!
//! The statistics of an image are kept by row of pixels as (count, mean, M2) and combined in the order of the rows, so
//! that an image cut into bands of rows yields the same bits.

use impasto_graph::{Graph, Op, Value};

use super::Cpu;
use super::memory::ALIGNMENT;
use super::rows::{Dst, Rows, Softmax, Src};
use super::session::{Env, Run};
use crate::shapes::Image;

/// Parts of the scratch memory in `f32`: statistics by line and group, mean, scale and shift by channel, rows of each thread.
fn parts(cpu: &Cpu, i: &Image) -> [usize; 3] {
    let align = |n: usize| n.next_multiple_of(ALIGNMENT as usize / 4);
    [align(i.batch * i.lines * i.groups * 2), align(i.batch * i.channels * 3), cpu.threads() * align(i.channels) * 4]
}

pub(super) fn group_norm_scratch(cpu: &Cpu, graph: &Graph, value: Value) -> u64 {
    4 * parts(cpu, &Image::of(graph, value)).iter().sum::<usize>() as u64
}

pub(super) fn group_norm(env: &Env, value: Value) -> Run {
    let Op::GroupNorm { eps, activation, .. } = env.graph.node(value).op else {
        unreachable!("called for group norms")
    };
    let i = Image::of(env.graph, value);
    let [stats_len, factors_len, rows_len] = parts(env.cpu, &i);
    let per_thread = rows_len / env.cpu.threads();
    let rows = env.cpu.rows();
    let [x, gamma, beta] = [0, 1, 2].map(|o| env.operand(value, o));
    let (out, scratch) = (env.dst(value), env.scratch());
    let (c, group) = (i.channels, i.channels / i.groups);
    Box::new(move |pool| {
        // SAFETY: the parts lie one after the other in the planned scratch memory; each task writes its own lines.
        let stats = |at: usize| unsafe { scratch.add(4 * at).cast::<f32>() };
        // SAFETY: as above.
        let factors = |at: usize| unsafe { scratch.add(4 * (stats_len + at)).cast::<f32>() };
        // SAFETY: as above; each thread has its own rows.
        let own = |thread: usize, part: usize| unsafe {
            let at = stats_len + factors_len + thread * per_thread + part * (per_thread / 4);
            std::slice::from_raw_parts_mut(scratch.add(4 * at).cast::<f32>(), c)
        };

        pool.each(i.batch * i.lines, &|thread, line| {
            let (sums, means, row) = (own(thread, 0), own(thread, 1), own(thread, 2));
            // SAFETY: the line lies in the tensor, its statistics in their own place.
            unsafe {
                let x = x.at(line * i.pixels * c);
                let to = std::slice::from_raw_parts_mut(stats(line * i.groups * 2), i.groups * 2);
                line_statistics(rows, x, i.pixels, group, sums, means, row, to);
            }
        });

        for picture in 0..i.batch {
            // SAFETY: all statistics are written, and no other thread runs now.
            unsafe {
                let stats = std::slice::from_raw_parts(stats(picture * i.lines * i.groups * 2), i.lines * i.groups * 2);
                let (means, rest) = std::slice::from_raw_parts_mut(factors(picture * 3 * c), 3 * c).split_at_mut(c);
                let (scale, shift) = rest.split_at_mut(c);
                (rows.load)(gamma, scale);
                (rows.load)(beta, shift);
                for g in 0..i.groups {
                    let (mean, variance) = combine(stats, g, &i);
                    let inverse = 1.0 / (variance + eps as f64).sqrt();
                    for j in g * group..(g + 1) * group {
                        means[j] = mean as f32;
                        scale[j] = (scale[j] as f64 * inverse) as f32;
                    }
                }
            }
        }

        pool.each(i.batch * i.lines, &|thread, line| {
            let row = own(thread, 2);
            let picture = line / i.lines;
            // SAFETY: each task has its own line of the result, which may be the operand's own.
            unsafe {
                let factors = std::slice::from_raw_parts(factors(picture * 3 * c), 3 * c);
                for pixel in line * i.pixels..(line + 1) * i.pixels {
                    (rows.load)(x.at(pixel * c), row);
                    (rows.normalise)(row, [&factors[..c], &factors[c..2 * c], &factors[2 * c..]]);
                    if let Some(activation) = activation {
                        (rows.unary)(activation, row);
                    }
                    (rows.store)(row, out.at(pixel * c));
                }
            }
        });
    })
}

/// Mean and M2 of each group over one line of pixels.
///
/// # Safety
/// `x` is good for the line; the slices have a number for each channel.
#[allow(clippy::too_many_arguments, reason = "a line of pixels, room for three rows, and the result")]
unsafe fn line_statistics(
    rows: &Rows,
    x: Src,
    pixels: usize,
    group: usize,
    sums: &mut [f32],
    means: &mut [f32],
    row: &mut [f32],
    to: &mut [f32],
) {
    let c = row.len();
    let count = (pixels * group) as f32;
    // SAFETY: the caller's.
    unsafe {
        sums.fill(0.0);
        for pixel in 0..pixels {
            (rows.load)(x.at(pixel * c), row);
            (rows.add_to)(sums, row);
        }
        for (g, to) in to.chunks_exact_mut(2).enumerate() {
            to[0] = (rows.sum)(&sums[g * group..(g + 1) * group]) / count;
            means[g * group..(g + 1) * group].fill(to[0]);
        }
        sums.fill(0.0);
        for pixel in 0..pixels {
            (rows.load)(x.at(pixel * c), row);
            (rows.add_squares_to)(sums, row, means);
        }
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
    let (out, scratch): (Dst, _) = (env.dst(value), env.scratch());
    Box::new(move |pool| {
        pool.each(m.div_ceil(TASK_ROWS), &|thread, task| {
            // SAFETY: each thread has its own rows of scratch memory, each task its own rows of the result.
            unsafe {
                let own = scratch.add(4 * thread * padded * 3).cast::<f32>();
                let row = std::slice::from_raw_parts_mut(own, c);
                let scale = std::slice::from_raw_parts_mut(own.add(padded), c);
                let shift = std::slice::from_raw_parts_mut(own.add(2 * padded), c);
                match params[..] {
                    [gamma, beta] => {
                        (rows.load)(gamma, scale);
                        (rows.load)(beta, shift);
                    }
                    [gamma] => {
                        (rows.load)(gamma, scale);
                        shift.fill(0.0);
                    }
                    _ => {}
                }
                for i in task * TASK_ROWS..m.min((task + 1) * TASK_ROWS) {
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
                row.iter_mut().for_each(|v| *v = (*v - mean) * inverse);
                (rows.scale_shift)(row, scale, shift);
            }
            Op::RmsNorm { eps } => {
                let inverse = 1.0 / ((rows.sum_squares)(row, 0.0) / n + eps).sqrt();
                (rows.scale)(row, inverse);
                (rows.scale_shift)(row, scale, shift);
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

/// Norms read a row before they write it, so their result may take the operand's place.
pub(super) fn may_overwrite(graph: &Graph, value: Value, operand: usize) -> bool {
    operand == 0 && graph.operand_types(value)[0].dtype.bytes() == graph.ty(value).dtype.bytes()
}
