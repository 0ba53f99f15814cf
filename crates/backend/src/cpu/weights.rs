//! Parameters in the layouts that kernels read: weights of products as panels, tables as they are stored, everything else
//! in the element type of the graph.
//!
//! Loading is tasks of some rows of one parameter each, which the pool's threads take: read the rows once, as the file has them, and pack
//! them straight into each layout that the plan uses.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use impasto_graph::{DType, Graph, Plan, Segment, Storage, StreamedWeight, TensorType, Used, Value, Weight};

use super::Cpu;
use super::gemm::pack::{self, Order};
use super::gemm::{PANEL, ProductType};
use super::memory::{AlignedBytes, CpuMemory, ReadBuffer};
use super::rows::{Dst, PanelRows, Src};
use super::session::Ptr;
use crate::shapes::product_shape;
use crate::stored::{Param, ParamSet, Stored, has_scales, kept_blocks, kept_bytes, param_name, scales_offset, storage};
use crate::tasks::FirstError;
use crate::{BackendError, WeightSource, Weights};

/// A parameter in one of its layouts.
struct Packed {
    /// Where it lies, in memory that this value holds.
    ptr: Ptr,
    dtype: DType,
    ty: TensorType,
}

/// The layouts that uses of a parameter ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum CpuLayout {
    /// As panels, the weights of a product.
    Panels,
    /// As panels of values and of their gates, the weights of a product that ends with GEGLU.
    GatedPanels,
    /// In the blocks of the file, the weights of a product, gated or not, and tables.
    Blocks,
    Table,
    Tensor,
}

impl CpuLayout {
    /// Whether its element type is that of products.
    fn is_panels(self) -> bool {
        matches!(self, CpuLayout::Panels | CpuLayout::GatedPanels)
    }
}

/// Parameters in memory: those that stay, and the slots of those that are streamed.
pub(super) struct CpuWeights {
    /// Keeps what the addresses point into.
    memory: Vec<CpuMemory>,
    slots: Option<CpuMemory>,
    slot_bytes: u64,
    resident: HashMap<(String, CpuLayout), Packed>,
    /// By segment.
    streamed: Vec<HashMap<(String, CpuLayout), Packed>>,
    /// What panels are packed for.
    number: ProductType,
    matrix: bool,
}

/// Tables are large, and few of their rows are read: they stay as they are stored.
fn table_dtype(storage: Storage) -> DType {
    match storage {
        Storage::Dense(d) => d,
        _ => DType::F32,
    }
}

fn packed_bytes(cpu: &Cpu, ty: &TensorType, gated: bool) -> u64 {
    let (n, k) = product_shape(ty);
    pack::packed_bytes(pack::columns(n, gated), k, cpu.number()) as u64
}

/// The layouts in which a parameter is kept, with the element type and the bytes that each takes.
fn layouts(cpu: &Cpu, graph: &Graph, param: Value, used: Used) -> Vec<(CpuLayout, DType, u64)> {
    let ty = graph.ty(param);
    let table = table_dtype(storage(graph, param));
    let mut all = vec![];
    match kept_blocks(graph, param) {
        Some(storage) if used.as_weights || used.as_gated || used.as_table => {
            all.push((CpuLayout::Blocks, DType::F32, kept_bytes(ty, storage)));
        }
        Some(_) => {}
        None => {
            if used.as_weights {
                all.push((CpuLayout::Panels, cpu.number().dtype(), packed_bytes(cpu, ty, false)));
            }
            if used.as_gated {
                all.push((CpuLayout::GatedPanels, cpu.number().dtype(), packed_bytes(cpu, ty, true)));
            }
            if used.as_table {
                all.push((CpuLayout::Table, table, ty.elements() * table.bytes()));
            }
        }
    }
    if used.as_tensor {
        all.push((CpuLayout::Tensor, ty.dtype, ty.bytes()));
    }
    all
}

/// Bytes that a parameter takes, for the plan.
pub(super) fn param_bytes(cpu: &Cpu, graph: &Graph, param: Value, used: Used) -> u64 {
    layouts(cpu, graph, param, used).iter().map(|layout| layout.2).sum()
}

