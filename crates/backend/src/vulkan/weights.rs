//! Parameters in the layouts that kernels read: weights of products as `(n, k)`, with `k` in the order (tap, channel), tables as they are
//! stored, everything else in the element type of the graph. Each piece is read from the file once and kept once.

use std::borrow::Cow;
use std::collections::HashMap;

use half::{bf16, f16};
use impasto_graph::{Capabilities, DType, Graph, Plan, Segment, Storage, TensorType, Used, Value, Weight};
use impasto_vulkan::Part;

use super::memory::Memory;
use super::near::NearWeights;
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

/// Parameters on the device: those that stay, and where those lie that take turns.
pub(super) struct VulkanWeights {
    memory: Memory,
    /// One piece a slot.
    slots: Memory,
    slot_bytes: u64,
    kept: HashMap<(String, Way), Kept>,
    /// By segment.
    turns: Vec<HashMap<(String, Way), Kept>>,
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
        (used.as_weights || used.as_gated, Way::Weights, device.number()),
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

/// A parameter as the device keeps it: each of its ways, one behind the other.
pub(super) fn packed(
    device: &VulkanProfile,
    graph: &Graph,
    weight: &Weight,
    source: &dyn WeightSource,
) -> Result<Vec<u8>, BackendError> {
    let (name, ty) = (param_name(graph, weight.value), graph.ty(weight.value));
    let given = read(source, name, ty, storage(graph, weight.value))?;
    let mut all = Vec::with_capacity(weight.bytes as usize);
    for (way, dtype, bytes) in ways(device, graph, weight.value, weight.used) {
        let end = all.len() + bytes as usize;
        all.extend_from_slice(&pack(&given, way, dtype, ty));
        all.resize(end, 0);
    }
    drop(given);
    source.release(name);
    Ok(all)
}

/// Where the ways of a parameter lie that begins at an address.
fn place(device: &VulkanProfile, graph: &Graph, weight: &Weight, mut address: u64) -> Vec<((String, Way), Kept)> {
    let (name, ty) = (param_name(graph, weight.value), graph.ty(weight.value));
    let mut all = vec![];
    for (way, dtype, bytes) in ways(device, graph, weight.value, weight.used) {
        let kept = Kept { address, bytes: ty.elements() * dtype.bytes(), dtype, ty: ty.clone() };
        all.push(((name.to_owned(), way), kept));
        address += bytes;
    }
    all
}

/// Pieces of at most so many bytes, none of which cuts a parameter: their lengths, and the addresses of the parameters.
pub(super) fn pieces(weights: &[Weight], limit: u64) -> (Vec<u64>, Vec<u64>) {
    let (mut lengths, mut addresses, mut begin) = (vec![0], vec![], 0);
    for weight in weights {
        let last = lengths.len() - 1;
        if lengths[last] + weight.bytes > limit {
            begin += lengths[last];
            lengths.push(0);
        }
        let last = lengths.len() - 1;
        addresses.push(begin + lengths[last]);
        lengths[last] += weight.bytes;
    }
    (lengths, addresses)
}

/// Brings parameters to their addresses, and waits until they are there.
pub(super) fn bring<'w>(
    vulkan: &Vulkan,
    graph: &Graph,
    memory: &Memory,
    places: impl Iterator<Item = (&'w Weight, u64)>,
    source: &dyn WeightSource,
) -> Result<(), BackendError> {
    let near = NearWeights::of(source);
    let mut copies = vec![];
    for (weight, address) in places {
        let name = param_name(graph, weight.value);
        match (near, source.packed(name)) {
            (Some(near), _) => copies.push((near.part(name, weight.bytes)?, address)),
            (None, Some(bytes)) => memory.write(address, bytes)?,
            (None, None) => memory.write(address, &packed(vulkan.profile(), graph, weight, source)?)?,
        }
    }
    memory.copy(copies)?;
    memory.settle()
}

impl VulkanWeights {
    pub(super) fn new(
        vulkan: &Vulkan,
        graph: &Graph,
        plan: &Plan,
        source: &dyn WeightSource,
    ) -> Result<VulkanWeights, BackendError> {
        let profile = vulkan.profile();
        let limit = vulkan.limits().max_allocation.min(plan.block_bytes());
        let (lengths, addresses) = pieces(plan.resident(), limit);
        let memory = Memory::new(vulkan, lengths.into_iter())?;
        let (slot_bytes, count) = plan.stream().map_or((0, 0), |stream| (stream.slot_bytes(), stream.slots()));
        let slots = Memory::new(vulkan, std::iter::repeat_n(slot_bytes, count))?;
        let mut kept = HashMap::new();
        let places = plan.resident().iter().zip(addresses);
        bring(vulkan, graph, &memory, places.clone(), source)?;
        places.for_each(|(weight, address)| kept.extend(place(profile, graph, weight, address)));
        let segments = plan.stream().map_or(&[][..], |stream| stream.segments());
        let turn = |segment: &Segment| {
            let base = segment.slot as u64 * slot_bytes;
            segment.pieces.iter().flat_map(|p| place(profile, graph, &p.weight, base + p.offset)).collect()
        };
        let turns = segments.iter().map(turn).collect();
        Ok(VulkanWeights { memory, slots, slot_bytes, kept, turns, number: vulkan.number() })
    }

    /// Bring the weights of a segment to its slot.
    pub(super) fn bring(
        &self,
        vulkan: &Vulkan,
        graph: &Graph,
        segment: &Segment,
        source: &dyn WeightSource,
    ) -> Result<(), BackendError> {
        let base = segment.slot as u64 * self.slot_bytes;
        bring(vulkan, graph, &self.slots, segment.pieces.iter().map(|p| (&p.weight, base + p.offset)), source)
    }

    pub(super) fn bytes(&self) -> u64 {
        self.memory.bytes() + self.slots.bytes()
    }

    /// Whether everything that a plan needs is here.
    pub(super) fn check(&self, vulkan: &Vulkan, graph: &Graph, plan: &Plan) -> Result<(), BackendError> {
        let turns = plan.stream().map_or(0, |stream| stream.segments().len());
        if self.turns.len() != turns {
            return Err(vulkan.unsupported("these weights are packed for another plan"));
        }
        for w in plan.resident() {
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

    /// Where a parameter lies in a segment, and as what; [`VulkanWeights::check`] has found it.
    pub(super) fn find(&self, segment: usize, name: &str, way: Way) -> (Part, DType) {
        let key = (name.to_owned(), way);
        let (memory, kept) = match self.turns.get(segment).and_then(|turn| turn.get(&key)) {
            Some(kept) => (&self.slots, kept),
            None => (&self.memory, &self.kept[&key]),
        };
        (memory.part(kept.address, kept.bytes), kept.dtype)
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
