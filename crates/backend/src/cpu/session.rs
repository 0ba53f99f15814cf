//! A plan with its memory: each step prepared as a closure over resolved addresses, run in order.

use std::time::Instant;

use impasto_graph::{DType, Data, Graph, HostTensor, Op, Place, Plan, Segment, Span, Stream, TensorType, Value};

use super::memory::Memory;
use super::pool::Pool;
use super::rows::{Dst, Src};
use super::weights::{CpuWeights, Way};
use super::{Cpu, attention, conv, elementwise, linear, lookup, movement, norm};
use crate::stored::param_name;
use crate::stream::{self, segment_of};
use crate::{BackendError, Session, SharedSource, StepTime, Streaming, io};

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
    weights: &'a CpuWeights,
    arena: &'a Memory,
    /// The step's scratch memory.
    scratch: Option<Span>,
    /// The step's segment, where weights take turns.
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
            Place::Arena(span) => {
                Src { ptr: self.arena_ptr(span.offset, span.bytes), dtype: self.graph.ty(value).dtype }
            }
            Place::Weight(param) => self.weights.find(self.segment, param_name(self.graph, param), Way::Tensor),
            Place::Host(_) | Place::Nowhere => unreachable!("an operand of a step has a place here"),
        }
    }

    /// Where a step writes its result.
    pub(super) fn dst(&self, value: Value) -> Dst {
        match self.plan.place(value) {
            Place::Arena(span) => {
                Dst { ptr: self.arena_ptr(span.offset, span.bytes), dtype: self.graph.ty(value).dtype }
            }
            _ => unreachable!("a step writes into the arena"),
        }
    }

    /// Where the rows of a table can be read.
    pub(super) fn table(&self, value: Value) -> Src {
        match self.plan.place(value) {
            Place::Weight(param) => self.weights.find(self.segment, param_name(self.graph, param), Way::Table),
            _ => self.src(value),
        }
    }

    /// The packed panels of a parameter, with gates among them or without.
    pub(super) fn panels(&self, param: Value, gated: bool) -> *const u8 {
        let way = if gated { Way::GatedPanels } else { Way::Panels };
        self.weights.find(self.segment, param_name(self.graph, param), way).ptr
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

    fn prepare(&self, value: Value) -> Run {
        match &self.graph.node(value).op {
            Op::Linear { .. } => linear::prepare(self, value),
            Op::MatMul { .. } => linear::matmul::prepare(self, value),
            Op::Conv2d { .. } => conv::prepare(self, value),
            Op::Attention { .. } => attention::prepare(self, value),
            Op::GroupNorm { .. } => norm::group_norm(self, value),
            Op::LineStatistics { .. } => norm::line_statistics(self, value),
            Op::NormFactors { .. } => norm::factors(self, value),
            Op::Normalise { .. } => norm::normalise(self, value),
            Op::LayerNorm { .. } | Op::RmsNorm { .. } | Op::Softmax => norm::by_row(self, value),
            Op::Unary(_) | Op::Affine { .. } | Op::Cast => elementwise::map(self, value),
            Op::Binary(_) => elementwise::binary(self, value),
            Op::Geglu => elementwise::geglu(self, value),
            Op::Upsample { .. }
            | Op::Pad { .. }
            | Op::Concat { .. }
            | Op::Slice { .. }
            | Op::Reshape { .. }
            | Op::Permute { .. } => movement::prepare(self, value),
            Op::Embedding => lookup::embedding(self, value),
            Op::TimestepEmbedding { .. } => lookup::timestep(self, value),
            Op::Rotary { .. } => lookup::rotary(self, value),
            Op::Rest | Op::Fetch => unreachable!("they are not supported"),
            Op::Input { .. } | Op::Param { .. } => unreachable!("sources are not executed"),
        }
    }
}

struct Prepared {
    run: Run,
    time: StepTime,
    /// Its result, if that has numbers that can be none.
    #[cfg(feature = "faults")]
    result: Dst,
}

pub(super) struct CpuSession {
    cpu: Cpu,
    steps: Vec<Prepared>,
    inputs: Vec<(String, TensorType)>,
    outputs: Vec<(String, TensorType)>,
    input_places: Vec<Option<Dst>>,
    output_places: Vec<Src>,
    arena: Memory,
    /// Keeps the memory alive that the steps point into.
    weights: crate::Weights,
    turns: Option<Turns>,
}

/// Weights that take turns.
struct Turns {
    feed: SharedSource,
    stream: Stream,
    graph: Graph,
    last: Streaming,
}

