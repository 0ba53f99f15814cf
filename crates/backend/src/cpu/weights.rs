//! Parameters in the layouts that kernels read: weights of products as panels, tables as they are stored, everything else
//! in the element type of the graph.
//!
//! Each is read from the file once and kept once (again only if the model uses it in another way too).

use std::collections::HashMap;
use std::sync::Mutex;

use half::{bf16, f16};
use impasto_graph::{DType, Graph, Piece, Plan, Segment, Storage, TensorType, Used, Value, Weight};

use super::Cpu;
use super::gemm::pack::{self, Order};
use super::gemm::{Number, PANEL};
use super::memory::Memory;
use super::rows::Src;
use super::session::Ptr;
use crate::shapes::product_shape;
use crate::stored::{convert, dequantise, param_name, read, storage};
use crate::{BackendError, ParamBytes, WeightSource};

/// A parameter in one of its layouts.
struct Kept {
    /// Where it lies, in memory that this value holds.
    ptr: Ptr,
    dtype: DType,
    ty: TensorType,
}

/// How a parameter is used, each way with a layout of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Way {
    /// As panels, the weights of a product.
    Panels,
    /// As panels of values and of their gates, the weights of a product that ends with GEGLU.
    GatedPanels,
    Table,
    Tensor,
}

impl Way {
    /// Whether its element type is that of products.
    fn is_packed(self) -> bool {
        matches!(self, Way::Panels | Way::GatedPanels)
    }
}

