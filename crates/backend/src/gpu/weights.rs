//! Parameters in the layouts that kernels read: weights of products as `(n, k)`, with `k` in the order (tap, channel), tables as they are
//! stored, everything else in the element type of the graph.
//!
//! Loading is tasks of some elements of one parameter each, which threads take: read them once, as the file has them, and write them in each
//! layout that the plan uses straight to where the device reads or copies them, while it copies those of tasks before.

use std::collections::HashMap;
use std::ops::Range;

use impasto_graph::{Capabilities, DType, Graph, Plan, Segment, Storage, TensorType, Used, Value, Weight};

use super::host_mapped::HostMapped;
use super::{Binding, Gpu, GpuMemory, GpuProfile, MemoryCopy, MemoryWriter, Residence, Space, Spaces, WriteBytes};
use crate::cpu::Isa;
use crate::cpu::memory::{AlignedBytes, ReadBuffer};
use crate::cpu::rows::{Dst, Rows, Src};
use crate::stored::{Param, ParamSet, Stored, has_scales, kept_blocks, kept_bytes, param_name, scales_offset, storage};
use crate::{BackendError, WeightSource, Weights};

/// The layouts of parameters, by how they are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum GpuLayout {
    Weights,
    /// In the blocks of the file, the weights of a product and tables.
    Blocks,
    Table,
    Tensor,
}

/// Bytes of a parameter on the device that one task writes at most, unless a row has more.
const TASK_BYTES: usize = 512 << 10;

struct DeviceParam {
    address: u64,
    bytes: u64,
    dtype: DType,
    ty: TensorType,
}

/// Parameters on the device: those that stay, and slots for those that are streamed.
pub(super) struct GpuWeights<G: Gpu> {
    memory: G::Memory,
    /// One allocation a slot.
    slots: G::Memory,
    slot_bytes: u64,
    places: WeightPlaces,
    number: DType,
}

/// Where parameters lie: those that stay, and by segment those that are streamed.
pub(super) struct WeightPlaces {
    resident: HashMap<(String, GpuLayout), DeviceParam>,
    streamed: Vec<HashMap<(String, GpuLayout), DeviceParam>>,
}

#[cfg(test)]
impl WeightPlaces {
    /// All parameters of a plan at one place: for kernels that are written and never run.
    pub(super) fn nowhere(device: &GpuProfile, graph: &Graph, plan: &Plan) -> WeightPlaces {
        let of = |weight: &Weight| {
            let (name, ty) = (param_name(graph, weight.value).to_owned(), graph.ty(weight.value).clone());
            let place = move |(layout, dtype, bytes)| {
                ((name.clone(), layout), DeviceParam { address: 0, bytes, dtype, ty: ty.clone() })
            };
            layouts(device, graph, weight.value, weight.used).into_iter().map(place)
        };
        WeightPlaces { resident: plan.weights().iter().flat_map(of).collect(), streamed: vec![] }
    }

    pub(super) fn places(&self) -> SessionPlaces<'_> {
        SessionPlaces { model: self, adapters: None }
    }
}

/// The parameters of a session on a GPU: those of the model, and adapters.
pub(super) struct GpuSessionWeights<'a, G: Gpu> {
    pub(super) model: &'a GpuWeights<G>,
    adapters: Option<&'a GpuWeights<G>>,
}

/// Where the parameters of a session lie.
#[derive(Clone, Copy)]
pub(super) struct SessionPlaces<'a> {
    model: &'a WeightPlaces,
    adapters: Option<&'a WeightPlaces>,
}

impl SessionPlaces<'_> {
    /// Where a parameter lies in a segment, and as what; [`GpuSessionWeights::check`] has found it.
    pub(super) fn find(&self, segment: usize, name: &str, layout: GpuLayout) -> (Binding, DType) {
        let key = (name.to_owned(), layout);
        let streamed = self.model.streamed.get(segment).and_then(|streamed| streamed.get(&key));
        let adapter = || self.adapters.and_then(|adapters| adapters.resident.get(&key));
        let (space, kept) = match (streamed, adapter()) {
            (Some(kept), _) => (Space::Slots, kept),
            (None, Some(kept)) => (Space::Adapters, kept),
            (None, None) => (Space::Weights, &self.model.resident[&key]),
        };
        (Binding { space, address: kept.address, bytes: kept.bytes }, kept.dtype)
    }
}

