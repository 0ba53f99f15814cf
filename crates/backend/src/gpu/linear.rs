//! Linear layers and products of two computed matrices, and how every product is run.

use impasto_graph::{Capabilities, Graph, Op, Value};
use impasto_kernel::KernelError;

use super::GpuProfile;
use super::gated::Ungated;
use super::kernels::gemm::{Bias, Gemm, Left};
use super::kernels::matrices::Tiled;
use super::kernels::{blocks, groups_of_lines};
use super::session::Env;
use super::{Binding, Run, Runs};
use crate::shapes::{Window, epilogue, product_shape};
use crate::stored::{has_scales, kept_blocks, scales_offset};

/// A linear layer, a convolution or a product of two computed matrices.
pub(super) fn gemm(device: &GpuProfile, graph: &Graph, value: Value) -> Gemm {
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
    match (&node.op, Ungated::of(device, graph, value)) {
        (Op::Conv2d { .. }, _) => super::conv::over_pixels(plain, Window::of(graph, value)),
        (_, Some(ungated)) => Gemm { residual: None, out: ungated.dtype, ..plain },
        _ => plain,
    }
}

/// How a product is cut for the device's matrix units, if it has them and they can.
fn tiled(device: &GpuProfile, gemm: &Gemm) -> Option<Tiled> {
    device.units().and_then(|units| Tiled::new(gemm, units))
}

/// Bytes for parts of sums.
pub(super) fn sums_bytes(device: &GpuProfile, gemm: &Gemm) -> u64 {
    tiled(device, gemm).map_or(0, |tiled| tiled.scratch_bytes())
}

pub(super) fn scratch(device: &GpuProfile, graph: &Graph, value: Value) -> u64 {
    let (products, weights) = scratch_parts(device, graph, value);
    weights.map_or(products, |weights| products.next_multiple_of(device.alignment()) + weights)
}

/// Scratch memory of the product, and of its weights where they are in blocks and decoded before it.
fn scratch_parts(device: &GpuProfile, graph: &Graph, value: Value) -> (u64, Option<u64>) {
    let products = match Ungated::of(device, graph, value) {
        Some(ungated) => ungated.scratch(device, &gemm(device, graph, value)),
        None => sums_bytes(device, &gemm(device, graph, value)),
    };
    let weights = graph.node(value).inputs[1];
    (products, kept_blocks(graph, weights).map(|_| graph.ty(weights).elements() * device.number().bytes()))
}

/// The run that decodes the weights of a product, if they are in blocks, and where they are then.
fn decoded(env: &Env, value: Value) -> Result<Option<(Run, Binding)>, KernelError> {
    let (device, weights) = (env.profile, env.graph.node(value).inputs[1]);
    let (products, bytes) = scratch_parts(device, env.graph, value);
    let (Some(storage), Some(bytes)) = (kept_blocks(env.graph, weights), bytes) else { return Ok(None) };
    let to = env.scratch(products.next_multiple_of(device.alignment()), bytes);
    let ty = env.graph.ty(weights);
    let (n, k) = product_shape(ty);
    let scales = has_scales(storage).then(|| scales_offset(ty, storage) as u32);
    let kernel = blocks::decode(storage, [n as u32, k as u32], scales, device.number())?;
    let bindings = vec![env.blocks(weights), to];
    Ok(Some((Run { kernel, bindings, groups: groups_of_lines(blocks::decoders(ty.elements())) }, to)))
}

/// The runs of a product.
pub(super) fn prepare(env: &Env, value: Value) -> Runs {
    let device = env.profile;
    let gemm = gemm(device, env.graph, value);
    let inputs = &env.graph.node(value).inputs;
    let weights = !matches!(env.graph.node(value).op, Op::MatMul { .. });
    let (first, right) = match decoded(env, value)? {
        Some((run, binding)) => (Some(run), binding),
        None if weights => (None, env.packed(inputs[1]).0),
        None => (None, env.binding(inputs[1])),
    };
    let factors = [env.binding(inputs[0]), right];
    let runs = match Ungated::of(device, env.graph, value) {
        Some(ungated) => ungated.runs(env, value, &gemm, factors),
        None => {
            let rest = inputs[2..].iter().chain([&value]).map(|&v| env.binding(v)).collect();
            product(device, &gemm, factors, rest, env.scratch(0, sums_bytes(device, &gemm)))
        }
    };
    Ok(first.into_iter().chain(runs?).collect())
}

/// The runs of a product of these factors: then bias, residual and result, and a place for parts of sums.
pub(super) fn product(
    device: &GpuProfile,
    gemm: &Gemm,
    factors: [Binding; 2],
    rest: Vec<Binding>,
    sums: Binding,
) -> Runs {
    match tiled(device, gemm) {
        Some(tiled) => tiled.runs(factors, rest, sums),
        None => {
            let bindings = [factors.to_vec(), rest].concat();
            Ok(vec![Run { kernel: gemm.kernel()?, bindings, groups: gemm.groups() }])
        }
    }
}
