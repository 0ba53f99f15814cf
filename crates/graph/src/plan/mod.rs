//! The plan of a graph on a device: order of execution, lifetimes, one arena.
//!
//! [`Plan::new`] reads like this: which values are needed and which are views (`lifetime`), in which order
//! (`order`), what lives when and what takes whose place (`lifetime`), where (`arena`), and is that true (`verify`).
//! A device says whether that is looked for ([`Capabilities::verifies_plans`]).
//! What does not fit so may still do with streamed weights (`stream`) or values that rest in host memory (`rest`).

mod arena;
mod check;
mod lifetime;
mod order;
mod rest;
mod stream;
mod verify;

use crate::Limits;
use serde::{Deserialize, Serialize};

use crate::error::PlanError;
use crate::graph::{Graph, Value};
use crate::op::Op;

use lifetime::{Analysis, Lifetimes};
pub use stream::{Segment, Stream, StreamedWeight};

/// All that planning needs to know of a backend.
pub trait Capabilities {
    /// What the device has and allows.
    fn limits(&self) -> Limits;

    /// Alignment of every tensor in the arena, a power of two.
    fn alignment(&self) -> u64;

    /// Whether the op that defines `value` can be executed, else why not.
    fn supports(&self, graph: &Graph, value: Value) -> Result<(), String>;

    /// Scratch memory that the op needs while it runs.
    fn scratch_bytes(&self, graph: &Graph, value: Value) -> u64;

    /// Whether the op may write its result over this operand, if nobody needs the operand afterwards. Asked only
    /// where both have the same number of bytes.
    fn may_overwrite(&self, graph: &Graph, value: Value, operand: usize) -> bool;

    /// Bytes of a parameter as the backend keeps it, whole and packed.
    fn param_bytes(&self, graph: &Graph, param: Value, used: Used) -> u64;

    /// Bytes that the backend takes once for the device, whatever runs there.
    fn fixed_bytes(&self) -> u64 {
        0
    }

    /// Bytes of host memory in which values may rest; none where host and device share theirs.
    fn host_memory(&self) -> u64 {
        0
    }

    /// Whether each plan is verified before it is given out; a wrong one is a [`PlanError::Fault`].
    fn verifies_plans(&self) -> bool {
        cfg!(debug_assertions)
    }
}

/// What a plan may do to fit, beside what costs nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct May {
    /// Weights are streamed to the device.
    pub stream: bool,
    /// Values that nobody needs for a while rest in host memory.
    pub rest: bool,
}

/// How a graph uses a parameter; a backend keeps it in a layout for each way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Used {
    /// As the weights of a linear layer or a convolution.
    pub as_weights: bool,
    /// As the weights of a linear layer that ends with GEGLU.
    pub as_gated: bool,
    /// As a table whose rows are looked up.
    pub as_table: bool,
    /// As a tensor like any other.
    pub as_tensor: bool,
}

impl Used {
    /// In how many ways.
    fn ways(&self) -> usize {
        let Used { as_weights, as_gated, as_table, as_tensor } = *self;
        [as_weights, as_gated, as_table, as_tensor].into_iter().filter(|way| *way).count()
    }
}

/// A device that can do everything and needs nothing: for tests and for a lower bound of memory.
#[derive(Clone, Copy, Debug)]
pub struct Anything;

impl Capabilities for Anything {
    fn limits(&self) -> Limits {
        Limits::UNLIMITED
    }

    fn alignment(&self) -> u64 {
        64
    }

    fn supports(&self, _: &Graph, _: Value) -> Result<(), String> {
        Ok(())
    }

    fn scratch_bytes(&self, _: &Graph, _: Value) -> u64 {
        0
    }

