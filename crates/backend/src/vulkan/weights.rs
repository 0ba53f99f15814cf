//! Parameters in the layouts that kernels read: weights of products as `(k, n)`, with `k` in the order (tap, channel), tables as they are
//! stored, everything else in the element type of the graph. Each piece is read from the file once and kept once.

use std::collections::HashMap;

use half::{bf16, f16};
use impasto_graph::{Capabilities, DType, Graph, Plan, Storage, TensorType, Used, Value};
use impasto_vulkan::Part;

use super::memory::Memory;
use super::{Vulkan, VulkanProfile};
use crate::shapes::product_shape;
use crate::stored::{dequantise, param_name, read, storage};
use crate::{BackendError, ParamBytes, WeightSource};

/// How a parameter is used, each way with a layout of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Way {
    Weights,
    Table,
    Tensor,
}

struct Kept {
    address: u64,
    bytes: u64,
    dtype: DType,
    ty: TensorType,
}

pub(super) struct VulkanWeights {
    memory: Memory,
    kept: HashMap<(String, Way), Kept>,
    number: DType,
}

/// Tables are large, and few of their rows are read: they stay as they are stored, where the device can read that.
fn table_dtype(device: &VulkanProfile, storage: Storage) -> DType {
    match storage {
        Storage::Dense(d) if d.bytes() == 4 || device.features().storage16 => d,
        _ => DType::F32,
    }
}

/// The ways in which a parameter is kept, with the element type and the bytes that each takes.
fn ways(device: &VulkanProfile, graph: &Graph, param: Value, used: Used) -> Vec<(Way, DType, u64)> {
    let ty = graph.ty(param);
    let all = [
        (used.as_weights, Way::Weights, device.number()),
        (used.as_table, Way::Table, table_dtype(device, storage(graph, param))),
        (used.as_tensor, Way::Tensor, ty.dtype),
    ];
    let bytes = |dtype: DType| (ty.elements() * dtype.bytes()).next_multiple_of(device.alignment());
    all.into_iter().filter(|w| w.0).map(|(_, way, dtype)| (way, dtype, bytes(dtype))).collect()
}

/// Bytes that a parameter takes, for the plan.
pub(super) fn param_bytes(device: &VulkanProfile, graph: &Graph, param: Value, used: Used) -> u64 {
    ways(device, graph, param, used).iter().map(|w| w.2).sum()
}

impl VulkanWeights {
    pub(super) fn new(
        vulkan: &Vulkan,
        graph: &Graph,
        plan: &Plan,
        source: &dyn WeightSource,
    ) -> Result<VulkanWeights, BackendError> {
        // Pieces as long as the device allows, none of which cuts a parameter.
        let limit = vulkan.limits().max_allocation;
        let (mut lengths, mut places) = (vec![0u64], vec![]);
        for w in plan.weights() {
            for (way, dtype, bytes) in ways(vulkan.profile(), graph, w.value, w.used) {
                if lengths[lengths.len() - 1] + bytes > limit {
                    lengths.push(0);
                }
                let address = lengths.iter().sum();
                *lengths.last_mut().expect("there is one") += bytes;
                places.push((w.value, way, dtype, address));
            }
        }
        let memory = Memory::new(vulkan, lengths.into_iter())?;
        let mut weights = VulkanWeights { memory, kept: HashMap::new(), number: vulkan.number() };
        let mut places = places.into_iter().peekable();
        while let Some(&(param, ..)) = places.peek() {
            let (name, ty) = (param_name(graph, param), graph.ty(param));
            let given = read(source, name, ty, storage(graph, param))?;
            while let Some((_, way, dtype, address)) = places.next_if(|place| place.0 == param) {
                let packed = pack(&given, way, dtype, ty);
                weights.memory.write(address, &packed)?;
                let kept = Kept { address, bytes: packed.len() as u64, dtype, ty: ty.clone() };
                weights.kept.insert((name.into(), way), kept);
            }
            drop(given);
            source.release(name);
        }
        Ok(weights)
    }

    pub(super) fn bytes(&self) -> u64 {
        self.memory.bytes()
    }

    /// Whether everything that a plan needs is here.
    pub(super) fn check(&self, vulkan: &Vulkan, graph: &Graph, plan: &Plan) -> Result<(), BackendError> {
        for w in plan.weights() {
            let (name, ty) = (param_name(graph, w.value), graph.ty(w.value));
            for (way, ..) in ways(vulkan.profile(), graph, w.value, w.used) {
                let problem = |problem: &str| BackendError::Param { name: name.into(), problem: problem.into() };
                match self.kept.get(&(name.to_owned(), way)) {
                    Some(kept) if kept.ty == *ty && self.number == vulkan.number() => {}
                    Some(_) => return Err(problem("is packed for another shape or precision")),
                    None => return Err(problem("is not packed for this use")),
                }
            }
        }
        Ok(())
    }

    /// Where a parameter lies, and as what; [`VulkanWeights::check`] has found it.
    pub(super) fn find(&self, name: &str, way: Way) -> (Part, DType) {
        let kept = &self.kept[&(name.to_owned(), way)];
        (self.memory.part(kept.address, kept.bytes), kept.dtype)
    }
}

/// A parameter in the layout and the element type of a use.
fn pack(given: &ParamBytes, way: Way, dtype: DType, ty: &TensorType) -> Vec<u8> {
    if way != Way::Weights && given.storage == Storage::Dense(dtype) {
        return given.bytes.to_vec();
    }
    let elements = ty.elements() as usize;
    let mut out = vec![0; elements * dtype.bytes() as usize];
    let mut put = |at: usize, x: f32| match dtype {
        DType::F32 => out[4 * at..4 * at + 4].copy_from_slice(&x.to_le_bytes()),
        DType::F16 => out[2 * at..2 * at + 2].copy_from_slice(&f16::from_f32(x).to_le_bytes()),
        DType::BF16 => out[2 * at..2 * at + 2].copy_from_slice(&bf16::from_f32(x).to_le_bytes()),
        DType::I32 => out[4 * at..4 * at + 4].copy_from_slice(&(x as i32).to_le_bytes()),
    };
    let (n, k) = match way {
        Way::Weights => product_shape(ty),
        _ => (elements / ty.channels().max(1), ty.channels()),
    };
    let (channels, taps) = match way {
        Way::Weights => (ty.shape[1], ty.shape[2..].iter().product::<usize>()),
        _ => (k, 1),
    };
    let mut row = vec![0.0; k];
    for column in 0..n {
        dequantise(given, column * k, &mut row);
        for (i, &x) in row.iter().enumerate() {
            match way {
                // The file has (channel, tap), a convolution goes through (tap, channel).
                Way::Weights => put((i % taps * channels + i / taps) * n + column, x),
                _ => put(column * k + i, x),
            }
        }
    }
    out
}
