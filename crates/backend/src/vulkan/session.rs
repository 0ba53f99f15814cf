//! A plan with its memory: each step as runs of kernels, written down once and replayed.

use impasto_graph::{DType, Graph, HostTensor, Op, Place, Plan, Segment, Span, Stream, TensorType, Value};
use impasto_kernel::{Kernel, KernelError};
use impasto_vulkan::Part;

use super::lists::Lists;
use super::memory::Memory;
use super::weights::{VulkanWeights, Way};
use super::{Vulkan, attention, elementwise, linear, lookup, movement, norm};
use crate::stored::param_name;
use crate::stream::{self, segment_of};
use crate::{BackendError, Profile, Session, SharedSource, StepTime, Streaming, Weights, io};

/// One run of a kernel. It reads its buffers and writes the last of them.
pub(super) struct Run {
    pub(super) kernel: Kernel,
    pub(super) parts: Vec<Part>,
    pub(super) groups: [u32; 3],
}

/// The runs of a step.
pub(super) type Runs = Result<Vec<Run>, KernelError>;

/// What a step does.
pub(super) enum Work {
    Runs(Vec<Run>),
    Copy { from: Part, to: Part },
}

/// What preparing a step may look at.
#[derive(Clone, Copy)]
pub(super) struct Env<'a> {
    pub(super) vulkan: &'a Vulkan,
    pub(super) graph: &'a Graph,
    plan: &'a Plan,
    weights: &'a VulkanWeights,
    arena: &'a Memory,
    /// Where values rest.
    host: &'a Memory,
    /// The step's scratch memory.
    scratch: Option<Span>,
    /// The step's segment, where weights take turns.
    segment: usize,
}

impl Env<'_> {
    /// Where a value lies.
    pub(super) fn part(&self, value: Value) -> Part {
        match self.plan.place(value) {
            Place::Arena(span) => self.arena.part(span.offset, span.bytes),
            Place::Host(span) => self.host.part(span.offset, span.bytes),
            Place::Weight(param) => self.weights.find(self.segment, param_name(self.graph, param), Way::Tensor).0,
            Place::Nowhere => unreachable!("an operand of a step has a place"),
        }
    }

    /// Where a table lies, and as what.
    pub(super) fn table(&self, value: Value) -> (Part, DType) {
        match self.plan.place(value) {
            Place::Weight(param) => self.weights.find(self.segment, param_name(self.graph, param), Way::Table),
            _ => (self.part(value), self.graph.ty(value).dtype),
        }
    }

    /// Where the packed weights of a product lie, and as what.
    pub(super) fn packed(&self, param: Value) -> (Part, DType) {
        self.weights.find(self.segment, param_name(self.graph, param), Way::Weights)
    }

    /// A part of the step's scratch memory.
    pub(super) fn scratch(&self, offset: u64, bytes: u64) -> Part {
        let span = self.scratch.unwrap_or(Span { offset: 0, bytes: 0 });
        self.arena.part(span.offset + offset, bytes)
    }

    pub(super) fn ty(&self, value: Value) -> &TensorType {
        self.graph.ty(value)
    }

    pub(super) fn operand(&self, value: Value, i: usize) -> Value {
        self.graph.node(value).inputs[i]
    }

    /// One kernel that reads all operands and writes the result.
    pub(super) fn run(&self, value: Value, kernel: Kernel, groups: [u32; 3]) -> Vec<Run> {
        let operands = self.graph.node(value).inputs.iter().copied();
        let parts = operands.chain([value]).map(|v| self.part(v)).collect();
        vec![Run { kernel, parts, groups }]
    }

    fn prepare(&self, value: Value) -> Result<Work, KernelError> {
        if self.graph.node(value).op.is_copy() {
            return Ok(Work::Copy { from: self.part(self.operand(value, 0)), to: self.part(value) });
        }
        self.runs(value).map(Work::Runs)
    }

    fn runs(&self, value: Value) -> Runs {
        match &self.graph.node(value).op {
            Op::Linear { .. } | Op::MatMul { .. } | Op::Conv2d { .. } => linear::prepare(self, value),
            Op::Attention { .. } => attention::prepare(self, value),
            Op::GroupNorm { .. } => norm::group_norm(self, value),
            Op::LineStatistics { .. } => norm::line_statistics(self, value),
            Op::NormFactors { .. } => norm::factors(self, value),
            Op::Normalise { .. } => norm::normalise(self, value),
            Op::LayerNorm { .. } | Op::RmsNorm { .. } | Op::Softmax => norm::by_row(self, value),
            Op::Cast | Op::Unary(_) | Op::Affine { .. } | Op::Binary(_) => elementwise::copy(self, value),
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
            Op::Rest | Op::Fetch => unreachable!("copies are no kernels"),
            Op::Input { .. } | Op::Param { .. } => unreachable!("sources are not executed"),
        }
    }
}