/// Bytes of the file that one task reads at least, where the parameter has so many: a thread keeps them in its L2.
const TASK_BYTES: usize = 256 << 10;

/// A parameter on its way to its places, one for each layout.
struct Load<'a> {
    ty: &'a TensorType,
    from: From<'a>,
    places: Vec<Place>,
}

/// Where a parameter goes in one of its layouts.
#[derive(Clone, Copy)]
struct Place {
    layout: CpuLayout,
    dtype: DType,
    bytes: u64,
    to: Ptr,
}

enum From<'a> {
    Source(Param<'a>),
    /// As this backend has packed it before, each layout after the other.
    Packed(&'a [u8]),
}

impl<'a> Load<'a> {
    fn new(
        cpu: &Cpu,
        graph: &'a Graph,
        weight: &Weight,
        source: &'a dyn WeightSource,
        places: &[Ptr],
    ) -> Result<Load<'a>, BackendError> {
        let (name, ty) = (param_name(graph, weight.value), graph.ty(weight.value));
        let from = match source.packed(name).filter(|packed| packed.len() as u64 == weight.bytes) {
            Some(packed) => From::Packed(packed),
            None => From::Source(Param::find(source, name, ty, storage(graph, weight.value))?),
        };
        if let (From::Source(param), Some(kept)) = (&from, kept_blocks(graph, weight.value)) {
            param.check_is(kept)?;
        }
        let layouts = layouts(cpu, graph, weight.value, weight.used).into_iter().zip(places);
        let places = layouts.map(|((layout, dtype, bytes), &to)| Place { layout, dtype, bytes, to }).collect();
        Ok(Load { ty, from, places })
    }

    /// Rows of the parameter, and elements of each: where nothing is in rows, every element is one.
    fn rows(&self) -> (usize, usize) {
        match self.places.iter().any(|place| place.layout.is_panels() || place.layout == CpuLayout::Blocks) {
            true => product_shape(self.ty),
            false => (self.ty.elements() as usize, 1),
        }
    }

    /// The rows of each task. No panel of any layout is cut.
    fn tasks(&self) -> Vec<Range<usize>> {
        let (rows, width) = self.rows();
        let has = |layout: CpuLayout| self.places.iter().any(|place| place.layout == layout);
        let half = if has(CpuLayout::GatedPanels) { rows / 2 } else { rows };
        let (half, least) = match &self.from {
            From::Source(param) if half == rows || !has(CpuLayout::Panels) || half.is_multiple_of(PANEL) => {
                // Whole panels, or whole cache lines of whatever is written.
                let unit = if width == 1 { 4 * PANEL } else { PANEL };
                (half, (TASK_BYTES / param.bytes_of(width).max(1)).next_multiple_of(unit).max(unit))
            }
            _ => (rows, rows.max(1)),
        };
        let cut = |from: usize, to: usize| (from..to).step_by(least).map(move |at| at..to.min(at + least));
        cut(0, half).chain(cut(half, rows)).collect()
    }

    /// Reads some rows and packs them.
    ///
    /// # Safety
    /// Each place has room for its layout, and nobody else writes what belongs to these rows.
    unsafe fn pack(&self, cpu: &Cpu, rows: Range<usize>, buffers: &mut [ReadBuffer; 2]) -> Result<(), BackendError> {
        let param = match &self.from {
            From::Source(param) => param,
            From::Packed(packed) => {
                let mut rest = *packed;
                for &Place { bytes, to, .. } in &self.places {
                    let (own, others) = rest.split_at(bytes as usize);
                    // SAFETY: the caller's.
                    unsafe { to.get().copy_from_nonoverlapping(own.as_ptr(), own.len()) };
                    rest = others;
                }
                return Ok(());
            }
        };
        let (_, width) = self.rows();
        let elements = rows.start * width..rows.end * width;
        let [buffer, numbers] = buffers;
        match self.places[..] {
            [Place { layout, dtype, to, .. }]
                if layout == CpuLayout::Blocks || !layout.is_panels() && param.storage() == Storage::Dense(dtype) =>
            {
                let (at, bytes) = (param.bytes_of(elements.start), param.bytes_of(elements.len()));
                // SAFETY: the caller's.
                let to = unsafe { std::slice::from_raw_parts_mut(to.add(at), bytes) };
                param.read_into(elements.clone(), to)?;
            }
            _ => {
                let stored = param.read(elements.clone(), buffer)?;
                for &Place { layout, dtype, to, .. } in &self.places {
                    // SAFETY: the caller's.
                    unsafe {
                        match layout {
                            CpuLayout::Blocks => {
                                let bytes = stored.bytes();
                                let to = to.add(param.bytes_of(elements.start));
                                to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
                            }
                            CpuLayout::Panels => self.pack_panels(cpu, &stored, &rows, false, to, numbers),
                            CpuLayout::GatedPanels => self.pack_panels(cpu, &stored, &rows, true, to, numbers),
                            CpuLayout::Table | CpuLayout::Tensor => {
                                let src = stored.numbers(0..elements.len(), numbers);
                                let to = to.add(elements.start * dtype.bytes() as usize);
                                (cpu.rows().convert)(src, Dst { ptr: to, dtype }, elements.len());
                            }
                        }
                    }
                }
            }
        }
        let of_rows = self.places.iter().filter(|p| p.layout == CpuLayout::Blocks && has_scales(param.storage()));
        for place in of_rows {
            for row in rows.clone() {
                // SAFETY: the caller's; the layout has a scale for each row, aligned, behind its blocks.
                unsafe {
                    let scales = place.to.add(scales_offset(self.ty, param.storage())).cast::<f32>();
                    scales.add(row).write(param.scale_of_row(row));
                }
            }
        }
        param.was_read(elements.len())
    }

    /// Packs the panels of these rows.
    ///
    /// # Safety
    /// As [`Load::pack`].
    unsafe fn pack_panels(
        &self,
        cpu: &Cpu,
        stored: &Stored,
        rows: &Range<usize>,
        gated: bool,
        to: Ptr,
        numbers: &mut ReadBuffer,
    ) {
        let ((n, k), number) = (product_shape(self.ty), cpu.number());
        let window = [2, 3].map(|axis| self.ty.shape.get(axis).copied().unwrap_or(1));
        let order = Order::new(&cpu.kernel(), window, self.ty.shape[1]);
        for panel in 0..pack::columns(n, gated).div_ceil(PANEL) {
            let columns = pack::columns_of_panel(panel, n, gated);
            if columns.start < rows.start || columns.start >= rows.end {
                continue;
            }
            let (first, columns) = (columns.start - rows.start, columns.len());
            let src = stored.numbers(first * k..(first + columns) * k, numbers);
            // SAFETY: the caller's; the panel lies in the place.
            unsafe {
                let to = to.add(panel * pack::panel_bytes(k, number));
                (cpu.rows().panel)(&PanelRows { src, columns, order, number }, to);
                pack::zero_padding(to, number, columns, k);
            }
        }
    }
}

