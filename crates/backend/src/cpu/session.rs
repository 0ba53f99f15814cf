//! A plan with its memory: each step prepared as a closure over resolved addresses, run in order.

use std::time::Instant;

use impasto_graph::{DType, Data, Graph, HostTensor, Location, Plan, Span, Step, TensorType, Value};

use super::blocks::BlockRows;
use super::lookup::Table;
use super::memory::CpuMemory;
use super::pool::Pool;
use super::rows::{Dst, Src};
use super::weights::{CpuLayout, CpuSessionWeights, CpuWeights};
use super::{Cpu, attention, conv, elementwise, linear, lookup, movement, norm};
use crate::session::{PrepareOps, Signature, StreamState, step_times};
use crate::stored::{kept_blocks, param_name};
use crate::stream::segment_of;
use crate::{BackendError, Session, StepTime, Streaming, io};

/// A step, ready to run.
pub(super) type Run = Box<dyn Fn(&Pool) + Send + Sync>;

/// A pointer into tensor memory that may go to other threads.
#[derive(Clone, Copy)]
pub(super) struct Ptr(*mut u8);

// SAFETY: the plan says which bytes a step may touch, the partition of the work which of these a thread may.
unsafe impl Send for Ptr {}
// SAFETY: as above.
unsafe impl Sync for Ptr {}

impl Ptr {
    pub(super) fn new(ptr: *mut u8) -> Ptr {
        Ptr(ptr)
    }

    /// # Safety
    /// The result lies in the same piece of memory.
    pub(super) unsafe fn add(self, bytes: usize) -> *mut u8 {
        // SAFETY: the caller's.
        unsafe { self.0.add(bytes) }
    }

    pub(super) fn get(self) -> *mut u8 {
        self.0
    }
}

/// What preparing a step may look at.
#[derive(Clone, Copy)]
pub(super) struct Env<'a> {
    pub(super) cpu: &'a Cpu,
    pub(super) graph: &'a Graph,
    plan: &'a Plan,
    weights: CpuSessionWeights<'a>,
    arena: &'a CpuMemory,
    /// The step's scratch memory.
    scratch: Option<Span>,
    /// The step's segment, where weights are streamed.
    segment: usize,
}

impl Env<'_> {
    fn arena_ptr(&self, offset: u64, bytes: u64) -> *mut u8 {
        assert!(offset + bytes <= self.arena.bytes(), "the plan stays inside its arena");
        // SAFETY: just checked.
        unsafe { self.arena.ptr().add(offset as usize) }
    }

    /// Where a value can be read.
    pub(super) fn src(&self, value: Value) -> Src {
        match self.plan.place(value) {
            Location::Arena(span) => {
                Src { ptr: self.arena_ptr(span.offset, span.bytes), dtype: self.graph.ty(value).dtype }
            }
            Location::Weight(param) => self.weight(param, CpuLayout::Tensor),
            Location::Host(_) | Location::Nowhere => unreachable!("an operand of a step has a place here"),
        }
    }

    /// Where a step writes its result.
    pub(super) fn dst(&self, value: Value) -> Dst {
        match self.plan.place(value) {
            Location::Arena(span) => {
                Dst { ptr: self.arena_ptr(span.offset, span.bytes), dtype: self.graph.ty(value).dtype }
            }
            _ => unreachable!("a step writes into the arena"),
        }
    }

    /// Where the rows of a table can be read.
    pub(super) fn table(&self, value: Value) -> Table {
        match self.plan.place(value) {
            Location::Weight(param) => match kept_blocks(self.graph, param) {
                Some(storage) => Table::Blocks(BlockRows::new(self, param, storage)),
                None => Table::Dense(self.weight(param, CpuLayout::Table)),
            },
            _ => Table::Dense(self.src(value)),
        }
    }

    /// The packed panels of a parameter, with gates among them or without.
    pub(super) fn panels(&self, param: Value, gated: bool) -> *const u8 {
        self.weight(param, if gated { CpuLayout::GatedPanels } else { CpuLayout::Panels }).ptr
    }

    /// A parameter in one of its layouts.
    pub(super) fn weight(&self, param: Value, layout: CpuLayout) -> Src {
        self.weights.find(self.segment, param_name(self.graph, param), layout)
    }

    /// The scratch memory of a step.
    pub(super) fn scratch(&self) -> Ptr {
        match self.scratch {
            Some(span) => Ptr(self.arena_ptr(span.offset, span.bytes)),
            None => Ptr(std::ptr::NonNull::dangling().as_ptr()),
        }
    }

    pub(super) fn operand(&self, value: Value, i: usize) -> Src {
        self.src(self.graph.node(value).inputs[i])
    }

    pub(super) fn operand_type(&self, value: Value, i: usize) -> &TensorType {
        self.graph.ty(self.graph.node(value).inputs[i])
    }
}