pub(super) struct VulkanSession {
    vulkan: Vulkan,
    arena: Memory,
    host: Memory,
    lists: Lists,
    times: Vec<StepTime>,
    inputs: Vec<(String, TensorType)>,
    outputs: Vec<(String, TensorType)>,
    /// Addresses in the arena; inputs that nobody needs have none.
    input_places: Vec<Option<u64>>,
    output_places: Vec<Output>,
    weights: Weights,
    turns: Option<Turns>,
}

/// Weights that take turns.
struct Turns {
    feed: SharedSource,
    stream: Stream,
    graph: Graph,
    last: Streaming,
}

/// Where an output lies.
enum Output {
    Arena(u64),
    /// It rests.
    Host(u64),
    /// It is a parameter.
    Weight(Part),
}

impl VulkanSession {
    pub(super) fn new(
        vulkan: &Vulkan,
        graph: &Graph,
        plan: &Plan,
        weights: &Weights,
    ) -> Result<VulkanSession, BackendError> {
        let packed = weights
            .inner
            .downcast_ref::<VulkanWeights>()
            .ok_or_else(|| vulkan.unsupported("these weights are on another device"))?;
        packed.check(vulkan, graph, plan)?;
        let arena = Memory::new(vulkan, plan.blocks().map(|block| block.bytes))?;
        let host = Memory::aside(vulkan, plan.host_blocks().map(|block| block.bytes))?;
        let env = Env { vulkan, graph, plan, weights: packed, arena: &arena, host: &host, scratch: None, segment: 0 };
        let mut steps: Vec<(Value, Work)> = vec![];
        let order: Vec<Value> = plan.steps().iter().map(|step| step.value).collect();
        while let Some(step) = plan.steps().get(steps.len()) {
            let segment = segment_of(plan, steps.len());
            let env = Env { segment, ..env };
            // A chain ends where weights change.
            let end = plan.stream().map_or(order.len(), |stream| stream.segments()[segment].steps.end);
            let at = |e: KernelError| vulkan.unsupported(format!("{}: {e}", graph.label(step.value)));
            let rest = &order[steps.len()..end];
            let work = match elementwise::chained(&env, rest) {
                0 => Env { scratch: step.scratch, ..env }.prepare(step.value),
                count => {
                    // The last step of a chain does the work of all.
                    steps.extend(rest[..count - 1].iter().map(|&value| (value, Work::Runs(vec![]))));
                    elementwise::chain(&env, &rest[..count]).map(Work::Runs)
                }
            };
            steps.push((order[steps.len()], work.map_err(at)?));
        }
        let times = steps
            .iter()
            .map(|&(value, _)| StepTime {
                label: graph.label(value).into(),
                op: graph.node(value).op.name(),
                seconds: 0.0,
                flops: graph.node(value).op.flops(&graph.operand_types(value), graph.ty(value)),
            })
            .collect::<Vec<_>>();
        let segments = plan.stream().map_or(&[][..], |stream| stream.segments());
        let cuts: Vec<usize> = segments.iter().map(|segment| segment.steps.start).collect();
        let lists = Lists::new(vulkan, steps.into_iter().map(|(_, work)| work).collect(), &times, &cuts)?;
        let turns = match plan.stream() {
            Some(stream) => {
                let feed = weights.feed(vulkan.name())?;
                Some(Turns { feed, stream: stream.clone(), graph: graph.clone(), last: Streaming::default() })
            }
            None => None,
        };

        let address = |value: Value| match plan.place(value) {
            Place::Arena(span) => Some(span.offset),
            _ => None,
        };
        let output = |value: Value| match plan.place(value) {
            Place::Arena(span) => Output::Arena(span.offset),
            Place::Host(span) => Output::Host(span.offset),
            _ => Output::Weight(env.part(value)),
        };
        let input_places = graph.inputs().map(|(_, value)| address(value)).collect();
        let output_places = graph.outputs().iter().map(|o| output(o.value)).collect();
        let inputs = graph.inputs().map(|(name, value)| (name.to_owned(), graph.ty(value).clone())).collect();
        let outputs = graph.outputs().iter().map(|o| (o.name.clone(), graph.ty(o.value).clone())).collect();
        Ok(VulkanSession {
            vulkan: vulkan.clone(),
            lists,
            times,
            inputs,
            outputs,
            input_places,
            output_places,
            arena,
            host,
            weights: weights.clone(),
            turns,
        })
    }

