//! The same numbers in other places: every mover is a copy from one strided box to another.

use impasto_graph::{Op, Value};

use super::session::{Env, Ptr, Run, size};

/// Bytes that a task moves.
const TASK: usize = 1 << 18;

/// A copy of a box of elements. Strides are in elements.
#[derive(Clone)]
struct Copy {
    shape: Vec<usize>,
    from: usize,
    from_strides: Vec<usize>,
    to: usize,
    to_strides: Vec<usize>,
}

fn dense(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; shape.len()];
    for i in (1..shape.len()).rev() {
        strides[i - 1] = strides[i] * shape[i];
    }
    strides
}

pub(super) fn prepare(env: &Env, value: Value) -> Run {
    let node = env.graph.node(value);
    let out_strides = dense(&node.ty.shape);
    let bytes = size(node.ty.dtype);
    let mut clear = false;
    let copies: Vec<(Ptr, Copy)> = (0..node.inputs.len())
        .scan(0, |along, i| {
            let shape = &env.operand_type(value, i).shape;
            let strides = dense(shape);
            let plain = Copy {
                shape: shape.clone(),
                from: 0,
                from_strides: strides.clone(),
                to: 0,
                to_strides: out_strides.clone(),
            };
            let copy = match &node.op {
                Op::Concat { axis } => {
                    let to = *along * out_strides[*axis];
                    *along += shape[*axis];
                    Copy { to, ..plain }
                }
                Op::Pad { before, .. } => {
                    clear = true;
                    Copy { to: before.iter().zip(&out_strides).map(|(b, s)| b * s).sum(), ..plain }
                }
                Op::Slice { axis, start, .. } => {
                    Copy { shape: node.ty.shape.clone(), from: start * strides[*axis], ..plain }
                }
                Op::Permute { axes } => Copy {
                    shape: node.ty.shape.clone(),
                    from_strides: axes.iter().map(|&a| strides[a]).collect(),
                    ..plain
                },
                // Each pixel is read `factor` times along two further axes.
                Op::Upsample { factor } => Copy {
                    shape: vec![shape[0], shape[1], *factor, shape[2], *factor, shape[3]],
                    from_strides: vec![strides[0], strides[1], 0, strides[2], 0, 1],
                    to_strides: vec![
                        out_strides[0],
                        factor * out_strides[1],
                        out_strides[1],
                        factor * out_strides[2],
                        out_strides[2],
                        1,
                    ],
                    ..plain
                },
                _ => Copy { to_strides: strides, ..plain },
            };
            Some((Ptr::new(env.operand(value, i).ptr.cast_mut()), simplify(copy)))
        })
        .collect();
    let out = env.dst(value);
    let (out, total) = (Ptr::new(out.ptr), node.ty.bytes() as usize);
    Box::new(move |pool| {
        if clear {
            // SAFETY: the result is ours.
            unsafe { out.get().write_bytes(0, total) };
        }
        for (from, copy) in &copies {
            let rank = copy.shape.len();
            let run = copy.shape[rank - 1];
            let rows: usize = copy.shape[..rank - 1].iter().product();
            let per_task = (TASK / (run * bytes)).max(1);
            pool.each(rows.div_ceil(per_task), &|_, task| {
                for row in task * per_task..rows.min((task + 1) * per_task) {
                    let (mut rest, mut source, mut target) = (row, copy.from, copy.to);
                    for axis in (0..rank - 1).rev() {
                        source += rest % copy.shape[axis] * copy.from_strides[axis];
                        target += rest % copy.shape[axis] * copy.to_strides[axis];
                        rest /= copy.shape[axis];
                    }
                    // SAFETY: the box lies in both tensors, and tasks write different rows of it.
                    unsafe {
                        let (source, target) = (from.add(source * bytes), out.add(target * bytes));
                        let steps = (copy.from_strides[rank - 1], copy.to_strides[rank - 1]);
                        if steps == (1, 1) {
                            source.copy_to_nonoverlapping(target, run * bytes);
                        } else {
                            for i in 0..run {
                                let (s, t) = (source.add(i * steps.0 * bytes), target.add(i * steps.1 * bytes));
                                s.copy_to_nonoverlapping(t, bytes);
                            }
                        }
                    }
                }
            });
        }
    })
}

/// Merge axes that both sides walk through without a gap, so that runs become long.
fn simplify(copy: Copy) -> Copy {
    let mut out = Copy { shape: vec![], from_strides: vec![], to_strides: vec![], ..copy };
    for i in 0..copy.shape.len() {
        let (d, f, t) = (copy.shape[i], copy.from_strides[i], copy.to_strides[i]);
        let last = out.shape.len().wrapping_sub(1);
        if d == 1 {
            continue;
        }
        if !out.shape.is_empty() && out.from_strides[last] == f * d && out.to_strides[last] == t * d {
            out.shape[last] *= d;
            (out.from_strides[last], out.to_strides[last]) = (f, t);
        } else {
            out.shape.push(d);
            out.from_strides.push(f);
            out.to_strides.push(t);
        }
    }
    if out.shape.is_empty() {
        (out.shape, out.from_strides, out.to_strides) = (vec![1], vec![1], vec![1]);
    }
    out
}