impl PrepareOps for Env<'_> {
    type Step = Run;

    fn graph(&self) -> &Graph {
        self.graph
    }

    fn linear(&self, value: Value) -> Run {
        linear::prepare(self, value)
    }

    fn matmul(&self, value: Value) -> Run {
        linear::matmul::prepare(self, value)
    }

    fn conv(&self, value: Value) -> Run {
        conv::prepare(self, value)
    }

    fn attention(&self, value: Value) -> Run {
        attention::prepare(self, value)
    }

    fn group_norm(&self, value: Value) -> Run {
        norm::group_norm(self, value)
    }

    fn line_statistics(&self, value: Value) -> Run {
        norm::line_statistics(self, value)
    }

    fn norm_factors(&self, value: Value) -> Run {
        norm::factors(self, value)
    }

    fn normalise(&self, value: Value) -> Run {
        norm::normalise(self, value)
    }

    fn by_row(&self, value: Value) -> Run {
        norm::by_row(self, value)
    }

    fn map(&self, value: Value) -> Run {
        elementwise::map(self, value)
    }

    fn binary(&self, value: Value) -> Run {
        elementwise::binary(self, value)
    }

    fn geglu(&self, value: Value) -> Run {
        elementwise::geglu(self, value)
    }

    fn movement(&self, value: Value) -> Run {
        movement::prepare(self, value)
    }

    fn embedding(&self, value: Value) -> Run {
        lookup::embedding(self, value)
    }

    fn timestep(&self, value: Value) -> Run {
        lookup::timestep(self, value)
    }

    fn rotary(&self, value: Value) -> Run {
        lookup::rotary(self, value)
    }

    fn rest(&self, _: Value) -> Run {
        unreachable!("the CPU says that it does not support it")
    }
}

struct Prepared {
    run: Run,
    time: StepTime,
    /// Its result, where a fault puts NaN.
    #[cfg(feature = "faults")]
    result: Dst,
}

pub(super) struct CpuSession {
    cpu: Cpu,
    steps: Vec<Prepared>,
    signature: Signature,
    input_places: Vec<Option<Dst>>,
    output_places: Vec<Src>,
    arena: CpuMemory,
    /// Keeps the memory alive that the steps point into.
    weights: crate::Weights,
    stream: Option<StreamState>,
}

// SAFETY: the pointers inside lead into the arena and the weights, which the session owns or keeps alive.
unsafe impl Send for CpuSession {}

impl CpuSession {
    pub(super) fn new(cpu: &Cpu, graph: &Graph, plan: &Plan, weights: &crate::Weights) -> Result<Self, BackendError> {
        let packed = CpuSessionWeights::new(cpu, graph, plan, weights)?;
        let arena = cpu.memory(plan.arena_bytes())?;
        let env = Env { cpu, graph, plan, weights: packed, arena: &arena, scratch: None, segment: 0 };
        let prepared = |(i, (step, time)): (usize, (&Step, StepTime))| Prepared {
            #[cfg(feature = "faults")]
            result: env.dst(step.value),
            run: Env { scratch: step.scratch, segment: segment_of(plan, i), ..env }.prepare(step.value),
            time,
        };
        let steps = plan.steps().iter().zip(step_times(graph, plan)).enumerate().map(prepared).collect();
        let input_place = |(_, v): (&str, Value)| matches!(plan.place(v), Location::Arena(_)).then(|| env.dst(v));
        Ok(CpuSession {
            cpu: cpu.clone(),
            steps,
            signature: Signature::of(graph),
            input_places: graph.inputs().map(input_place).collect(),
            output_places: graph.outputs().iter().map(|o| env.src(o.value)).collect(),
            arena,
            weights: weights.clone(),
            stream: StreamState::new("cpu", graph, plan, weights)?,
        })
    }