/// Fills the places of some parameters, on all threads of the pool.
///
/// # Safety
/// As [`Load::pack`], for all rows.
unsafe fn fill(cpu: &Cpu, loads: &[Load]) -> Result<(), BackendError> {
    let tasks: Vec<(&Load, Range<usize>)> =
        loads.iter().flat_map(|load| load.tasks().into_iter().map(move |rows| (load, rows))).collect();
    let buffers: Vec<Mutex<[ReadBuffer; 2]>> = (0..cpu.threads()).map(|_| Mutex::default()).collect();
    let first = FirstError::default();
    cpu.pool().each(tasks.len(), &|thread, i| {
        let (load, rows) = &tasks[i];
        let mut buffers = buffers[thread].lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the caller's; tasks have different rows.
        first.run(|| unsafe { load.pack(cpu, rows.clone(), &mut buffers) });
    });
    first.result()
}

/// A parameter as it is kept, packed by this thread alone: each of its layouts, one after the other.
pub(super) fn packed(
    cpu: &Cpu,
    graph: &Graph,
    weight: &Weight,
    source: &dyn WeightSource,
) -> Result<AlignedBytes, BackendError> {
    let mut packed = AlignedBytes::zeroed(weight.bytes as usize);
    let mut rest = &mut *packed;
    let mut places = vec![];
    for (.., bytes) in layouts(cpu, graph, weight.value, weight.used) {
        let (layout, others) = rest.split_at_mut(bytes as usize);
        places.push(Ptr::new(layout.as_mut_ptr()));
        rest = others;
    }
    let load = Load::new(cpu, graph, weight, source, &places)?;
    let mut buffers = Default::default();
    for rows in load.tasks() {
        // SAFETY: each place has the bytes of its layout, in memory that is ours.
        unsafe { load.pack(cpu, rows, &mut buffers)? };
    }
    Ok(packed)
}

