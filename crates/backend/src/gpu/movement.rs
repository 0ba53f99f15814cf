//! The same numbers in other places: every mover is a copy from one strided box to another.

use impasto_graph::{Op, Value};

use super::kernels::{groups_of_lines, movement};
use super::session::Env;
use super::{Run, Runs};
use crate::shapes::copies;

pub(super) fn prepare(env: &Env, value: Value) -> Runs {
    let node = env.graph.node(value);
    let (out, dtype) = (env.binding(value), node.ty.dtype);
    let mut runs = vec![];
    if let Op::Pad { .. } = node.op {
        let elements = node.ty.elements();
        let kernel = movement::clear(elements as u32, dtype)?;
        runs.push(Run { kernel, bindings: vec![out], groups: groups_of_lines(elements) });
    }
    for (copy, &input) in copies(env.graph, value).iter().zip(&node.inputs) {
        // A piece that was computed where it is wanted stays.
        let from = env.binding(input);
        if from.space == out.space && from.address == out.address + copy.to as u64 * dtype.bytes() {
            continue;
        }
        let (kernel, units) = match movement::strided_copy_by_16(copy, dtype) {
            Some((kernel, units)) => (kernel?, units),
            None => (movement::strided_copy(copy, dtype)?, copy.shape.iter().product::<usize>() as u64),
        };
        runs.push(Run { kernel, bindings: vec![from, out], groups: groups_of_lines(units) });
    }
    Ok(runs)
}