/// Tables are large, and few of their rows are read: they stay as they are stored, where the device can read that.
fn table_dtype(device: &GpuProfile, storage: Storage) -> DType {
    match storage {
        Storage::Dense(d) if d.bytes() == 4 || device.storage16 => d,
        _ => DType::F32,
    }
}

/// The layouts that a parameter is stored in, with the element type and the bytes that each takes.
fn layouts(device: &GpuProfile, graph: &Graph, param: Value, used: Used) -> Vec<(GpuLayout, DType, u64)> {
    let ty = graph.ty(param);
    let blocks = kept_blocks(graph, param).is_some();
    let as_product = used.as_weights || used.as_gated;
    let all = [
        (blocks && (as_product || used.as_table), GpuLayout::Blocks, device.number()),
        (!blocks && as_product, GpuLayout::Weights, device.number()),
        (!blocks && used.as_table, GpuLayout::Table, table_dtype(device, storage(graph, param))),
        (used.as_tensor, GpuLayout::Tensor, ty.dtype),
    ];
    let bytes = |layout: GpuLayout, dtype: DType| match layout {
        GpuLayout::Blocks => kept_bytes(ty, storage(graph, param)),
        _ => ty.elements() * dtype.bytes(),
    };
    let layout = |(_, layout, dtype)| (layout, dtype, bytes(layout, dtype).next_multiple_of(device.alignment()));
    all.into_iter().filter(|w| w.0).map(layout).collect()
}

/// Bytes that a parameter takes, for the plan.
pub(super) fn param_bytes(device: &GpuProfile, graph: &Graph, param: Value, used: Used) -> u64 {
    layouts(device, graph, param, used).iter().map(|w| w.2).sum()
}

/// Conversions by vectors. Only flags say that this machine has them, so the newest are left out.
fn rows() -> &'static Rows {
    Rows::of(if Isa::Avx2.claimed() { Isa::Avx2 } else { Isa::Portable })
}

/// Memory of a thread that loads: for what is read, and for two rows of numbers.
#[derive(Default)]
struct Buffers {
    read: ReadBuffer,
    numbers: ReadBuffer,
    rows: [Vec<f32>; 2],
}

/// A parameter on its way to the device.
struct Load<'a> {
    param: Param<'a>,
    ty: &'a TensorType,
    /// With the bytes from the beginning of the parameter to each.
    layouts: Vec<(GpuLayout, DType, u64)>,
    bytes: u64,
}