impl CpuWeights {
    /// The adapters of a plan.
    pub(super) fn adapters(
        cpu: &Cpu,
        graph: &Graph,
        plan: &Plan,
        source: &dyn WeightSource,
    ) -> Result<Self, BackendError> {
        let mut weights = CpuWeights::empty(cpu, None, 0);
        weights.read_resident(cpu, graph, &ParamSet::Adapters.of(graph, plan.resident()), source)?;
        Ok(weights)
    }

    fn empty(cpu: &Cpu, slots: Option<CpuMemory>, slot_bytes: u64) -> Self {
        let (number, matrix) = (cpu.number(), cpu.kernel().is_matrix());
        let (memory, resident, streamed) = (vec![], HashMap::new(), vec![]);
        CpuWeights { memory, slots, slot_bytes, resident, streamed, number, matrix }
    }

    /// Takes memory for parameters that stay, and reads them.
    fn read_resident(
        &mut self,
        cpu: &Cpu,
        graph: &Graph,
        resident: &[Weight],
        source: &dyn WeightSource,
    ) -> Result<(), BackendError> {
        source.check()?;
        let mut loads = vec![];
        for weight in resident {
            let (name, ty) = (param_name(graph, weight.value), graph.ty(weight.value));
            let mut places = vec![];
            for (layout, dtype, bytes) in layouts(cpu, graph, weight.value, weight.used) {
                let memory = cpu.unwritten_memory(bytes)?;
                let ptr = Ptr::new(memory.ptr());
                places.push(ptr);
                self.memory.push(memory);
                self.resident.insert((name.into(), layout), Packed { ptr, dtype, ty: ty.clone() });
            }
            loads.push(Load::new(cpu, graph, weight, source, &places)?);
        }
        // SAFETY: each place is memory of its own, of the bytes of its layout.
        unsafe { fill(cpu, &loads)? };
        Ok(source.check()?)
    }

    /// The other parameters of a plan.
    pub(super) fn new(cpu: &Cpu, graph: &Graph, plan: &Plan, source: &dyn WeightSource) -> Result<Self, BackendError> {
        let stream = plan.stream();
        let (slot_bytes, count) = stream.map_or((0, 0), |stream| (stream.slot_bytes(), stream.slots()));
        let slots = stream.map(|_| cpu.memory(slot_bytes * count as u64)).transpose()?;
        let mut weights = CpuWeights::empty(cpu, slots, slot_bytes);
        weights.read_resident(cpu, graph, &ParamSet::Model.of(graph, plan.resident()), source)?;
        for segment in stream.map_or(&[][..], |stream| stream.segments()) {
            let mut slot = HashMap::new();
            for piece in &segment.pieces {
                let (name, ty) = (param_name(graph, piece.weight.value), graph.ty(piece.weight.value));
                for (layout, dtype, _) in layouts(cpu, graph, piece.weight.value, piece.weight.used) {
                    let packed = Packed { ptr: weights.slot(segment, piece), dtype, ty: ty.clone() };
                    slot.insert((name.to_owned(), layout), packed);
                }
            }
            weights.streamed.push(slot);
        }
        Ok(weights)
    }

