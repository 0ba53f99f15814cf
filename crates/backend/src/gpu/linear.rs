//! Linear layers and products of two computed matrices, and how every product is run.

use impasto_graph::{Capabilities, DType, Graph, Op, Value};
use impasto_kernel::KernelError;

use super::GpuProfile;
use super::gated::Ungated;
use super::kernels::gemm::{Bias, Gemm};
use super::kernels::matrices::LEFT_SCALE;
use super::kernels::warpgroup::MatrixProduct;
use super::kernels::{blocks, elementwise, groups_of_lines};
use super::session::Env;
use super::{Binding, Run, Runs};
use crate::shapes::{Window, epilogue, product_shape};
use crate::stored::{has_scales, kept_blocks, scales_offset};

/// A linear layer, a convolution or a product of two computed matrices.
pub(super) fn gemm(device: &GpuProfile, graph: &Graph, value: Value) -> Gemm {
    let node = graph.node(value);
    let [left, right] = [0, 1].map(|i| graph.ty(node.inputs[i]));
    let size = [left.rows(), right.shape[0], left.channels()].map(|n| n as u32);
    let plain = Gemm { out: node.ty.dtype, ..Gemm::of_rows(size, [left.dtype, device.number()]) };
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
        (Op::Linear { geglu: true, .. }, None) => Gemm { n: plain.n / 2, geglu: true, ..plain },
        (_, Some(ungated)) => Gemm { residual: None, out: ungated.dtype, ..plain },
        _ => plain,
    }
}

/// How a product is cut for the device's matrix units, if it has them and they can.
fn by_units(device: &GpuProfile, gemm: &Gemm) -> Option<MatrixProduct> {
    device.units().and_then(|units| MatrixProduct::new(gemm, units))
}

/// Whether a product with these sizes is computed by warpgroups, which gate their sums themselves.
pub(super) fn gates_sums(device: &GpuProfile, left: DType, size: [usize; 3]) -> bool {
    let gemm = Gemm { geglu: true, ..Gemm::of_rows(size.map(|n| n as u32), [left, device.number()]) };
    let gemm = narrowed(device, &gemm).unwrap_or(gemm);
    matches!(by_units(device, &gemm), Some(MatrixProduct::Warpgroups(_)))
}

/// What a left side in 32 bits is multiplied with on its way to 16: f16 has a smaller range.
fn left_scale(device: &GpuProfile) -> f32 {
    if device.number() == DType::F16 { LEFT_SCALE } else { 1.0 }
}

/// The same product of a left side in 16 bits, where that is what makes it one for warpgroups: their copies convert nothing.
fn narrowed(device: &GpuProfile, gemm: &Gemm) -> Option<Gemm> {
    if gemm.left_type != DType::F32 {
        return None;
    }
    let narrow = Gemm { left_type: device.number(), scale: gemm.scale / left_scale(device), ..*gemm };
    matches!(by_units(device, &narrow), Some(MatrixProduct::Warpgroups(_))).then_some(narrow)
}

/// Bytes for parts of sums.
pub(super) fn sums_bytes(device: &GpuProfile, gemm: &Gemm) -> u64 {
    let gemm = narrowed(device, gemm).unwrap_or(*gemm);
    by_units(device, &gemm).map_or(0, |product| product.scratch_bytes())
}

/// Scratch memory of a product, one part after the other.
struct Scratch {
    /// Of the product itself.
    products: u64,
    /// Of its weights, where they are in blocks and decoded before it.
    weights: Option<u64>,
    /// Of its left side, where that is made narrower before it.
    left: Option<u64>,
    alignment: u64,
}