    /// Runs everything; where weights take turns, segment by segment.
    fn run_segments(&mut self) -> Result<(), BackendError> {
        let (vulkan, lists) = (&self.vulkan, &mut self.lists);
        let Some(turns) = &mut self.turns else { return lists.run(vulkan, 0) };
        let packed = self.weights.inner.downcast_ref::<VulkanWeights>();
        let packed = packed.ok_or_else(|| vulkan.unsupported("these weights are on another device"))?;
        let bring = |segment: &Segment| packed.bring(vulkan, &turns.graph, segment, &*turns.feed);
        let mut compute = |segment: usize| lists.run(vulkan, segment);
        turns.last = stream::run(turns.stream.segments(), turns.stream.slots(), &bring, &mut compute)?;
        Ok(())
    }

    fn upload(&self, given: &[(&str, &HostTensor)]) -> Result<(), BackendError> {
        io::inputs(&self.inputs, given, |i, tensor| match self.input_places[i] {
            Some(address) => self.arena.write(address, &io::bytes(tensor.data())),
            None => Ok(()),
        })?;
        self.arena.settle()
    }

    fn download(&self, outputs: &mut [HostTensor]) -> Result<(), BackendError> {
        io::outputs(&self.outputs, outputs, |i, out| {
            let mut read = vec![0; out.ty().bytes() as usize];
            match &self.output_places[i] {
                Output::Arena(address) => self.arena.read(*address, &mut read)?,
                Output::Host(address) => self.host.read(*address, &mut read)?,
                Output::Weight(part) => self.arena.read_part(part, &mut read)?,
            }
            io::fill(out.data_mut(), &read);
            #[cfg(feature = "faults")]
            if let (true, impasto_graph::Data::F32(numbers)) = (impasto_faults::nan(self.vulkan.name()), out.data_mut())
            {
                numbers[0] = f32::NAN;
            }
            Ok(())
        })
    }
}

impl Session for VulkanSession {
    fn inputs(&self) -> &[(String, TensorType)] {
        &self.inputs
    }

    fn outputs(&self) -> &[(String, TensorType)] {
        &self.outputs
    }

    fn run(&mut self, inputs: &[(&str, &HostTensor)], outputs: &mut [HostTensor]) -> Result<(), BackendError> {
        io::check_room(&self.outputs, outputs)?;
        self.upload(inputs)?;
        self.run_segments()?;
        self.lists.note(&self.vulkan, &mut self.times)?;
        self.download(outputs)
    }

    fn streaming(&self) -> Option<Streaming> {
        self.turns.as_ref().map(|turns| turns.last)
    }

    fn allocated_bytes(&self) -> u64 {
        self.arena.bytes()
    }

    fn host_bytes(&self) -> u64 {
        self.host.bytes()
    }

    fn profile(&self) -> Vec<StepTime> {
        self.times.clone()
    }
}