    fn may_overwrite(&self, graph: &Graph, value: Value, operand: usize) -> bool {
        let node = graph.node(value);
        match node.op {
            Op::Unary(_)
            | Op::Binary(_)
            | Op::Affine { .. }
            | Op::GroupNorm { .. }
            | Op::Normalise { .. }
            | Op::LayerNorm { .. } => operand == 0 || matches!(node.op, Op::Binary(_)),
            Op::Linear { fused, .. } | Op::Conv2d { fused, .. } => fused.residual && operand + 1 == node.inputs.len(),
            _ => false,
        }
    }

    fn param_bytes(&self, graph: &Graph, param: Value, _: Used) -> u64 {
        graph.ty(param).bytes()
    }
}

/// Bytes of the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Span {
    /// Where they begin.
    pub offset: u64,
    /// How many.
    pub bytes: u64,
}

/// Where a value lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Location {
    /// Nobody needs it.
    Nowhere,
    /// It is a parameter, or another name for one.
    Weight(Value),
    /// In the arena.
    Arena(Span),
    /// In the host's memory, where it rests.
    Host(Span),
}

/// One op to execute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// The value that it defines.
    pub value: Value,
    /// Its scratch memory, if it needs any.
    pub scratch: Option<Span>,
}

/// A parameter that the graph needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Weight {
    /// The parameter.
    pub value: Value,
    /// How the graph uses it.
    pub used: Used,
    /// Bytes as the backend keeps it.
    pub bytes: u64,
}

/// How a refusal counts what a graph needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// In the layout that it would have.
    Exact,
    /// In the least that any layout takes, where that is too much already: for searches, which lay out only what may fit.
    LowerBound,
}

/// Every byte that a run will need, and when.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    steps: Vec<Step>,
    places: Vec<Location>,
    weights: Vec<Weight>,
    arena_bytes: u64,
    host_bytes: u64,
    block_bytes: u64,
    lower_bound: u64,
    largest_binding: u64,
    stream: Option<Stream>,
}

impl Plan {
    /// Plan a graph for a device. Nothing is allocated on the device; what does not fit is refused.
    pub fn new(graph: &Graph, device: &dyn Capabilities) -> Result<Plan, PlanError> {
        Plan::made(graph, device, false, Need::Exact)
    }

    /// The same, and where the weights do not all fit beside the arena, they are streamed to the device.
    pub fn streamed(graph: &Graph, device: &dyn Capabilities) -> Result<Plan, PlanError> {
        Plan::made(graph, device, true, Need::Exact)
    }

    /// The same, with all that it may do; values that rest need a graph that says so.
    pub fn fit(graph: Graph, device: &dyn Capabilities, may: May) -> Result<(Graph, Plan), PlanError> {
        Plan::fit_or_refuse(graph, device, may, Need::Exact)
    }

    /// The same, with refusals that count so.
    pub(crate) fn fit_or_refuse(
        graph: Graph,
        device: &dyn Capabilities,
        may: May,
        need: Need,
    ) -> Result<(Graph, Plan), PlanError> {
        match Plan::made(&graph, device, may.stream, need) {
            Err(refusal @ PlanError::Memory { .. }) if may.rest => rest::fit(&graph, device, may.stream, refusal),
            planned => planned.map(|plan| (graph, plan)),
        }
    }

