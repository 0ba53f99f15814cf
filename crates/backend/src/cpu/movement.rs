//! The same numbers in other places: every mover is a copy from one strided box to another.

use impasto_graph::{Op, Value};

use super::session::{Env, Ptr, Run, size};
use crate::shapes::{Copy, copies};

/// Bytes that a task moves.
const TASK: usize = 1 << 18;

pub(super) fn prepare(env: &Env, value: Value) -> Run {
    let node = env.graph.node(value);
    let bytes = size(node.ty.dtype);
    let clear = matches!(node.op, Op::Pad { .. });
    let from = (0..node.inputs.len()).map(|i| Ptr::new(env.operand(value, i).ptr.cast_mut()));
    let out = env.dst(value);
    let (out, total) = (Ptr::new(out.ptr), node.ty.bytes() as usize);
    // A piece that was computed where it is wanted stays.
    let moves = |from: Ptr, copy: &Copy| from.get() != out.get().wrapping_add(copy.to * bytes);
    let copies: Vec<(Ptr, Copy)> =
        from.zip(copies(env.graph, value)).filter(|(from, copy)| moves(*from, copy)).collect();
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