    /// Runs everything; where weights are streamed, segment by segment.
    fn run_segments(&mut self) -> Result<(), BackendError> {
        let (cpu, steps) = (&self.cpu, &mut self.steps);
        let Some(stream) = &mut self.stream else {
            run_all(cpu, steps);
            return Ok(());
        };
        let packed: &CpuWeights = self.weights.of("cpu")?;
        stream.run(
            |graph, segment, source| packed.bring(cpu, graph, segment, source),
            |_, segment| {
                run_all(cpu, &mut steps[segment.steps.clone()]);
                Ok(())
            },
        )
    }

    fn upload(&self, given: &[(&str, &HostTensor)]) -> Result<(), BackendError> {
        io::inputs(&self.signature.inputs, given, |i, tensor| {
            if let Some(place) = self.input_places[i] {
                // SAFETY: the place has the bytes of this type, and the tensor has the same type.
                unsafe { place.ptr.copy_from_nonoverlapping(data_ptr(tensor.data()), tensor.ty().bytes() as usize) };
            }
            Ok(())
        })
    }

    fn download(&self, outputs: &mut [HostTensor]) -> Result<(), BackendError> {
        io::outputs(&self.signature.outputs, outputs, |i, out| {
            let bytes = out.ty().bytes() as usize;
            let to: *mut u8 = match out.data_mut() {
                Data::F32(v) => v.as_mut_ptr().cast(),
                Data::F16(v) => v.as_mut_ptr().cast(),
                Data::BF16(v) => v.as_mut_ptr().cast(),
                Data::I32(v) => v.as_mut_ptr().cast(),
            };
            // SAFETY: both hold the bytes of this type.
            unsafe { to.copy_from_nonoverlapping(self.output_places[i].ptr, bytes) };
            Ok(())
        })
    }
}

fn run_all(cpu: &Cpu, steps: &mut [Prepared]) {
    for step in steps {
        let start = Instant::now();
        (step.run)(cpu.pool());
        #[cfg(feature = "faults")]
        if impasto_faults::nan("cpu") {
            let Dst { ptr, dtype } = step.result;
            // SAFETY: the result has at least one element, and nobody computes now.
            unsafe {
                match dtype {
                    DType::F32 => ptr.cast::<f32>().write(f32::NAN),
                    DType::F16 => ptr.cast::<half::f16>().write(half::f16::NAN),
                    DType::BF16 => ptr.cast::<half::bf16>().write(half::bf16::NAN),
                    DType::I32 => {}
                }
            }
        }
        step.time.seconds = start.elapsed().as_secs_f64();
    }
}

fn data_ptr(data: &Data) -> *const u8 {
    match data {
        Data::F32(v) => v.as_ptr().cast(),
        Data::F16(v) => v.as_ptr().cast(),
        Data::BF16(v) => v.as_ptr().cast(),
        Data::I32(v) => v.as_ptr().cast(),
    }
}

impl Session for CpuSession {
    fn inputs(&self) -> &[(String, TensorType)] {
        &self.signature.inputs
    }

    fn outputs(&self) -> &[(String, TensorType)] {
        &self.signature.outputs
    }

    fn run(&mut self, inputs: &[(&str, &HostTensor)], outputs: &mut [HostTensor]) -> Result<(), BackendError> {
        io::check_room(&self.signature.outputs, outputs)?;
        #[cfg(feature = "faults")]
        if impasto_faults::submit("cpu") {
            return Err(BackendError::Lost { device: "cpu".into(), reason: "on purpose".into() });
        }
        self.upload(inputs)?;
        self.run_segments()?;
        self.download(outputs)
    }

    fn streaming(&self) -> Option<Streaming> {
        self.stream.as_ref().map(StreamState::last)
    }

    fn allocated_bytes(&self) -> u64 {
        self.arena.bytes()
    }

    fn profile(&self) -> Vec<StepTime> {
        self.steps.iter().map(|s| s.time.clone()).collect()
    }
}

/// Bytes of an element.
pub(super) fn size(dtype: DType) -> usize {
    dtype.bytes() as usize
}