    fn made(graph: &Graph, device: &dyn Capabilities, may_stream: bool, need: Need) -> Result<Plan, PlanError> {
        let limits = device.limits();
        let mut analysis = Analysis::new(graph, device, true);
        let weights: Vec<Weight> = analysis
            .weights()
            .map(|(value, used)| Weight { value, used, bytes: device.param_bytes(graph, value, used) })
            .collect();
        // Blocks are cut at whole multiples of the alignment, so that offsets inside them stay aligned.
        let block_bytes = limits.max_allocation / device.alignment() * device.alignment();
        check_each(graph, device, &analysis, &weights, limits, block_bytes)?;

        let mut order = order::choose(graph, &analysis);
        let mut lifetimes = Lifetimes::new(graph, &analysis, &order);
        // Room for all pieces from the first one on can be more than pieces that are put together at the end.
        if analysis.houses() {
            let plain = Analysis::new(graph, device, false);
            let plain_order = order::choose(graph, &plain);
            let plain_lifetimes = Lifetimes::new(graph, &plain, &plain_order);
            if plain_lifetimes.peak_bytes() < lifetimes.peak_bytes() {
                (analysis, order, lifetimes) = (plain, plain_order, plain_lifetimes);
            }
        }
        let weight_bytes: u64 = weights.iter().map(|w| w.bytes).sum();
        let fixed = device.fixed_bytes();
        let refusal = |arena: u64| {
            let at = order.get(lifetimes.peak_step()).copied();
            PlanError::Memory {
                label: at.map_or("graph", |at| graph.label(at)).into(),
                op: at.map_or("input", |at| graph.node(at).op.name()),
                need: weight_bytes + arena + fixed,
                weights: weight_bytes,
                arena,
                limit: limits.memory,
            }
        };
        let lower_bound = lifetimes.peak_bytes();
        let at_least = lower_bound.saturating_add(fixed).saturating_add(if may_stream { 0 } else { weight_bytes });
        if need == Need::LowerBound && at_least > limits.memory {
            return Err(refusal(lower_bound));
        }

        let layout = arena::pack(&lifetimes.buffers, device.alignment(), block_bytes);
        let resting = arena::pack(&lifetimes.resting, device.alignment(), block_bytes);
        let places = lifetimes.places(graph, &analysis, &layout.offsets, &resting.offsets);
        let steps = order
            .iter()
            .enumerate()
            .map(|(i, &value)| Step { value, scratch: lifetimes.scratch(i, &layout.offsets) })
            .collect();
        let largest_binding = analysis.largest_binding(graph).map_or(0, |(_, bytes)| bytes);
        let mut plan = Plan {
            steps,
            places,
            weights,
            arena_bytes: layout.bytes,
            host_bytes: resting.bytes,
            block_bytes,
            lower_bound,
            largest_binding,
            stream: None,
        };
        if weight_bytes.saturating_add(layout.bytes).saturating_add(fixed) > limits.memory {
            let room = limits.memory.checked_sub(layout.bytes.saturating_add(fixed)).filter(|_| may_stream);
            let stream = |room| Stream::new(graph, &plan, room, limits.max_allocation, device.alignment());
            plan.stream = room.and_then(stream);
            if plan.stream.is_none() {
                return Err(refusal(layout.bytes));
            }
        }
        plan.verified(graph, device)
    }

    /// The plan, if it is true or the device asks for no proof.
    fn verified(self, graph: &Graph, device: &dyn Capabilities) -> Result<Plan, PlanError> {
        match if device.verifies_plans() { self.verify(graph, device) } else { Ok(()) } {
            Ok(()) => Ok(self),
            Err(problem) => Err(PlanError::Fault { problem }),
        }
    }

    /// The ops in the order of execution. Sources and views are not executed.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Where a value lies.
    pub fn place(&self, value: Value) -> Location {
        self.places[value.index()]
    }

    /// The parameters that are needed.
    pub fn weights(&self) -> &[Weight] {
        &self.weights
    }

    /// Bytes of all parameters as the backend keeps them.
    pub fn weight_bytes(&self) -> u64 {
        self.weights.iter().map(|w| w.bytes).sum()
    }

    /// The most bytes that it asks for in one piece.
    pub fn block_bytes(&self) -> u64 {
        self.block_bytes
    }

    /// How the weights are streamed, where they do not all stay on the device.
    pub fn stream(&self) -> Option<&Stream> {
        self.stream.as_ref()
    }

    /// The weights that stay on the device.
    pub fn resident(&self) -> &[Weight] {
        self.stream.as_ref().map_or(&self.weights, |stream| stream.resident())
    }

