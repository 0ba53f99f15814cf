//! A plan with its memory: each step as runs of kernels, recorded once and submitted again and again.

use std::sync::OnceLock;

use impasto_graph::{DType, Graph, HostTensor, Location, Plan, Span, Storage, TensorType, Value};
use impasto_kernel::{Kernel, KernelError};

use super::weights::{GpuLayout, GpuSessionWeights, GpuWeights, SessionPlaces};
use super::{
    Binding, Gpu, GpuMemory, GpuProfile, GpuStep, Residence, Run, Space, Work, attention, elementwise, linear, lookup,
    movement, norm,
};
use crate::session::{PrepareOps, Signature, StreamState, step_times};
use crate::stored::{kept_blocks, param_name};
use crate::stream::segment_of;
use crate::tasks::on_threads;
use crate::{BackendError, Session, StepTime, Streaming, Weights, io};

/// What preparing a step may look at.
#[derive(Clone, Copy)]
pub(super) struct Env<'a> {
    pub(super) profile: &'a GpuProfile,
    pub(super) graph: &'a Graph,
    plan: &'a Plan,
    weights: SessionPlaces<'a>,
    /// The step's scratch memory.
    scratch: Option<Span>,
    /// The step's segment, where weights are streamed.
    segment: usize,
}

impl Env<'_> {
    /// Where a value lies.
    pub(super) fn binding(&self, value: Value) -> Binding {
        match self.plan.place(value) {
            Location::Arena(span) => Binding { space: Space::Arena, address: span.offset, bytes: span.bytes },
            Location::Host(span) => Binding { space: Space::Host, address: span.offset, bytes: span.bytes },
            Location::Weight(param) => {
                self.weights.find(self.segment, param_name(self.graph, param), GpuLayout::Tensor).0
            }
            Location::Nowhere => unreachable!("an operand of a step has a place"),
        }
    }

    /// Where a table lies, and as what.
    pub(super) fn table(&self, value: Value) -> (Binding, DType) {
        match self.plan.place(value) {
            Location::Weight(param) => self.weights.find(self.segment, param_name(self.graph, param), GpuLayout::Table),
            _ => (self.binding(value), self.graph.ty(value).dtype),
        }
    }

    /// Where the packed weights of a product lie, and as what.
    pub(super) fn packed(&self, param: Value) -> (Binding, DType) {
        self.weights.find(self.segment, param_name(self.graph, param), GpuLayout::Weights)
    }

    /// Where the weights of a product lie that stay in blocks.
    pub(super) fn blocks(&self, param: Value) -> Binding {
        self.weights.find(self.segment, param_name(self.graph, param), GpuLayout::Blocks).0
    }

    /// Where a table lies that stays in blocks, and in which.
    pub(super) fn table_blocks(&self, table: Value) -> Option<(Binding, Storage)> {
        match self.plan.place(table) {
            Location::Weight(param) => kept_blocks(self.graph, param).map(|storage| (self.blocks(param), storage)),
            _ => None,
        }
    }

    /// A part of the step's scratch memory.
    pub(super) fn scratch(&self, offset: u64, bytes: u64) -> Binding {
        let begin = self.scratch.map_or(0, |span| span.offset);
        Binding { space: Space::Arena, address: begin + offset, bytes }
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
        let bindings = operands.chain([value]).map(|v| self.binding(v)).collect();
        vec![Run { kernel, bindings, groups }]
    }
}

impl PrepareOps for Env<'_> {
    type Step = Result<Work, KernelError>;

    fn graph(&self) -> &Graph {
        self.graph
    }

    fn linear(&self, value: Value) -> Self::Step {
        linear::prepare(self, value).map(Work::Runs)
    }

    fn matmul(&self, value: Value) -> Self::Step {
        linear::prepare(self, value).map(Work::Runs)
    }

    fn conv(&self, value: Value) -> Self::Step {
        linear::prepare(self, value).map(Work::Runs)
    }

    fn attention(&self, value: Value) -> Self::Step {
        attention::prepare(self, value).map(Work::Runs)
    }

    fn group_norm(&self, value: Value) -> Self::Step {
        norm::group_norm(self, value).map(Work::Runs)
    }

    fn line_statistics(&self, value: Value) -> Self::Step {
        norm::line_statistics(self, value).map(Work::Runs)
    }

    fn norm_factors(&self, value: Value) -> Self::Step {
        norm::factors(self, value).map(Work::Runs)
    }

    fn normalise(&self, value: Value) -> Self::Step {
        norm::normalise(self, value).map(Work::Runs)
    }

    fn by_row(&self, value: Value) -> Self::Step {
        norm::by_row(self, value).map(Work::Runs)
    }

    /// Integers to integers: everything else is a chain.
    fn map(&self, value: Value) -> Self::Step {
        elementwise::copy(self, value).map(Work::Runs)
    }

    fn geglu(&self, value: Value) -> Self::Step {
        elementwise::geglu(self, value).map(Work::Runs)
    }

    fn movement(&self, value: Value) -> Self::Step {
        movement::prepare(self, value).map(Work::Runs)
    }

    fn embedding(&self, value: Value) -> Self::Step {
        lookup::embedding(self, value).map(Work::Runs)
    }

    fn timestep(&self, value: Value) -> Self::Step {
        lookup::timestep(self, value).map(Work::Runs)
    }

    fn rotary(&self, value: Value) -> Self::Step {
        lookup::rotary(self, value).map(Work::Runs)
    }

    fn binary(&self, _: Value) -> Self::Step {
        unreachable!("it is a link of a chain")
    }

    fn rest(&self, value: Value) -> Self::Step {
        Ok(Work::Copy { from: self.binding(self.operand(value, 0)), to: self.binding(value) })
    }
}

