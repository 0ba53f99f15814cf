//! Parameters in the layouts that kernels read: weights of products as panels, tables as they are stored, everything else
//! in the element type of the graph.
//!
//! Each is read from the file once and kept once (again only if the model uses it in another way too).

use std::collections::HashMap;
use std::sync::Mutex;

use half::{bf16, f16};
use impasto_graph::{DType, Graph, Plan, Storage, TensorType, Used, Value};

use super::Cpu;
use super::gemm::{Number, PANEL, pack};
use super::memory::Memory;
use super::rows::Src;
use crate::shapes::product_shape;
use crate::stored::{convert, dequantise, param_name, read, storage};
use crate::{BackendError, ParamBytes, WeightSource};

/// The weights of products, as panels.
struct Packed {
    memory: Memory,
    number: Number,
    ty: TensorType,
}

/// A table or another parameter, row by row.
struct Plain {
    memory: Memory,
    dtype: DType,
    ty: TensorType,
}

#[derive(Default)]
pub(super) struct CpuWeights {
    packed: HashMap<String, Packed>,
    tables: HashMap<String, Plain>,
    plain: HashMap<String, Plain>,
}

/// Tables are large, and few of their rows are read: they stay as they are stored.
fn table_dtype(storage: Storage) -> DType {
    match storage {
        Storage::Dense(d) => d,
        _ => DType::F32,
    }
}

fn packed_bytes(cpu: &Cpu, ty: &TensorType) -> u64 {
    let (n, k) = product_shape(ty);
    pack::packed_bytes(n, k, cpu.number()) as u64
}

/// Bytes that a parameter takes, for the plan.
pub(super) fn param_bytes(cpu: &Cpu, graph: &Graph, param: Value, used: Used) -> u64 {
    let ty = graph.ty(param);
    let packed = if used.as_weights { packed_bytes(cpu, ty) } else { 0 };
    let table = if used.as_table { ty.elements() * table_dtype(storage(graph, param)).bytes() } else { 0 };
    let plain = if used.as_tensor { ty.bytes() } else { 0 };
    packed + table + plain
}

impl CpuWeights {
    pub(super) fn new(cpu: &Cpu, graph: &Graph, plan: &Plan, source: &dyn WeightSource) -> Result<Self, BackendError> {
        let mut weights = CpuWeights::default();
        for w in plan.weights() {
            let name = param_name(graph, w.value);
            let (ty, storage) = (graph.ty(w.value), storage(graph, w.value));
            let given = read(source, name, ty, storage)?;
            if w.used.as_weights {
                let memory = cpu.memory(packed_bytes(cpu, ty))?;
                pack_product(cpu, &given, ty, &memory);
                let packed = Packed { memory, number: cpu.number(), ty: ty.clone() };
                weights.packed.insert(name.into(), packed);
            }
            if w.used.as_table {
                weights.tables.insert(name.into(), copy_plain(cpu, &given, table_dtype(storage), ty)?);
            }
            if w.used.as_tensor {
                weights.plain.insert(name.into(), copy_plain(cpu, &given, ty.dtype, ty)?);
            }
            drop(given);
            source.release(name);
        }
        Ok(weights)
    }

    pub(super) fn bytes(&self) -> u64 {
        let packed: u64 = self.packed.values().map(|p| p.memory.bytes()).sum();
        packed + self.tables.values().chain(self.plain.values()).map(|p| p.memory.bytes()).sum::<u64>()
    }

    /// Whether everything that a plan needs is here.
    pub(super) fn check(&self, cpu: &Cpu, graph: &Graph, plan: &Plan) -> Result<(), BackendError> {
        for w in plan.weights() {
            let (name, ty) = (param_name(graph, w.value), graph.ty(w.value));
            let problem = |problem: &str| Err(BackendError::Param { name: name.into(), problem: problem.into() });
            if w.used.as_weights {
                match self.packed.get(name) {
                    Some(p) if p.ty == *ty && p.number == cpu.number() => {}
                    Some(_) => return problem("is packed for another shape or precision"),
                    None => return problem("is not packed as weights of a product"),
                }
            }
            for (needed, kept) in [(w.used.as_table, &self.tables), (w.used.as_tensor, &self.plain)] {
                match kept.get(name) {
                    _ if !needed => {}
                    Some(p) if p.ty == *ty => {}
                    Some(_) => return problem("is loaded in another shape"),
                    None => return problem("is not loaded"),
                }
            }
        }
        Ok(())
    }

    /// The panels of a product's weights; [`CpuWeights::check`] has found them.
    pub(super) fn panels(&self, name: &str) -> *const u8 {
        self.packed[name].memory.ptr()
    }

    /// The rows of a table; [`CpuWeights::check`] has found it.
    pub(super) fn table(&self, name: &str) -> Src {
        let table = &self.tables[name];
        Src { ptr: table.memory.ptr(), dtype: table.dtype }
    }

    /// A parameter as a tensor like any other; [`CpuWeights::check`] has found it.
    pub(super) fn plain(&self, name: &str) -> Src {
        let plain = &self.plain[name];
        Src { ptr: plain.memory.ptr(), dtype: plain.dtype }
    }
}

/// Pack the weights of a product, a panel at a time on whichever thread is free.
fn pack_product(cpu: &Cpu, given: &ParamBytes, ty: &TensorType, memory: &Memory) {
    let (n, k) = product_shape(ty);
    let (channels, taps) = (ty.shape[1], ty.shape[2..].iter().product::<usize>());
    let number = cpu.number();
    let room = super::session::Ptr::new(memory.ptr());
    // One row of the file for each thread, kept from panel to panel.
    let buffers: Vec<Mutex<Vec<f32>>> = (0..cpu.threads()).map(|_| Mutex::new(vec![0.0; k])).collect();
    cpu.pool().each(n.div_ceil(PANEL), &|thread, panel| {
        let mut row = buffers[thread].lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let columns = PANEL.min(n - panel * PANEL);
        // SAFETY: each task writes its own panel, and the memory was made for all of them.
        unsafe {
            let to = room.add(panel * pack::panel_bytes(k, number));
            for column in 0..columns {
                dequantise(given, (panel * PANEL + column) * k, &mut row);
                for tap in 0..taps {
                    // The file has (channel, tap), a convolution goes through (tap, channel).
                    let values = (0..channels).map(|c| row[c * taps + tap]);
                    pack::write_column(to, number, column, tap * channels, values);
                }
            }
            pack::zero_padding(to, number, columns, k);
        }
    });
}

/// A parameter in this element type.
fn copy_plain(cpu: &Cpu, given: &ParamBytes, dtype: DType, ty: &TensorType) -> Result<Plain, BackendError> {
    let memory = cpu.memory(ty.elements() * dtype.bytes())?;
    let n = ty.elements() as usize;
    // SAFETY: the memory has the bytes of the parameter in this type, and nobody else sees it yet.
    unsafe {
        if given.storage == Storage::Dense(dtype) {
            memory.ptr().copy_from_nonoverlapping(given.bytes.as_ptr(), given.bytes.len());
        } else {
            match dtype {
                DType::F32 => dequantise(given, 0, std::slice::from_raw_parts_mut(memory.ptr().cast(), n)),
                DType::F16 => convert(given, std::slice::from_raw_parts_mut(memory.ptr().cast(), n), f16::from_f32),
                DType::BF16 => convert(given, std::slice::from_raw_parts_mut(memory.ptr().cast(), n), bf16::from_f32),
                DType::I32 => unreachable!("integers are stored as integers"),
            }
        }
    }
    Ok(Plain { memory, dtype, ty: ty.clone() })
}
