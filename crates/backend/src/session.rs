//! What the sessions of every backend share: the names and types of inputs and outputs, the times of steps, streamed weights, and which code
//! prepares which op.

use impasto_graph::{Graph, Op, Plan, Segment, Stream, TensorType, Value};

use crate::{BackendError, SharedSource, StepTime, Streaming, WeightSource, Weights, stream};

/// The inputs that a graph takes and the outputs that it yields, by name.
#[derive(Clone, Debug)]
pub struct Signature {
    /// What a run is given.
    pub inputs: Vec<(String, TensorType)>,
    /// What it gives.
    pub outputs: Vec<(String, TensorType)>,
}

impl Signature {
    /// The signature of a graph.
    pub fn of(graph: &Graph) -> Signature {
        let inputs = graph.inputs().map(|(name, value)| (name.to_owned(), graph.ty(value).clone())).collect();
        let outputs = graph.outputs().iter().map(|o| (o.name.clone(), graph.ty(o.value).clone())).collect();
        Signature { inputs, outputs }
    }
}

/// A time for each step of a plan, none spent yet.
pub fn step_times(graph: &Graph, plan: &Plan) -> Vec<StepTime> {
    let time = |value: Value| StepTime {
        label: graph.label(value).into(),
        op: graph.node(value).op.name(),
        seconds: 0.0,
        flops: graph.node(value).op.flops(&graph.operand_types(value), graph.ty(value)),
    };
    plan.steps().iter().map(|step| time(step.value)).collect()
}

/// Weights that are streamed to a device while it computes.
pub(crate) struct StreamState {
    feed: SharedSource,
    stream: Stream,
    graph: Graph,
    last: Streaming,
}

impl StreamState {
    /// None of a plan whose weights all stay on the device.
    pub(crate) fn new(
        device: &str,
        graph: &Graph,
        plan: &Plan,
        weights: &Weights,
    ) -> Result<Option<StreamState>, BackendError> {
        let Some(stream) = plan.stream() else { return Ok(None) };
        let (feed, last) = (weights.feed(device)?, Streaming::default());
        Ok(Some(StreamState { feed, stream: stream.clone(), graph: graph.clone(), last }))
    }

    /// Runs segment by segment. `bring` fills the slot of one on a thread of its own, `compute` runs one whose slot is filled.
    pub(crate) fn run(
        &mut self,
        bring: impl Fn(&Graph, &Segment, &dyn WeightSource) -> Result<(), BackendError> + Sync,
        mut compute: impl FnMut(usize, &Segment) -> Result<(), BackendError>,
    ) -> Result<(), BackendError> {
        let (segments, slots) = (self.stream.segments(), self.stream.slots());
        let bring = |segment: &Segment| bring(&self.graph, segment, &*self.feed);
        self.last = stream::run(segments, slots, &bring, &mut |at| compute(at, &segments[at]))?;
        Ok(())
    }

    /// What the last run cost.
    pub(crate) fn last(&self) -> Streaming {
        self.last
    }
}

/// Prepares steps, op by op: the one table of which code is for which op.
pub(crate) trait PrepareOps {
    /// A step, ready to run.
    type Step;

    fn graph(&self) -> &Graph;
    fn linear(&self, value: Value) -> Self::Step;
    fn matmul(&self, value: Value) -> Self::Step;
    fn conv(&self, value: Value) -> Self::Step;
    fn attention(&self, value: Value) -> Self::Step;
    fn group_norm(&self, value: Value) -> Self::Step;
    fn line_statistics(&self, value: Value) -> Self::Step;
    fn norm_factors(&self, value: Value) -> Self::Step;
    fn normalise(&self, value: Value) -> Self::Step;
    /// Layer norm, RMS norm and softmax.
    fn by_row(&self, value: Value) -> Self::Step;
    /// Unary functions, scale and shift, casts.
    fn map(&self, value: Value) -> Self::Step;
    fn binary(&self, value: Value) -> Self::Step;
    fn geglu(&self, value: Value) -> Self::Step;
    /// The same numbers in other places.
    fn movement(&self, value: Value) -> Self::Step;
    fn embedding(&self, value: Value) -> Self::Step;
    fn timestep(&self, value: Value) -> Self::Step;
    fn rotary(&self, value: Value) -> Self::Step;
    /// To host memory and back.
    fn rest(&self, value: Value) -> Self::Step;

    fn prepare(&self, value: Value) -> Self::Step {
        match &self.graph().node(value).op {
            Op::Linear { .. } => self.linear(value),
            Op::MatMul { .. } => self.matmul(value),
            Op::Conv2d { .. } => self.conv(value),
            Op::Attention { .. } => self.attention(value),
            Op::GroupNorm { .. } => self.group_norm(value),
            Op::LineStatistics { .. } => self.line_statistics(value),
            Op::NormFactors { .. } => self.norm_factors(value),
            Op::Normalise { .. } => self.normalise(value),
            Op::LayerNorm { .. } | Op::RmsNorm { .. } | Op::Softmax => self.by_row(value),
            Op::Unary(_) | Op::Affine { .. } | Op::Cast => self.map(value),
            Op::Binary(_) => self.binary(value),
            Op::Geglu => self.geglu(value),
            Op::Upsample { .. }
            | Op::Pad { .. }
            | Op::Concat { .. }
            | Op::Slice { .. }
            | Op::Reshape { .. }
            | Op::Permute { .. } => self.movement(value),
            Op::Embedding => self.embedding(value),
            Op::TimestepEmbedding { .. } => self.timestep(value),
            Op::Rotary { .. } => self.rotary(value),
            Op::Rest | Op::Fetch => self.rest(value),
            Op::Input { .. } | Op::Param { .. } => unreachable!("sources are not executed"),
        }
    }
}

/// Whether an op may write its result over an operand of as many bytes: [`Capabilities::may_overwrite`](impasto_graph::Capabilities) of every
/// backend, since each element, or the statistics of its row, is read before it is written.
pub(crate) fn may_overwrite(graph: &Graph, value: Value, operand: usize) -> bool {
    let node = graph.node(value);
    match node.op {
        Op::Linear { fused, .. } | Op::Conv2d { fused, .. } => fused.residual && operand + 1 == node.inputs.len(),
        Op::GroupNorm { .. }
        | Op::Normalise { .. }
        | Op::LayerNorm { .. }
        | Op::RmsNorm { .. }
        | Op::Softmax
        | Op::Rotary { .. } => operand == 0,
        Op::Unary(_) | Op::Binary(_) | Op::Affine { .. } | Op::Cast => {
            graph.ty(node.inputs[operand]).shape == node.ty.shape
        }
        _ => false,
    }
}