impl<'a> Load<'a> {
    fn new(
        device: &GpuProfile,
        graph: &'a Graph,
        weight: &Weight,
        source: &'a dyn WeightSource,
    ) -> Result<Load<'a>, BackendError> {
        let (name, ty) = (param_name(graph, weight.value), graph.ty(weight.value));
        let param = Param::find(source, name, ty, storage(graph, weight.value))?;
        if let Some(kept) = kept_blocks(graph, weight.value) {
            param.check_is(kept)?;
        }
        let mut at = 0;
        let place = |(layout, dtype, bytes)| {
            at += bytes;
            (layout, dtype, at - bytes)
        };
        let layouts = layouts(device, graph, weight.value, weight.used).into_iter().map(place).collect();
        Ok(Load { param, ty, layouts, bytes: weight.bytes })
    }

    /// Taps of a convolution, in another order on the device than in the file; 1 of everything else.
    fn taps(&self) -> usize {
        match self.layouts.iter().any(|layout| layout.0 == GpuLayout::Weights) {
            true => self.ty.shape[2..].iter().product::<usize>(),
            false => 1,
        }
    }

    /// Elements of a row, which is never cut where taps change their order.
    fn width(&self) -> usize {
        let elements = self.ty.elements() as usize;
        elements / self.ty.shape.first().copied().unwrap_or(1).max(1)
    }

    /// The elements of each task.
    fn tasks(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let elements = self.ty.elements() as usize;
        let widest = self.layouts.iter().map(|layout| layout.1.bytes() as usize).max().unwrap_or(1);
        let most = TASK_BYTES / widest;
        let most = match self.taps() {
            1 => most,
            _ => (most / self.width().max(1)).max(1) * self.width(),
        };
        (0..elements).step_by(most.max(1)).map(move |at| at..elements.min(at + most))
    }

    /// Reads some elements and gives each layout of them to `put`: where its bytes go from the beginning of the parameter on, how many there are, and
    /// what writes them. What a layout has more than its elements is zeros.
    fn pack(&self, elements: Range<usize>, buffers: &mut Buffers, put: &mut Put) -> Result<(), BackendError> {
        let Buffers { read, numbers, rows } = buffers;
        let taps = self.taps();
        let is_last = elements.end == self.ty.elements() as usize;
        let ends = self.layouts.iter().skip(1).map(|layout| layout.2).chain([self.bytes]);
        let place = |layout: GpuLayout, dtype: DType, at: u64, end: u64| {
            let bytes_of = |elements: usize| match layout {
                GpuLayout::Blocks => self.param.bytes_of(elements),
                _ => elements * dtype.bytes() as usize,
            };
            let (begin, bytes) = (at + bytes_of(elements.start) as u64, bytes_of(elements.len()));
            (begin, bytes, if is_last { (end - begin) as usize } else { bytes })
        };
        match self.layouts[..] {
            [(layout, dtype, at)]
                if layout == GpuLayout::Blocks
                    || self.param.storage() == Storage::Dense(dtype) && (layout != GpuLayout::Weights || taps == 1) =>
            {
                let (begin, bytes, padded) = place(layout, dtype, at, self.bytes);
                put(begin, padded, &mut |to, cached| {
                    let (to, padding) = to.split_at_mut(bytes);
                    self.pad(layout, begin + bytes as u64 - at, padding);
                    // Memory that the host only writes well is written once, in order, from memory that it reads well.
                    match cached {
                        true => self.param.read_into(elements.clone(), to),
                        false => {
                            to.copy_from_slice(self.param.read(elements.clone(), read)?.bytes());
                            Ok(())
                        }
                    }
                })?;
            }
            _ => {
                let stored = self.param.read(elements.clone(), read)?;
                for (&(layout, dtype, at), end) in self.layouts.iter().zip(ends) {
                    let (begin, bytes, padded) = place(layout, dtype, at, end);
                    put(begin, padded, &mut |to, _| {
                        let (to, padding) = to.split_at_mut(bytes);
                        self.pad(layout, begin + bytes as u64 - at, padding);
                        match layout {
                            GpuLayout::Blocks => to.copy_from_slice(stored.bytes()),
                            GpuLayout::Weights if taps > 1 => self.reorder(&stored, taps, dtype, to, numbers, rows),
                            _ => convert(stored.numbers(0..elements.len(), numbers), dtype, to),
                        }
                        Ok(())
                    })?;
                }
            }
        }
        self.param.was_read(elements.len())
    }

    /// What follows the last element of a layout, so many bytes from its beginning: the scales of rows in blocks, and zeros.
    fn pad(&self, layout: GpuLayout, from: u64, padding: &mut [u8]) {
        padding.fill(0);
        let storage = self.param.storage();
        if layout == GpuLayout::Blocks && has_scales(storage) && !padding.is_empty() {
            let scales = &mut padding[scales_offset(self.ty, storage) - from as usize..];
            for (row, to) in scales.chunks_exact_mut(4).take(self.ty.shape[0]).enumerate() {
                to.copy_from_slice(&self.param.scale_of_row(row).to_le_bytes());
            }
        }
    }

    /// Rows of a convolution's weights: the file has (channel, tap), the device goes through (tap, channel).
    fn reorder(
        &self,
        stored: &Stored,
        taps: usize,
        dtype: DType,
        to: &mut [u8],
        numbers: &mut ReadBuffer,
        [file, device]: &mut [Vec<f32>; 2],
    ) {
        let width = self.width();
        file.resize(width, 0.0);
        device.resize(width, 0.0);
        for (row, to) in to.chunks_exact_mut(width * dtype.bytes() as usize).enumerate() {
            let src = stored.numbers(row * width..(row + 1) * width, numbers);
            // SAFETY: the row is there, and this machine has the instructions.
            unsafe { (rows().convert)(src, Dst { ptr: file.as_mut_ptr().cast(), dtype: DType::F32 }, width) };
            for (tap, to) in device.chunks_exact_mut(width / taps).enumerate() {
                to.iter_mut().zip(file[tap..].iter().step_by(taps)).for_each(|(to, x)| *to = *x);
            }
            convert(Src { ptr: device.as_ptr().cast(), dtype: DType::F32 }, dtype, to);
        }
    }
}

