//! Arithmetic on each element.

use impasto_graph::{Op, Value};

use super::kernels::elementwise::{self, Walk};
use super::kernels::groups_of_lines;
use super::session::{Env, Runs};
use crate::shapes::{broadcast_strides, merge};

/// Unary functions, scale and shift, casts.
pub(super) fn map(env: &Env, value: Value) -> Runs {
    let node = env.graph.node(value);
    let elements = node.ty.elements();
    let from = env.ty(node.inputs[0]).dtype;
    let kernel = elementwise::map(&node.op, elements as u32, from, node.ty.dtype)?;
    Ok(env.run(value, kernel, groups_of_lines(elements)))
}

pub(super) fn geglu(env: &Env, value: Value) -> Runs {
    let ty = env.ty(value);
    let from = env.ty(env.operand(value, 0)).dtype;
    let kernel = elementwise::geglu(ty.rows() as u32, ty.channels() as u32, from, ty.dtype)?;
    Ok(env.run(value, kernel, groups_of_lines(ty.elements())))
}

/// A function of two tensors, broadcasting.
pub(super) fn binary(env: &Env, value: Value) -> Runs {
    let Op::Binary(function) = env.graph.node(value).op else { unreachable!("called for binary functions") };
    let ty = env.ty(value);
    let operands = [0, 1].map(|i| env.ty(env.operand(value, i)));
    let [a, b] = operands.map(|operand| broadcast_strides(&operand.shape, &ty.shape));
    let (shape, [a, b]) = merge(&ty.shape, [&a, &b]);
    let walk = Walk { shape: &shape, strides: [&a, &b] };
    let kernel = elementwise::binary(function, &walk, operands.map(|o| o.dtype), ty.dtype)?;
    Ok(env.run(value, kernel, groups_of_lines(ty.elements())))
}