/// Parameters in memory: those that stay, and where those lie that take turns.
pub(super) struct CpuWeights {
    /// Keeps what the addresses point into.
    memory: Vec<Memory>,
    slots: Option<Memory>,
    slot_bytes: u64,
    kept: HashMap<(String, Way), Kept>,
    /// By segment.
    turns: Vec<HashMap<(String, Way), Kept>>,
    /// What panels are packed for.
    number: Number,
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

/// The ways in which a parameter is kept, with the element type and the bytes that each takes.
fn ways(cpu: &Cpu, graph: &Graph, param: Value, used: Used) -> Vec<(Way, DType, u64)> {
    let ty = graph.ty(param);
    let table = table_dtype(storage(graph, param));
    let mut all = vec![];
    if used.as_weights {
        all.push((Way::Panels, cpu.number().dtype(), packed_bytes(cpu, ty, false)));
    }
    if used.as_gated {
        all.push((Way::GatedPanels, cpu.number().dtype(), packed_bytes(cpu, ty, true)));
    }
    if used.as_table {
        all.push((Way::Table, table, ty.elements() * table.bytes()));
    }
    if used.as_tensor {
        all.push((Way::Tensor, ty.dtype, ty.bytes()));
    }
    all
}

/// Bytes that a parameter takes, for the plan.
pub(super) fn param_bytes(cpu: &Cpu, graph: &Graph, param: Value, used: Used) -> u64 {
    ways(cpu, graph, param, used).iter().map(|way| way.2).sum()
}

/// Fills places with a parameter, one for each way in which it is used, read from its source once, or packed as it was before.
///
/// # Safety
/// Each place has room for the bytes of its way, and nobody else uses it.
unsafe fn fill(
    cpu: &Cpu,
    graph: &Graph,
    weight: &Weight,
    source: &dyn WeightSource,
    places: &[Ptr],
) -> Result<(), BackendError> {
    let (name, ty) = (param_name(graph, weight.value), graph.ty(weight.value));
    if let Some(mut packed) = source.packed(name).filter(|packed| packed.len() as u64 == weight.bytes) {
        for ((.., bytes), to) in ways(cpu, graph, weight.value, weight.used).into_iter().zip(places) {
            let (way, rest) = packed.split_at(bytes as usize);
            // SAFETY: the caller's.
            unsafe { to.get().copy_from_nonoverlapping(way.as_ptr(), way.len()) };
            packed = rest;
        }
        return Ok(());
    }
    let given = read(source, name, ty, storage(graph, weight.value))?;
    for ((way, dtype, _), &to) in ways(cpu, graph, weight.value, weight.used).into_iter().zip(places) {
        match way {
            Way::Panels => pack_product(cpu, &given, ty, false, to),
            Way::GatedPanels => pack_product(cpu, &given, ty, true, to),
            // SAFETY: the caller's.
            Way::Table | Way::Tensor => unsafe { copy_plain(&given, dtype, ty, to) },
        }
    }
    drop(given);
    source.release(name);
    Ok(())
}

/// A parameter as it is kept.
pub(super) fn packed(
    cpu: &Cpu,
    graph: &Graph,
    weight: &Weight,
    source: &dyn WeightSource,
) -> Result<Vec<u8>, BackendError> {
    let memory = cpu.memory(weight.bytes)?;
    let mut at = 0;
    let mut places = vec![];
    for (.., bytes) in ways(cpu, graph, weight.value, weight.used) {
        // SAFETY: the ways together have the bytes of the weight.
        places.push(Ptr::new(unsafe { memory.ptr().add(at) }));
        at += bytes as usize;
    }
    // SAFETY: as above; the memory is ours.
    unsafe { fill(cpu, graph, weight, source, &places)? };
    // SAFETY: all of it was written, or is zero.
    Ok(unsafe { std::slice::from_raw_parts(memory.ptr(), weight.bytes as usize) }.to_vec())
}

impl CpuWeights {
    pub(super) fn new(cpu: &Cpu, graph: &Graph, plan: &Plan, source: &dyn WeightSource) -> Result<Self, BackendError> {
        let stream = plan.stream();
        let (slot_bytes, count) = stream.map_or((0, 0), |stream| (stream.slot_bytes(), stream.slots()));
        let slots = stream.map(|_| cpu.memory(slot_bytes * count as u64)).transpose()?;
        let (number, matrix, kept, turns) = (cpu.number(), cpu.kernel().is_matrix(), HashMap::new(), vec![]);
        let mut weights = CpuWeights { memory: vec![], slots, slot_bytes, kept, turns, number, matrix };
        for weight in plan.resident() {
            let (name, ty) = (param_name(graph, weight.value), graph.ty(weight.value));
            let mut places = vec![];
            for (way, dtype, bytes) in ways(cpu, graph, weight.value, weight.used) {
                let memory = cpu.memory(bytes)?;
                let ptr = Ptr::new(memory.ptr());
                places.push(ptr);
                weights.memory.push(memory);
                weights.kept.insert((name.into(), way), Kept { ptr, dtype, ty: ty.clone() });
            }
            // SAFETY: each place is memory of its own, of the bytes of its way.
            unsafe { fill(cpu, graph, weight, source, &places)? };
        }
        for segment in stream.map_or(&[][..], |stream| stream.segments()) {
            let mut turn = HashMap::new();
            for piece in &segment.pieces {
                let (name, ty) = (param_name(graph, piece.weight.value), graph.ty(piece.weight.value));
                for (way, dtype, _) in ways(cpu, graph, piece.weight.value, piece.weight.used) {
                    let kept = Kept { ptr: weights.slot(segment, piece), dtype, ty: ty.clone() };
                    turn.insert((name.to_owned(), way), kept);
                }
            }
            weights.turns.push(turn);
        }
        Ok(weights)
    }

    /// Where a piece lies that takes turns; such are kept in one way only.
    fn slot(&self, segment: &Segment, piece: &Piece) -> Ptr {
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
        for piece in &segment.pieces {
            // SAFETY: the slot has room for the piece, which is kept in one way only, and no step that reads it runs now.
            unsafe { fill(cpu, graph, &piece.weight, source, &[self.slot(segment, piece)])? };
        }
        Ok(())
    }

    pub(super) fn bytes(&self) -> u64 {
        self.memory.iter().chain(&self.slots).map(Memory::bytes).sum()
    }