/// What takes them: how far from the beginning of the parameter, and how many.
type Put<'p> = dyn FnMut(u64, usize, &mut WriteBytes) -> Result<(), BackendError> + 'p;

/// As many numbers as there is room for, in this element type.
fn convert(src: Src, dtype: DType, to: &mut [u8]) {
    let n = to.len() / dtype.bytes() as usize;
    // SAFETY: the caller has so many numbers, this machine has the instructions, and places of the device are aligned.
    unsafe { (rows().convert)(src, Dst { ptr: to.as_mut_ptr(), dtype }, n) };
}

/// A parameter as the device keeps it, packed by this thread alone: each of its layouts, one after the other.
pub(super) fn packed(
    device: &GpuProfile,
    graph: &Graph,
    weight: &Weight,
    source: &dyn WeightSource,
) -> Result<AlignedBytes, BackendError> {
    let load = Load::new(device, graph, weight, source)?;
    let (mut packed, mut buffers) = (AlignedBytes::zeroed(weight.bytes as usize), Buffers::default());
    for elements in load.tasks() {
        load.pack(elements, &mut buffers, &mut |at, length, write| write(&mut packed[at as usize..][..length], true))?;
    }
    Ok(packed)
}

/// Where the layouts of a parameter lie that begins at an address.
fn place(
    device: &GpuProfile,
    graph: &Graph,
    weight: &Weight,
    mut address: u64,
) -> Vec<((String, GpuLayout), DeviceParam)> {
    let (name, ty) = (param_name(graph, weight.value), graph.ty(weight.value));
    let mut all = vec![];
    for (layout, dtype, bytes) in layouts(device, graph, weight.value, weight.used) {
        let used = match layout {
            // A kernel reads whole words.
            GpuLayout::Blocks => kept_bytes(ty, storage(graph, weight.value)).next_multiple_of(4),
            _ => ty.elements() * dtype.bytes(),
        };
        let kept = DeviceParam { address, bytes: used, dtype, ty: ty.clone() };
        all.push(((name.to_owned(), layout), kept));
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
pub(super) fn bring<'w, G: Gpu>(
    gpu: &G,
    graph: &Graph,
    memory: &G::Memory,
    places: impl Iterator<Item = (&'w Weight, u64)>,
    source: &dyn WeightSource,
) -> Result<(), BackendError> {
    if let Some(mapped) = HostMapped::<G>::of(source) {
        let copy = |(weight, to): (&Weight, u64)| {
            let from = mapped.address(param_name(graph, weight.value), weight.bytes)?;
            Ok(MemoryCopy { from, to, bytes: weight.bytes })
        };
        let copies = places.map(copy).collect::<Result<Vec<_>, BackendError>>()?;
        memory.copy_from(mapped.memory(), &copies)?;
        return memory.settle();
    }
    source.check()?;
    let mut loads = vec![];
    for (weight, address) in places {
        let from = match source.packed(param_name(graph, weight.value)) {
            Some(packed) => From::Packed(packed),
            None => From::Source(Load::new(gpu.gpu_profile(), graph, weight, source)?),
        };
        loads.push((from, address));
    }
    let mut tasks = vec![];
    for (from, address) in &loads {
        match from {
            From::Source(load) => tasks.extend(load.tasks().map(|elements| (from, elements, *address))),
            From::Packed(packed) => tasks.extend((0..packed.len()).step_by(TASK_BYTES).map(|at| {
                let end = packed.len().min(at + TASK_BYTES);
                (from, at..end, *address)
            })),
        }
    }
    memory.fill(tasks.len(), &|buffers: &mut Buffers, writer: &mut dyn MemoryWriter, i| {
        let (from, range, address) = &tasks[i];
        match from {
            From::Source(load) => {
                load.pack(range.clone(), buffers, &mut |at, bytes, write| writer.fill(address + at, bytes, write))
            }
            From::Packed(packed) => writer.fill(address + range.start as u64, range.len(), &mut |to, _| {
                to.copy_from_slice(&packed[range.clone()]);
                Ok(())
            }),
        }
    })?;
    Ok(source.check()?)
}

/// Where a parameter comes from.
enum From<'a> {
    Source(Load<'a>),
    /// As it was packed for the device before.
    Packed(&'a [u8]),
}

impl<G: Gpu> GpuWeights<G> {
    pub(super) fn new(
        gpu: &G,
        graph: &Graph,
        plan: &Plan,
        source: &dyn WeightSource,
        set: ParamSet,
    ) -> Result<GpuWeights<G>, BackendError> {
        let profile = gpu.gpu_profile();
        let limit = profile.limits().max_allocation.min(plan.block_bytes());
        let weights = set.of(graph, plan.resident());
        let (lengths, addresses) = pieces(&weights, limit);
        let memory = gpu.allocate(Residence::Device, lengths.into_iter())?;
        let stream = plan.stream().filter(|_| set == ParamSet::Model);
        let (slot_bytes, count) = stream.map_or((0, 0), |stream| (stream.slot_bytes(), stream.slots()));
        let slots = gpu.allocate(Residence::Device, std::iter::repeat_n(slot_bytes, count))?;
        let mut resident = HashMap::new();
        let places = weights.iter().zip(addresses);
        bring(gpu, graph, &memory, places.clone(), source)?;
        places.for_each(|(weight, address)| resident.extend(place(profile, graph, weight, address)));
        let segments = stream.map_or(&[][..], |stream| stream.segments());
        let of_segment = |segment: &Segment| {
            let base = segment.slot as u64 * slot_bytes;
            segment.pieces.iter().flat_map(|p| place(profile, graph, &p.weight, base + p.offset)).collect()
        };
        let streamed = segments.iter().map(of_segment).collect();
        let places = WeightPlaces { resident, streamed };
        Ok(GpuWeights { memory, slots, slot_bytes, places, number: profile.number() })
    }

    /// Bring the weights of a segment to its slot.
    pub(super) fn bring(
        &self,
        gpu: &G,
        graph: &Graph,
        segment: &Segment,
        source: &dyn WeightSource,
    ) -> Result<(), BackendError> {
        let base = segment.slot as u64 * self.slot_bytes;
        bring(gpu, graph, &self.slots, segment.pieces.iter().map(|p| (&p.weight, base + p.offset)), source)
    }

    pub(super) fn bytes(&self) -> u64 {
        self.memory.bytes() + self.slots.bytes()
    }

    fn has(&self, gpu: &G, graph: &Graph, weight: &Weight) -> Result<(), BackendError> {
        let (name, ty) = (param_name(graph, weight.value), graph.ty(weight.value));
        for (layout, ..) in layouts(gpu.gpu_profile(), graph, weight.value, weight.used) {
            let problem = |problem: &str| BackendError::Param { name: name.into(), problem: problem.into() };
            match self.places.resident.get(&(name.to_owned(), layout)) {
                Some(kept) if kept.ty == *ty && self.number == gpu.gpu_profile().number() => {}
                Some(_) => return Err(problem("is packed for another shape or precision")),
                None => return Err(problem("is not packed for this use")),
            }
        }
        Ok(())
    }
}

impl<'a, G: Gpu> GpuSessionWeights<'a, G> {
    pub(super) fn new(gpu: &G, weights: &'a Weights) -> Result<Self, BackendError> {
        let name = &gpu.gpu_profile().name;
        let adapters = weights.adapters().map(|adapters| adapters.of(name)).transpose()?;
        Ok(GpuSessionWeights { model: weights.of(name)?, adapters })
    }

    /// Whether everything that a plan needs is here.
    pub(super) fn check(&self, gpu: &G, graph: &Graph, plan: &Plan) -> Result<(), BackendError> {
        let segments = plan.stream().map_or(0, |stream| stream.segments().len());
        if self.model.places.streamed.len() != segments {
            return Err(gpu.unsupported("these weights are packed for another plan"));
        }
        plan.resident().iter().try_for_each(|weight| {
            let of = self.adapters.filter(|_| graph.is_adapter(weight.value)).unwrap_or(self.model);
            of.has(gpu, graph, weight)
        })
    }

    /// Where parameters lie.
    pub(super) fn places(&self) -> SessionPlaces<'a> {
        SessionPlaces { model: &self.model.places, adapters: self.adapters.map(|adapters| &adapters.places) }
    }

    /// The memories of a session that has these weights.
    pub(super) fn spaces<'b>(&self, arena: &'b G::Memory, host: &'b G::Memory) -> Spaces<'b, G::Memory>
    where
        'a: 'b,
    {
        let adapters = self.adapters.map(|adapters| &adapters.memory);
        Spaces { arena, host, weights: &self.model.memory, slots: &self.model.slots, adapters }
    }
}