    /// Bytes of weights on the device at once.
    pub fn device_weight_bytes(&self) -> u64 {
        self.stream.as_ref().map_or_else(|| self.weight_bytes(), |stream| stream.device_bytes())
    }

    /// The weights that a step reads, each once.
    fn weights_of(&self, graph: &Graph, step: Value) -> Vec<Weight> {
        let mut read: Vec<Weight> = vec![];
        for &operand in &graph.node(step).inputs {
            let Location::Weight(param) = self.place(operand) else { continue };
            if let Ok(at) = self.weights.binary_search_by_key(&param, |weight| weight.value)
                && !read.contains(&self.weights[at])
            {
                read.push(self.weights[at]);
            }
        }
        read
    }

    /// Bytes of the arena: activations, inputs, outputs and scratch.
    pub fn arena_bytes(&self) -> u64 {
        self.arena_bytes
    }

    /// The arena in pieces that each fit one allocation of the device; no tensor straddles two of them.
    pub fn blocks(&self) -> impl Iterator<Item = Span> + use<> {
        blocks(self.arena_bytes, self.block_bytes)
    }

    /// Bytes of host memory for values that rest there.
    pub fn host_bytes(&self) -> u64 {
        self.host_bytes
    }

    /// That memory, in pieces that each fit one allocation.
    pub fn host_blocks(&self) -> impl Iterator<Item = Span> + use<> {
        blocks(self.host_bytes, self.block_bytes)
    }

    /// Bytes that go to the host's memory and come back in each run.
    pub fn rested_bytes(&self, graph: &Graph) -> u64 {
        let copies = |step: &&Step| graph.node(step.value).op.is_copy();
        self.steps.iter().filter(copies).map(|step| graph.ty(step.value).bytes()).sum()
    }

    /// The largest sum of bytes live at one moment of this order: no arena can be smaller.
    pub fn lower_bound(&self) -> u64 {
        self.lower_bound
    }

    /// The largest tensor that an op reads or writes.
    pub fn largest_binding(&self) -> u64 {
        self.largest_binding
    }
}

fn blocks(all: u64, block: u64) -> impl Iterator<Item = Span> + use<> {
    let block = block.max(1);
    (0..all.div_ceil(block)).map(move |i| Span { offset: i * block, bytes: block.min(all - i * block) })
}

/// What can be said of each op alone: is it there, does each of its tensors fit.
fn check_each(
    graph: &Graph,
    device: &dyn Capabilities,
    analysis: &Analysis,
    weights: &[Weight],
    limits: Limits,
    block_bytes: u64,
) -> Result<(), PlanError> {
    for value in analysis.steps() {
        if let Err(reason) = device.supports(graph, value) {
            let (label, op) = (graph.label(value).into(), graph.node(value).op.name());
            return Err(PlanError::Unsupported { label, op, reason });
        }
    }
    // What lies in the arena must fit one of its blocks, a parameter one allocation of its own.
    let in_arena = analysis.steps().chain(analysis.inputs());
    let in_arena = in_arena.map(|v| (v, analysis.scratch(v).max(graph.ty(v).bytes()), block_bytes));
    let alone = weights.iter().map(|w| (w.value, w.bytes, limits.max_allocation));
    let too_large = in_arena.chain(alone).filter(|&(_, need, most)| need > most);
    if let Some((value, need, most)) = too_large.reduce(|a, b| if b.1 > a.1 { b } else { a }) {
        return Err(PlanError::Allocation {
            label: graph.label(value).into(),
            op: graph.node(value).op.name(),
            need,
            // Between the two only the alignment is in the way; then what it leaves of the limit is said.
            limit: if need > limits.max_allocation { limits.max_allocation } else { most },
        });
    }
    match analysis.largest_binding(graph) {
        Some((value, need)) if need > limits.max_binding => Err(PlanError::Binding {
            label: graph.label(value).into(),
            op: graph.node(value).op.name(),
            need,
            limit: limits.max_binding,
        }),
        _ => Ok(()),
    }
}
