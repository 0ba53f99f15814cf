//! Parameters in the layouts that kernels read: weights of products as `(n, k)`, with `k` in the order (tap, channel), tables as they are
//! stored, everything else in the element type of the graph. Each piece is read from the file once and kept once.

use std::borrow::Cow;
use std::collections::HashMap;

use half::{bf16, f16};
use impasto_graph::{Capabilities, DType, Graph, Plan, Storage, TensorType, Used, Value};
use impasto_vulkan::Part;

use super::memory::Memory;
use super::{Vulkan, VulkanProfile};
use crate::stored::{dequantise, param_name, read, storage};
use crate::{BackendError, ParamBytes, WeightSource};

/// How a parameter is used, each way with a layout of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Way {
    Weights,
    Table,
    Tensor,
}

/// Bytes of a parameter that are not worth the start of a second thread.
const FOR_ONE: usize = 1 << 20;

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
        weights.memory.settle()?;
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
fn pack<'a>(given: &'a ParamBytes, way: Way, dtype: DType, ty: &TensorType) -> Cow<'a, [u8]> {
    let taps = match way {
        Way::Weights => ty.shape[2..].iter().product::<usize>(),
        _ => 1,
    };
    if taps == 1 && given.storage == Storage::Dense(dtype) {
        return Cow::Borrowed(&given.bytes);
    }
    // The file has (channel, tap), a convolution goes through (tap, channel).
    let width = if ty.shape.is_empty() { 1 } else { ty.elements() as usize / ty.shape[0].max(1) };
    let (width, channels) = (width.max(1), (width / taps).max(1));
    let bytes = dtype.bytes() as usize;
    let mut out = vec![0; ty.elements() as usize * bytes];
    let fill = |first: usize, rows: &mut [u8]| {
        let mut row = vec![0.0; width];
        for (n, to) in (first..).zip(rows.chunks_exact_mut(width * bytes)) {
            dequantise(given, n * width, &mut row);
            for (i, to) in to.chunks_exact_mut(bytes).enumerate() {
                let x = row[i % channels * taps + i / channels];
                match dtype {
                    DType::F32 => to.copy_from_slice(&x.to_le_bytes()),
                    DType::F16 => to.copy_from_slice(&f16::from_f32(x).to_le_bytes()),
                    DType::BF16 => to.copy_from_slice(&bf16::from_f32(x).to_le_bytes()),
                    DType::I32 => to.copy_from_slice(&(x as i32).to_le_bytes()),
                }
            }
        }
    };
    let rows = ty.elements() as usize / width;
    let threads = if out.len() < FOR_ONE { 1 } else { impasto_device::cpu::usable_cores() };
    let each = rows.div_ceil(threads).max(1);
    std::thread::scope(|scope| {
        for (i, part) in out.chunks_mut(each * width * bytes).enumerate() {
            let fill = &fill;
            match threads {
                1 => fill(i * each, part),
                _ => drop(scope.spawn(move || fill(i * each, part))),
            }
        }
    });
    Cow::Owned(out)
}
