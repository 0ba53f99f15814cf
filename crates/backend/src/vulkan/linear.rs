//! Linear layers and products of two computed matrices.

use impasto_graph::{Op, Value};
use impasto_vulkan::Part;

use super::kernels::gemm::{Bias, Gemm, Left};
use super::session::{Env, Run, Runs};
use crate::shapes::epilogue;

pub(super) fn prepare(env: &Env, value: Value) -> Runs {
    let Op::Linear { fused } = env.graph.node(value).op else { unreachable!("called for linear layers") };
    let x = env.ty(env.operand(value, 0));
    let w = env.ty(env.operand(value, 1));
    let (right, right_type) = env.packed(env.operand(value, 1));
    let (bias, residual) = epilogue(env.graph, value, fused);
    let gemm = Gemm {
        batch: 1,
        m: x.rows() as u32,
        n: w.shape[0] as u32,
        segments: 1,
        depth: w.shape[1] as u32,
        left: Left::Rows,
        left_type: x.dtype,
        right_type,
        right_transposed: false,
        bias: bias.map(|b| bias_of(env, b, x.rows() / x.shape[0])),
        activation: fused.activation,
        residual: residual.map(|r| env.ty(r).dtype),
        out: env.ty(value).dtype,
    };
    product(env, value, &gemm, right, [bias, residual])
}

/// The run of a product with packed weights, and with bias and residual where it has them.
pub(super) fn product(env: &Env, value: Value, gemm: &Gemm, right: Part, rest: [Option<Value>; 2]) -> Runs {
    let mut parts = vec![env.part(env.operand(value, 0)), right];
    parts.extend(rest.into_iter().flatten().chain([value]).map(|v| env.part(v)));
    Ok(vec![Run { kernel: gemm.kernel()?, parts, groups: gemm.groups() }])
}

/// A vector, or one for each picture of so many rows.
pub(super) fn bias_of(env: &Env, bias: Value, rows: usize) -> Bias {
    let ty = env.ty(bias);
    Bias { dtype: ty.dtype, rows: (ty.shape.len() == 2).then_some(rows as u32) }
}

pub(super) fn matmul(env: &Env, value: Value) -> Runs {
    let Op::MatMul { transpose_b } = env.graph.node(value).op else { unreachable!("called for matrix products") };
    let [a, b] = [0, 1].map(|i| env.ty(env.operand(value, i)));
    let rank = a.shape.len();
    let gemm = Gemm {
        batch: a.shape[..rank - 2].iter().product::<usize>() as u32,
        m: a.shape[rank - 2] as u32,
        n: env.ty(value).channels() as u32,
        segments: 1,
        depth: a.channels() as u32,
        left: Left::Rows,
        left_type: a.dtype,
        right_type: b.dtype,
        right_transposed: transpose_b,
        bias: None,
        activation: None,
        residual: None,
        out: env.ty(value).dtype,
    };
    Ok(env.run(value, gemm.kernel()?, gemm.groups()))
}
