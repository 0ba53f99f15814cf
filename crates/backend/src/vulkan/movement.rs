//! The same numbers in other places: every mover is a copy from one strided box to another.

use std::sync::Arc;

use impasto_graph::{Op, Value};

use super::kernels::{groups_of_lines, movement};
use super::session::{Env, Run, Runs};
use crate::shapes::copies;

pub(super) fn prepare(env: &Env, value: Value) -> Runs {
    let node = env.graph.node(value);
    let (out, dtype) = (env.part(value), node.ty.dtype);
    let mut runs = vec![];
    if let Op::Pad { .. } = node.op {
        let elements = node.ty.elements();
        let kernel = movement::clear(elements as u32, dtype)?;
        runs.push(Run { kernel, parts: vec![out.clone()], groups: groups_of_lines(elements) });
    }
    for (copy, &input) in copies(env.graph, value).iter().zip(&node.inputs) {
        // A piece that was computed where it is wanted stays.
        let from = env.part(input);
        if Arc::ptr_eq(&from.buffer, &out.buffer) && from.offset == out.offset + copy.to as u64 * dtype.bytes() {
            continue;
        }
        let groups = groups_of_lines(copy.shape.iter().product::<usize>() as u64);
        let kernel = movement::copy(copy, dtype)?;
        runs.push(Run { kernel, parts: vec![from, out.clone()], groups });
    }
    Ok(runs)
}