// SAFETY: the pointers inside lead into the arena and the weights, which the session owns or keeps alive.
unsafe impl Send for CpuSession {}

impl CpuSession {
    pub(super) fn new(cpu: &Cpu, graph: &Graph, plan: &Plan, weights: &crate::Weights) -> Result<Self, BackendError> {
        let packed = weights.inner.downcast_ref::<CpuWeights>().ok_or_else(|| BackendError::Unsupported {
            device: "cpu".into(),
            reason: "these weights are on another device".into(),
        })?;
        packed.check(cpu, graph, plan)?;
        let arena = cpu.memory(plan.arena_bytes())?;
        let env = Env { cpu, graph, plan, weights: packed, arena: &arena, scratch: None, segment: 0 };
        let steps = plan
            .steps()
            .iter()
            .enumerate()
            .map(|(i, s)| Prepared {
                #[cfg(feature = "faults")]
                result: env.dst(s.value),
                run: Env { scratch: s.scratch, segment: segment_of(plan, i), ..env }.prepare(s.value),
                time: StepTime {
                    label: graph.label(s.value).into(),
                    op: graph.node(s.value).op.name(),
                    seconds: 0.0,
                    flops: graph.node(s.value).op.flops(&graph.operand_types(s.value), graph.ty(s.value)),
                },
            })
            .collect();
        let inputs: Vec<_> = graph.inputs().collect();
        let input_places =
            inputs.iter().map(|&(_, v)| matches!(plan.place(v), Place::Arena(_)).then(|| env.dst(v))).collect();
        let output_places = graph.outputs().iter().map(|o| env.src(o.value)).collect();
        let inputs = inputs.into_iter().map(|(name, v)| (name.to_string(), graph.ty(v).clone())).collect();
        let outputs = graph.outputs().iter().map(|o| (o.name.clone(), graph.ty(o.value).clone())).collect();
        let turns = match plan.stream() {
            Some(stream) => {
                let (feed, stream, graph) = (weights.feed("cpu")?, stream.clone(), graph.clone());
                Some(Turns { feed, stream, graph, last: Streaming::default() })
            }
            None => None,
        };
        Ok(CpuSession {
            cpu: cpu.clone(),
            steps,
            inputs,
            outputs,
            input_places,
            output_places,
            arena,
            weights: weights.clone(),
            turns,
        })
    }

    /// Runs everything; where weights take turns, segment by segment.
    fn run_segments(&mut self) -> Result<(), BackendError> {
        let (cpu, steps) = (&self.cpu, &mut self.steps);
        let Some(turns) = &mut self.turns else {
            run_all(cpu, steps);
            return Ok(());
        };
        let Some(packed) = self.weights.inner.downcast_ref::<CpuWeights>() else {
            let reason = "these weights are on another device".into();
            return Err(BackendError::Unsupported { device: "cpu".into(), reason });
        };
        let bring = |segment: &Segment| packed.bring(cpu, &turns.graph, segment, &*turns.feed);
        let segments = turns.stream.segments();
        let mut compute = |segment: usize| {
            run_all(cpu, &mut steps[segments[segment].steps.clone()]);
            Ok(())
        };
        turns.last = stream::run(segments, turns.stream.slots(), &bring, &mut compute)?;
        Ok(())
    }

    fn upload(&self, given: &[(&str, &HostTensor)]) -> Result<(), BackendError> {
        io::inputs(&self.inputs, given, |i, tensor| {
            if let Some(place) = self.input_places[i] {
                // SAFETY: the place has the bytes of this type, and the tensor has the same type.
                unsafe { place.ptr.copy_from_nonoverlapping(data_ptr(tensor.data()), tensor.ty().bytes() as usize) };
            }
            Ok(())
        })
    }

    fn download(&self, outputs: &mut [HostTensor]) -> Result<(), BackendError> {
        io::outputs(&self.outputs, outputs, |i, out| {
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
        &self.inputs
    }

    fn outputs(&self) -> &[(String, TensorType)] {
        &self.outputs
    }

    fn run(&mut self, inputs: &[(&str, &HostTensor)], outputs: &mut [HostTensor]) -> Result<(), BackendError> {
        io::check_room(&self.outputs, outputs)?;
        #[cfg(feature = "faults")]
        if impasto_faults::submit("cpu") {
            return Err(BackendError::Lost { device: "cpu".into(), reason: "on purpose".into() });
        }
        self.upload(inputs)?;
        self.run_segments()?;
        self.download(outputs)
    }

    fn streaming(&self) -> Option<Streaming> {
        self.turns.as_ref().map(|turns| turns.last)
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