    /// Whether everything that a plan needs is here.
    pub(super) fn check(&self, cpu: &Cpu, graph: &Graph, plan: &Plan) -> Result<(), BackendError> {
        if self.turns.len() != plan.stream().map_or(0, |stream| stream.segments().len()) {
            let reason = "these weights are packed for another plan".into();
            return Err(BackendError::Unsupported { device: "cpu".into(), reason });
        }
        let fits = (self.number, self.matrix) == (cpu.number(), cpu.kernel().is_matrix());
        for w in plan.resident() {
            let (name, ty) = (param_name(graph, w.value), graph.ty(w.value));
            let problem = |problem: &str| Err(BackendError::Param { name: name.into(), problem: problem.into() });
            for (way, ..) in ways(cpu, graph, w.value, w.used) {
                match self.kept.get(&(name.to_owned(), way)) {
                    Some(kept) if kept.ty == *ty && (!way.is_packed() || fits) => {}
                    Some(_) => return problem("is packed for another shape, precision or instruction path"),
                    None => return problem("is not packed for this use"),
                }
            }
        }
        Ok(())
    }

    /// Where a parameter lies in a segment; [`CpuWeights::check`] has found it.
    pub(super) fn find(&self, segment: usize, name: &str, way: Way) -> Src {
        let key = (name.to_owned(), way);
        let turn = self.turns.get(segment).and_then(|turn| turn.get(&key));
        let kept = turn.unwrap_or_else(|| &self.kept[&key]);
        Src { ptr: kept.ptr.get(), dtype: kept.dtype }
    }
}

/// Pack the weights of a product, a panel at a time on whichever thread is free.
fn pack_product(cpu: &Cpu, given: &ParamBytes, ty: &TensorType, gated: bool, room: Ptr) {
    let (n, k) = product_shape(ty);
    let window = [2, 3].map(|axis| ty.shape.get(axis).copied().unwrap_or(1));
    let (taps, number) = (window[0] * window[1], cpu.number());
    let order = Order::new(&cpu.kernel(), window, ty.shape[1]);
    // One row of the file for each thread, kept from panel to panel.
    let buffers: Vec<Mutex<Vec<f32>>> = (0..cpu.threads()).map(|_| Mutex::new(vec![0.0; k])).collect();
    cpu.pool().each(pack::columns(n, gated).div_ceil(PANEL), &|thread, panel| {
        let mut row = buffers[thread].lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let columns = pack::columns_of_panel(panel, n, gated);
        // SAFETY: each task writes its own panel, and the memory was made for all of them.
        unsafe {
            let to = room.add(panel * pack::panel_bytes(k, number));
            for (column, from) in columns.clone().enumerate() {
                dequantise(given, from * k, &mut row);
                for (segment, (tap, first)) in order.segments().enumerate() {
                    // The file has (channel, tap).
                    let values = (first..first + order.block).map(|c| row[c * taps + tap]);
                    pack::write_column(to, number, column, segment * order.block, values);
                }
            }
            pack::zero_padding(to, number, columns.len(), k);
        }
    });
}

/// A parameter in this element type.
///
/// # Safety
/// There is room for it, and nobody else uses that.
unsafe fn copy_plain(given: &ParamBytes, dtype: DType, ty: &TensorType, to: Ptr) {
    let n = ty.elements() as usize;
    let to = to.get();
    // SAFETY: the caller's.
    unsafe {
        if given.storage == Storage::Dense(dtype) {
            to.copy_from_nonoverlapping(given.bytes.as_ptr(), given.bytes.len());
        } else {
            match dtype {
                DType::F32 => dequantise(given, 0, std::slice::from_raw_parts_mut(to.cast(), n)),
                DType::F16 => convert(given, std::slice::from_raw_parts_mut(to.cast(), n), f16::from_f32),
                DType::BF16 => convert(given, std::slice::from_raw_parts_mut(to.cast(), n), bf16::from_f32),
                DType::I32 => unreachable!("integers are stored as integers"),
            }
        }
    }
}