impl Scratch {
    fn new(device: &GpuProfile, graph: &Graph, value: Value) -> Scratch {
        let gemm = gemm(device, graph, value);
        let products = match Ungated::of(device, graph, value) {
            Some(ungated) => ungated.scratch(device, &gemm),
            None => sums_bytes(device, &gemm),
        };
        let [left, weights] = [0, 1].map(|i| graph.node(value).inputs[i]);
        Scratch {
            products,
            weights: kept_blocks(graph, weights).map(|_| graph.ty(weights).elements() * device.number().bytes()),
            left: narrowed(device, &gemm).map(|_| 2 * graph.ty(left).elements()),
            alignment: device.alignment(),
        }
    }

    /// Where the weights begin, and the left side.
    fn begins(&self) -> [u64; 2] {
        let weights = self.products.next_multiple_of(self.alignment);
        [weights, (weights + self.weights.unwrap_or(0)).next_multiple_of(self.alignment)]
    }

    fn bytes(&self) -> u64 {
        let [weights, left] = self.begins();
        match (self.weights, self.left) {
            (_, Some(bytes)) => left + bytes,
            (Some(bytes), None) => weights + bytes,
            (None, None) => self.products,
        }
    }
}

pub(super) fn scratch(device: &GpuProfile, graph: &Graph, value: Value) -> u64 {
    Scratch::new(device, graph, value).bytes()
}

/// The run that makes the left side of a product narrower, if warpgroups need it so, and where it is then.
fn narrow_left(env: &Env, value: Value, scratch: &Scratch) -> Result<Option<(Run, Binding)>, KernelError> {
    let Some(bytes) = scratch.left else { return Ok(None) };
    let left = env.graph.node(value).inputs[0];
    let to = env.scratch(scratch.begins()[1], bytes);
    let elements = env.graph.ty(left).elements();
    let kernel = elementwise::narrow(elements as u32, left_scale(env.profile), env.profile.number())?;
    let run = Run { kernel, bindings: vec![env.binding(left), to], groups: groups_of_lines(elements / 4) };
    Ok(Some((run, to)))
}

/// The run that decodes the weights of a product, if they are in blocks, and where they are then.
fn decoded(env: &Env, value: Value, scratch: &Scratch) -> Result<Option<(Run, Binding)>, KernelError> {
    let (device, weights) = (env.profile, env.graph.node(value).inputs[1]);
    let (Some(storage), Some(bytes)) = (kept_blocks(env.graph, weights), scratch.weights) else { return Ok(None) };
    let to = env.scratch(scratch.begins()[0], bytes);
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
    let scratch = Scratch::new(device, env.graph, value);
    let (decode, right) = match decoded(env, value, &scratch)? {
        Some((run, binding)) => (Some(run), binding),
        None if weights => (None, env.packed(inputs[1]).0),
        None => (None, env.binding(inputs[1])),
    };
    let (narrow, left) = match narrow_left(env, value, &scratch)? {
        Some((run, binding)) => (Some(run), binding),
        None => (None, env.binding(inputs[0])),
    };
    let gemm = narrowed(device, &gemm).unwrap_or(gemm);
    let factors = [left, right];
    let runs = match Ungated::of(device, env.graph, value) {
        Some(ungated) => ungated.runs(env, value, &gemm, factors),
        None => {
            let rest = inputs[2..].iter().chain([&value]).map(|&v| env.binding(v)).collect();
            product(device, &gemm, factors, rest, env.scratch(0, sums_bytes(device, &gemm)))
        }
    };
    Ok(decode.into_iter().chain(narrow).chain(runs?).collect())
}

/// The runs of a product of these factors: then bias, residual and result, and a place for parts of sums.
pub(super) fn product(
    device: &GpuProfile,
    gemm: &Gemm,
    factors: [Binding; 2],
    rest: Vec<Binding>,
    sums: Binding,
) -> Runs {
    match by_units(device, gemm) {
        Some(product) => product.runs(factors, rest, sums),
        None => {
            let bindings = [factors.to_vec(), rest].concat();
            Ok(vec![Run { kernel: gemm.kernel()?, bindings, groups: gemm.groups() }])
        }
    }
}