pub(super) struct GpuSession<G: Gpu> {
    gpu: G,
    arena: G::Memory,
    host: G::Memory,
    commands: G::Commands,
    times: Vec<StepTime>,
    signature: Signature,
    /// Addresses in the arena; inputs that nobody needs have none.
    input_places: Vec<Option<u64>>,
    output_places: Vec<Binding>,
    weights: Weights,
    stream: Option<StreamState>,
}

impl<G: Gpu> GpuSession<G> {
    pub(super) fn new(gpu: &G, graph: &Graph, plan: &Plan, weights: &Weights) -> Result<GpuSession<G>, BackendError> {
        let profile = gpu.gpu_profile();
        let packed = GpuSessionWeights::new(gpu, weights)?;
        packed.check(gpu, graph, plan)?;
        let arena = gpu.allocate(Residence::Device, plan.blocks().map(|block| block.bytes))?;
        let host = gpu.allocate(Residence::HostMapped, plan.host_blocks().map(|block| block.bytes))?;
        let env = Env { profile, graph, plan, weights: packed.places(), scratch: None, segment: 0 };
        let times = step_times(graph, plan);
        let works = works(&env)?;
        let steps = works.into_iter().zip(&times).map(|(work, time)| GpuStep { work, flops: time.flops }).collect();
        let segments = plan.stream().map_or(&[][..], |stream| stream.segments());
        let cuts: Vec<usize> = segments.iter().map(|segment| segment.steps.start).collect();
        let commands = gpu.record(steps, &cuts, &packed.spaces(&arena, &host))?;
        let address = |value: Value| match plan.place(value) {
            Location::Arena(span) => Some(span.offset),
            _ => None,
        };
        Ok(GpuSession {
            gpu: gpu.clone(),
            commands,
            times,
            signature: Signature::of(graph),
            input_places: graph.inputs().map(|(_, value)| address(value)).collect(),
            output_places: graph.outputs().iter().map(|o| env.binding(o.value)).collect(),
            arena,
            host,
            weights: weights.clone(),
            stream: StreamState::new(&profile.name, graph, plan, weights)?,
        })
    }

    /// Runs everything; where weights are streamed, segment by segment.
    fn run_segments(&mut self) -> Result<(), BackendError> {
        let (gpu, commands) = (&self.gpu, &mut self.commands);
        let Some(stream) = &mut self.stream else { return gpu.submit(commands, 0) };
        let packed: &GpuWeights<G> = self.weights.of(&gpu.gpu_profile().name)?;
        stream.run(|graph, segment, source| packed.bring(gpu, graph, segment, source), |at, _| gpu.submit(commands, at))
    }

    fn upload(&self, given: &[(&str, &HostTensor)]) -> Result<(), BackendError> {
        io::inputs(&self.signature.inputs, given, |i, tensor| match self.input_places[i] {
            Some(address) => self.arena.write(address, &tensor.data().to_bytes()),
            None => Ok(()),
        })?;
        self.arena.settle()
    }

    fn download(&self, outputs: &mut [HostTensor]) -> Result<(), BackendError> {
        let spaces = GpuSessionWeights::new(&self.gpu, &self.weights)?.spaces(&self.arena, &self.host);
        io::outputs(&self.signature.outputs, outputs, |i, out| {
            let mut read = vec![0; out.ty().bytes() as usize];
            let place = &self.output_places[i];
            spaces.of(place.space).read(place.address, &mut read)?;
            out.data_mut().fill_from(&read);
            #[cfg(feature = "faults")]
            if let (true, impasto_graph::Data::F32(numbers)) =
                (impasto_faults::nan(&self.gpu.gpu_profile().name), out.data_mut())
            {
                numbers[0] = f32::NAN;
            }
            Ok(())
        })
    }
}

