//! Scaled-dot-product attention.

use impasto_graph::Value;

use super::kernels::attention;
use super::session::{Env, Runs};
use crate::shapes::Heads;

pub(super) fn prepare(env: &Env, value: Value) -> Runs {
    let heads = Heads::of(env.graph, value);
    let [q, k, v] = [0, 1, 2].map(|i| env.ty(env.operand(value, i)).dtype);
    let kernel = attention::attention(&heads, [q, k, v, env.ty(value).dtype])?;
    Ok(env.run(value, kernel, attention::workgroups(&heads)))
}
