//! Linear layers and products of two computed matrices, and how every product is run.

use impasto_graph::{Capabilities, DType, Graph, Op, TensorType, Value};
use impasto_vulkan::Part;

use super::kernels::gemm::{Bias, Gemm, Left};
use super::kernels::matrices::Tiled;
use super::session::{Env, Run, Runs};
use super::{VulkanProfile, elementwise};
use crate::shapes::{Window, epilogue};

/// A linear layer, a convolution or a product of two computed matrices.
pub(super) fn gemm(device: &VulkanProfile, graph: &Graph, value: Value) -> Gemm {
    let node = graph.node(value);
    let [left, right] = [0, 1].map(|i| graph.ty(node.inputs[i]));
    let plain = Gemm {
        batch: 1,
        m: left.rows() as u32,
        n: right.shape[0] as u32,
        segments: 1,
        depth: left.channels() as u32,
        left: Left::Rows,
        left_type: left.dtype,
        right_type: device.number(),
        right_transposed: true,
        scale: 1.0,
        bias: None,
        activation: None,
        residual: None,
        out: node.ty.dtype,
    };
    let (fused, rows) = match node.op {
        Op::MatMul { transpose_b } => {
            let rank = left.shape.len();
            return Gemm {
                batch: left.shape[..rank - 2].iter().product::<usize>() as u32,
                m: left.shape[rank - 2] as u32,
                n: node.ty.channels() as u32,
                right_type: right.dtype,
                right_transposed: transpose_b,
                ..plain
            };
        }
        Op::Conv2d { fused, .. } => (fused, node.ty.shape[1] * node.ty.shape[2]),
        Op::Linear { fused, .. } => (fused, left.rows() / left.shape[0]),
        _ => unreachable!("called for products"),
    };
    let (bias, residual) = epilogue(graph, value, fused);
    let bias = bias.map(|b| graph.ty(b));
    // A vector, or one for each picture of so many rows.
    let bias = bias.map(|ty| Bias { dtype: ty.dtype, rows: (ty.shape.len() == 2).then_some(rows as u32) });
    let residual = residual.map(|r| graph.ty(r).dtype);
    let plain = Gemm { bias, activation: fused.activation, residual, ..plain };
    match (&node.op, ungated(device, graph, value)) {
        (Op::Conv2d { .. }, _) => super::conv::over_pixels(plain, Window::of(graph, value)),
        (_, Some(between)) => Gemm { residual: None, out: between.dtype, ..plain },
        _ => plain,
    }
}

/// What a linear layer that ends with GEGLU keeps in scratch memory: its product, from which a second kernel makes the result.
pub(super) fn ungated(device: &VulkanProfile, graph: &Graph, value: Value) -> Option<TensorType> {
    let node = graph.node(value);
    let Op::Linear { geglu: true, .. } = node.op else { return None };
    // As it would be stored between two ops; but a result in more than 16 bits is made of as many.
    let dtype = if device.number() == node.ty.dtype { node.ty.dtype } else { DType::F32 };
    Some(TensorType::new([node.ty.rows(), 2 * node.ty.channels()], dtype))
}

/// Bytes of it, so that what lies behind it is aligned.
fn ungated_bytes(device: &VulkanProfile, graph: &Graph, value: Value) -> u64 {
    ungated(device, graph, value).map_or(0, |ty| ty.bytes().next_multiple_of(device.alignment()))
}

/// How a product is cut for the device's matrix units, if it has them and they can.
fn tiled(device: &VulkanProfile, gemm: &Gemm) -> Option<Tiled> {
    device.units().and_then(|units| Tiled::new(gemm, units))
}

pub(super) fn scratch(device: &VulkanProfile, graph: &Graph, value: Value) -> u64 {
    let tiled = tiled(device, &gemm(device, graph, value)).map_or(0, |tiled| tiled.scratch_bytes());
    ungated_bytes(device, graph, value) + tiled
}

/// The runs of a product.
pub(super) fn prepare(env: &Env, value: Value) -> Runs {
    let device = env.vulkan.profile();
    let Some(between) = ungated(device, env.graph, value) else {
        let operands = env.graph.node(value).inputs[2..].iter();
        return product(env, value, operands.map(|&v| env.part(v)).collect(), env.part(value));
    };
    let Op::Linear { fused, .. } = env.graph.node(value).op else { unreachable!("only linear layers have gates") };
    let (bias, residual) = epilogue(env.graph, value, fused);
    let sums = env.scratch(0, between.bytes());
    let mut runs = product(env, value, bias.into_iter().map(|v| env.part(v)).collect(), sums.clone())?;
    runs.push(elementwise::gate(env, sums, between.dtype, residual, value)?);
    Ok(runs)
}

/// The runs of a product with these operands behind its factors, into `out`.
fn product(env: &Env, value: Value, mut rest: Vec<Part>, out: Part) -> Runs {
    let device = env.vulkan.profile();
    let gemm = gemm(device, env.graph, value);
    let inputs = &env.graph.node(value).inputs;
    let weights = !matches!(env.graph.node(value).op, Op::MatMul { .. });
    let right = if weights { env.packed(inputs[1]).0 } else { env.part(inputs[1]) };
    let factors = [env.part(inputs[0]), right];
    rest.push(out);
    let Some(tiled) = tiled(device, &gemm) else {
        let parts = [factors.to_vec(), rest].concat();
        return Ok(vec![Run { kernel: gemm.kernel()?, parts, groups: gemm.groups() }]);
    };
    tiled.runs(factors, rest, &env.scratch(ungated_bytes(device, env.graph, value), tiled.scratch_bytes()))
}