/// What each step of a plan does. Kernels are written on all cores: a network has some thousand of them.
fn works(env: &Env) -> Result<Vec<Work>, BackendError> {
    let plan = env.plan;
    let order: Vec<Value> = plan.steps().iter().map(|step| step.value).collect();
    // Steps, and after each how many of them its kernels do.
    let mut groups: Vec<(usize, usize, Env)> = vec![];
    let mut at = 0;
    while at < order.len() {
        let segment = segment_of(plan, at);
        let env = Env { segment, scratch: plan.steps()[at].scratch, ..*env };
        // A chain ends where weights change.
        let end = plan.stream().map_or(order.len(), |stream| stream.segments()[segment].steps.end);
        let chained = elementwise::chained(&env, &order[at..end]);
        groups.push((at, chained, env));
        at += chained.max(1);
    }
    let done: Vec<OnceLock<Work>> = order.iter().map(|_| OnceLock::new()).collect();
    let prepare = |_: &mut (), i: usize| {
        let (at, chained, env) = groups[i];
        let work = match chained {
            0 => env.prepare(order[at]),
            count => elementwise::chain(&Env { scratch: None, ..env }, &order[at..at + count]).map(Work::Runs),
        };
        let unsupported = |e: KernelError| BackendError::Unsupported {
            device: env.profile.name.clone(),
            reason: format!("{}: {e}", env.graph.label(order[at])),
        };
        let work = work.map_err(unsupported)?;
        // The last step of a chain does the work of all.
        let _ = done[at + chained.max(1) - 1].set(work);
        Ok(())
    };
    on_threads(impasto_device::cpu::usable_cores(), groups.len(), &|_| (), &prepare)?;
    Ok(done.into_iter().map(|work| work.into_inner().unwrap_or(Work::Runs(vec![]))).collect())
}

impl<G: Gpu> Session for GpuSession<G> {
    fn inputs(&self) -> &[(String, TensorType)] {
        &self.signature.inputs
    }

    fn outputs(&self) -> &[(String, TensorType)] {
        &self.signature.outputs
    }

    fn run(&mut self, inputs: &[(&str, &HostTensor)], outputs: &mut [HostTensor]) -> Result<(), BackendError> {
        io::check_room(&self.signature.outputs, outputs)?;
        self.upload(inputs)?;
        self.run_segments()?;
        self.gpu.note_times(&self.commands, &mut self.times)?;
        self.download(outputs)
    }

    fn streaming(&self) -> Option<Streaming> {
        self.stream.as_ref().map(StreamState::last)
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::Instant;

    use impasto_device::{Api, DeviceInfo, DeviceKind};
    use impasto_graph::Limits;
    use impasto_model::{ElementTypes, UnetConfig, unet};
    use impasto_ptx::{PtxTarget, compiler};

    use super::super::weights::WeightPlaces;
    use super::*;
    use crate::{DeviceOptions, cuda};

    /// Where the time before the first step of SDXL goes that is not the driver's, on one core each.
    #[test]
    #[ignore = "it measures: run it alone, with --nocapture"]
    fn preparing_sdxl_for_warpgroups() {
        let limits = Limits { memory: 80 << 30, max_allocation: 80 << 30, max_binding: 80 << 30 };
        let mut card = DeviceInfo::imagined("cuda0", Api::Cuda, DeviceKind::Discrete, limits);
        card.cuda.as_mut().expect("it is a CUDA device").capability = (9, 0);
        let profile = cuda::gpu_profile(&card, &DeviceOptions::default()).expect("there is a target");
        let numbers = ElementTypes { activations: profile.number(), ..ElementTypes::F32 };
        let begun = Instant::now();
        let mut last = 0.0;
        let mut took = |what: String| {
            let now = begun.elapsed().as_secs_f64();
            println!("{:.3} s {what}", now - last);
            last = now;
        };
        let graph = unet(&UnetConfig::sdxl(), 2, [128, 128], 77, numbers).expect("a graph");
        let plan = Plan::new(&graph, &profile).expect("it fits");
        took("graph and plan".into());
        let weights = WeightPlaces::nowhere(&profile, &graph, &plan);
        let env =
            Env { profile: &profile, graph: &graph, plan: &plan, weights: weights.places(), scratch: None, segment: 0 };
        let works = works(&env).expect("kernels");
        let kernels: Vec<&Kernel> = works.iter().flat_map(|work| work.runs()).map(|run| &run.kernel).collect();
        took(format!("{} kernels written, on all cores", kernels.len()));
        let texts: Vec<String> = kernels.iter().map(|kernel| kernel.to_string()).collect();
        took(format!("as text: {} bytes", texts.iter().map(String::len).sum::<usize>()));
        let mut seen = BTreeSet::new();
        let each: Vec<&Kernel> =
            kernels.into_iter().zip(&texts).filter(|(_, text)| seen.insert(*text)).map(|(kernel, _)| kernel).collect();
        took(format!("{} of them different", each.len()));
        let compiler = compiler(PtxTarget::Sm90a);
        let keys: BTreeSet<u128> = each.iter().map(|kernel| compiler.key(std::slice::from_ref(*kernel))).collect();
        took(format!("{} keys", keys.len()));
        let mut slowest = vec![];
        for kernel in &each {
            let begun = Instant::now();
            let module = compiler.compile(std::slice::from_ref(*kernel)).expect("it compiles");
            slowest.push((begun.elapsed(), module.bytes.len(), kernel.name.clone()));
        }
        took(format!("compiled to {} bytes of PTX", slowest.iter().map(|(_, bytes, _)| bytes).sum::<usize>()));
        slowest.sort();
        slowest.iter().rev().take(12).for_each(|(time, bytes, name)| println!("  {time:?} {name}, {bytes} bytes"));
    }
}