    /// Where a streamed piece lies; such are kept in one layout only.
    fn slot(&self, segment: &Segment, piece: &StreamedWeight) -> Ptr {
        let at = segment.slot as u64 * self.slot_bytes + piece.offset;
        let slots = self.slots.as_ref().filter(|slots| at + piece.weight.bytes <= slots.bytes());
        let slots = slots.expect("the plan stays inside its slots");
        // SAFETY: just checked.
        Ptr::new(unsafe { slots.ptr().add(at as usize) })
    }

    /// Bring the weights of a segment to its slot.
    pub(super) fn bring(
        &self,
        cpu: &Cpu,
        graph: &Graph,
        segment: &Segment,
        source: &dyn WeightSource,
    ) -> Result<(), BackendError> {
        source.check()?;
        for piece in &segment.pieces {
            // One after the other: the pool computes between them.
            let load = Load::new(cpu, graph, &piece.weight, source, &[self.slot(segment, piece)])?;
            // SAFETY: the slot has room for the piece, which is kept in one layout only, and no step that reads it runs now.
            unsafe { fill(cpu, &[load])? };
        }
        Ok(source.check()?)
    }

    pub(super) fn bytes(&self) -> u64 {
        self.memory.iter().chain(&self.slots).map(CpuMemory::bytes).sum()
    }

    fn has(&self, cpu: &Cpu, graph: &Graph, weight: &Weight) -> Result<(), BackendError> {
        let fits = (self.number, self.matrix) == (cpu.number(), cpu.kernel().is_matrix());
        let (name, ty) = (param_name(graph, weight.value), graph.ty(weight.value));
        let problem = |problem: &str| Err(BackendError::Param { name: name.into(), problem: problem.into() });
        for (layout, ..) in layouts(cpu, graph, weight.value, weight.used) {
            match self.resident.get(&(name.to_owned(), layout)) {
                Some(packed) if packed.ty == *ty && (!layout.is_panels() || fits) => {}
                Some(_) => return problem("is packed for another shape, precision or instruction path"),
                None => return problem("is not packed for this use"),
            }
        }
        Ok(())
    }
}

/// The parameters of a session: those of the model, and adapters.
#[derive(Clone, Copy)]
pub(super) struct CpuSessionWeights<'a> {
    pub(super) model: &'a CpuWeights,
    adapters: Option<&'a CpuWeights>,
}

impl<'a> CpuSessionWeights<'a> {
    /// Those that a plan needs; all of them must be here.
    pub(super) fn new(cpu: &Cpu, graph: &Graph, plan: &Plan, weights: &'a Weights) -> Result<Self, BackendError> {
        let model: &CpuWeights = weights.of("cpu")?;
        let adapters = weights.adapters().map(|adapters| adapters.of::<CpuWeights>("cpu")).transpose()?;
        if model.streamed.len() != plan.stream().map_or(0, |stream| stream.segments().len()) {
            let reason = "these weights are packed for another plan".into();
            return Err(BackendError::Unsupported { device: "cpu".into(), reason });
        }
        for weight in plan.resident() {
            let of = adapters.filter(|_| graph.is_adapter(weight.value)).unwrap_or(model);
            of.has(cpu, graph, weight)?;
        }
        Ok(CpuSessionWeights { model, adapters })
    }

    /// Where a parameter lies in a segment.
    pub(super) fn find(&self, segment: usize, name: &str, layout: CpuLayout) -> Src {
        let key = (name.to_owned(), layout);
        let streamed = self.model.streamed.get(segment).and_then(|slot| slot.get(&key));
        let adapter = || self.adapters.and_then(|adapters| adapters.resident.get(&key));
        let packed = streamed.or_else(adapter).unwrap_or_else(|| &self.model.resident[&key]);
        Src { ptr: packed.ptr.get(), dtype: packed.dtype }
    }
}
