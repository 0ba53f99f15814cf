//! Arithmetic on each element.

use impasto_graph::{Binary, DType, Op, Value};

use super::math::Aligned;
use super::rows::{Dst, Rows, Src};
use super::session::{Env, Run};
use crate::shapes::{broadcast_strides, merge};

/// Elements that are converted at a time; two such buffers fit the stack and the first cache.
const CHUNK: usize = 1024;
/// Elements of a task.
const TASK: usize = 16 * CHUNK;

/// Unary functions, scale and shift, casts.
pub(super) fn map(env: &Env, value: Value) -> Run {
    let op = env.graph.node(value).op.clone();
    let (x, out, rows) = (env.operand(value, 0), env.dst(value), env.cpu.rows());
    let n = env.graph.ty(value).elements() as usize;
    Box::new(move |pool| {
        pool.each(n.div_ceil(TASK), &|_, task| {
            let mut buffer = Aligned([0.0; CHUNK]);
            for at in (task * TASK..n.min((task + 1) * TASK)).step_by(CHUNK) {
                let part = &mut buffer.0[..CHUNK.min(n - at)];
                // SAFETY: the chunk lies in both tensors, and only this task writes it.
                unsafe { map_part(rows, &op, x.at(at), out.at(at), part) };
            }
        });
    })
}

/// # Safety
/// Both rows are good for the length of `part`.
unsafe fn map_part(rows: &Rows, op: &Op, x: Src, out: Dst, part: &mut [f32]) {
    // SAFETY: the caller's.
    unsafe {
        // Integers pass through a float only where that is asked for: 2^24 and above would be rounded.
        if x.dtype == DType::I32 && out.dtype == DType::I32 {
            return x.ptr.copy_to(out.ptr, 4 * part.len());
        }
        (rows.load)(x, part);
        match op {
            Op::Unary(function) => (rows.unary)(*function, part),
            Op::Affine { scale, shift } => part.iter_mut().for_each(|v| *v = *v * scale + shift),
            _ => {}
        }
        (rows.store)(part, out);
    }
}

/// `value * gelu(gate)` of rows that hold both halves.
pub(super) fn geglu(env: &Env, value: Value) -> Run {
    let (x, out, rows) = (env.operand(value, 0), env.dst(value), env.cpu.rows());
    let ty = env.graph.ty(value);
    let (m, n) = (ty.rows(), ty.channels());
    let task_rows = (TASK / n).max(1);
    Box::new(move |pool| {
        pool.each(m.div_ceil(task_rows), &|_, task| {
            for row in task * task_rows..m.min((task + 1) * task_rows) {
                // SAFETY: the row lies in both tensors, and only this task writes it.
                unsafe { (rows.geglu)(x.at(row * 2 * n), x.at(row * 2 * n + n), n, out.at(row * n)) };
            }
        });
    })
}

fn apply(function: Binary, a: &mut [f32], b: &[f32]) {
    let each = |a: &mut [f32], f: fn(f32, f32) -> f32| a.iter_mut().zip(b).for_each(|(x, &y)| *x = f(*x, y));
    match function {
        Binary::Add => each(a, |x, y| x + y),
        Binary::Sub => each(a, |x, y| x - y),
        Binary::Mul => each(a, |x, y| x * y),
        Binary::Div => each(a, |x, y| x / y),
        Binary::Max => each(a, |x, y| if x.is_nan() || x > y { x } else { y }),
        Binary::Min => each(a, |x, y| if x.is_nan() || x < y { x } else { y }),
    }
}

/// A function of two tensors, broadcasting.
pub(super) fn binary(env: &Env, value: Value) -> Run {
    let Op::Binary(function) = env.graph.node(value).op else { unreachable!("called for binary functions") };
    let shape = &env.graph.ty(value).shape;
    let [a_strides, b_strides] = [0, 1].map(|i| broadcast_strides(&env.operand_type(value, i).shape, shape));
    let (shape, strides) = merge(shape, &[&a_strides, &b_strides]);
    let [a_strides, b_strides]: [Vec<usize>; 2] = strides.try_into().expect("there are two sides");
    let (a, b, out, rows) = (env.operand(value, 0), env.operand(value, 1), env.dst(value), env.cpu.rows());
    let n = shape[shape.len() - 1];
    let m: usize = shape[..shape.len() - 1].iter().product();
    let per_row = n.div_ceil(TASK);
    let rows_per_task = if per_row > 1 { 1 } else { (TASK / n).max(1) };
    Box::new(move |pool| {
        pool.each(m.div_ceil(rows_per_task) * per_row, &|_, task| {
            let (block, part) = (task / per_row, task % per_row);
            let [mut x, mut y] = [Aligned([0.0; CHUNK]); 2];
            let (x, y) = (&mut x.0, &mut y.0);
            for row in block * rows_per_task..m.min((block + 1) * rows_per_task) {
                let (mut rest, mut from_a, mut from_b) = (row, 0, 0);
                for axis in (0..shape.len() - 1).rev() {
                    from_a += rest % shape[axis] * a_strides[axis];
                    from_b += rest % shape[axis] * b_strides[axis];
                    rest /= shape[axis];
                }
                let (step_a, step_b) = (a_strides[shape.len() - 1], b_strides[shape.len() - 1]);
                for at in (part * TASK..n.min((part + 1) * TASK)).step_by(CHUNK) {
                    let len = CHUNK.min(n - at);
                    // SAFETY: the strides keep inside the operands; only this task writes the chunk.
                    unsafe {
                        load(rows, a.at(from_a + at * step_a), step_a, &mut x[..len]);
                        load(rows, b.at(from_b + at * step_b), step_b, &mut y[..len]);
                        apply(function, &mut x[..len], &y[..len]);
                        (rows.store)(&x[..len], out.at(row * n + at));
                    }
                }
            }
        });
    })
}

/// Elements one after the other, or the same one again and again.
///
/// # Safety
/// The operand is good for what is read.
unsafe fn load(rows: &Rows, src: Src, step: usize, out: &mut [f32]) {
    // SAFETY: the caller's.
    unsafe {
        if step == 0 {
            (rows.load)(src, &mut out[..1]);
            let first = out[0];
            out.fill(first);
        } else {
            (rows.load)(src, out);
        }
    }
}
