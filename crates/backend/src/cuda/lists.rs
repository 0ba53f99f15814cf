//! The steps of a plan as CUDA graphs, recorded once: kernels and copies, each waiting only for what it needs.
//!
//! Where steps are timed one by one they are launched on a stream instead, with an event after each.

use std::ops::Range;
use std::sync::Arc;

use impasto_cuda::{CudaError, CudaEvent, CudaFeatures, CudaGraph, CudaRange, EdgeKind, GraphExec, GraphNode};

use super::Cuda;
use super::memory::CudaMemory;
use super::pipelines::CompiledKernel;
use crate::gpu::{Binding, Gpu, GpuStep, MAX_SUBMITTED_FLOPS, Run, Space, Spaces, Work};
use crate::{BackendError, StepTime};

/// Graphs that are handed over before the first of them is waited for: the device never waits for the next, and a stop takes effect soon.
const AHEAD: usize = 2;
/// What a device could compute while it copies a byte.
const FLOPS_OF_A_BYTE: u64 = 100;
/// What a multiprocessor computes in a clock at least, where it has matrix units.
const FLOPS_OF_A_CLOCK: u64 = 512;

/// Operations that are handed to a device at once: what it needs about a quarter of a second for.
pub(super) fn flops_at_once(features: &CudaFeatures) -> u64 {
    let clocks = u64::from(features.multiprocessors) * u64::from(features.clock) * 1000;
    (clocks / 4).saturating_mul(FLOPS_OF_A_CLOCK).max(MAX_SUBMITTED_FLOPS)
}

/// All steps of a plan.
pub(crate) struct Lists {
    /// In the order in which they are handed over.
    lists: Vec<List>,
    /// Those of each segment.
    segments: Vec<Range<usize>>,
}

/// Steps that are handed over together.
struct List {
    commands: Commands,
    done: CudaEvent,
}

enum Commands {
    Graph(GraphExec),
    /// The first event is before all steps.
    Timed {
        steps: Vec<(usize, Vec<Command>)>,
        events: Vec<CudaEvent>,
    },
}

/// A kernel with its workgroups, or a copy. The last of its ranges is written.
struct Command {
    kernel: Option<(Arc<CompiledKernel>, [u32; 3])>,
    ranges: Vec<CudaRange>,
    /// Ranges that some command may write: all but those of weights.
    changing: Vec<bool>,
}

/// Steps that are being recorded.
#[derive(Default)]
struct Open {
    steps: Vec<(usize, Vec<Command>)>,
    flops: u64,
}

/// What was read and written before, as far as somebody may have to wait for it.
#[derive(Default)]
struct Touched(Vec<Access>);

/// Bytes from an address to another that a node reads or writes.
struct Access {
    begin: u64,
    end: u64,
    node: GraphNode,
    written: bool,
}

impl Touched {
    /// The nodes that a command must wait for: it reads or writes what they write, or writes what they read.
    fn before(&self, command: &Command) -> Vec<GraphNode> {
        let Some((to, from)) = command.ranges.split_last() else { return vec![] };
        let overlaps = |access: &Access, range: &CudaRange| {
            access.begin < range.address() + range.bytes && range.address() < access.end
        };
        let reads: Vec<&CudaRange> = from.iter().zip(&command.changing).filter(|(_, c)| **c).map(|(r, _)| r).collect();
        let holds_up = |access: &&Access| {
            overlaps(access, to) || access.written && reads.iter().any(|range| overlaps(access, range))
        };
        let mut nodes: Vec<GraphNode> = self.0.iter().filter(holds_up).map(|access| access.node).collect();
        nodes.sort_unstable();
        nodes.dedup();
        nodes
    }

    fn add(&mut self, command: &Command, node: GraphNode) {
        let Some((to, from)) = command.ranges.split_last() else { return };
        let (begin, end) = (to.address(), to.address() + to.bytes);
        // Who waits for what is written over waits for the one who writes over it.
        self.0.retain(|access| access.begin < begin || end < access.end);
        for (range, _) in from.iter().zip(&command.changing).filter(|(_, changing)| **changing) {
            let (begin, end) = (range.address(), range.address() + range.bytes);
            self.0.push(Access { begin, end, node, written: false });
        }
        self.0.push(Access { begin, end, node, written: true });
    }
}

/// The steps as one graph.
fn graph(cuda: &Cuda, steps: &[(usize, Vec<Command>)]) -> Result<GraphExec, CudaError> {
    let mut graph: CudaGraph = cuda.device().graph()?;
    let mut touched = Touched::default();
    for command in steps.iter().flat_map(|(_, commands)| commands) {
        let before = touched.before(command);
        let node = match (&command.kernel, &command.ranges[..]) {
            (Some((kernel, groups)), ranges) => {
                let before: Vec<_> = before.into_iter().map(|node| (node, EdgeKind::Whole)).collect();
                kernel.add_to(&mut graph, ranges, *groups, &before)?
            }
            (None, [from, to]) => graph.add_copy(from, to, &before)?,
            (None, _) => continue,
        };
        touched.add(command, node);
    }
    let exec = graph.instantiate()?;
    cuda.streams().compute.upload_graph(&exec)?;
    Ok(exec)
}

impl Open {
    fn close(self, cuda: &Cuda, lists: &mut Vec<List>) -> Result<(), CudaError> {
        if self.steps.iter().all(|(_, commands)| commands.is_empty()) {
            return Ok(());
        }
        let device = cuda.device();
        let commands = match cuda.0.timed {
            false => Commands::Graph(graph(cuda, &self.steps)?),
            true => {
                let events = (0..=self.steps.len()).map(|_| device.event(true)).collect::<Result<_, _>>()?;
                Commands::Timed { steps: self.steps, events }
            }
        };
        lists.push(List { commands, done: device.event(false)? });
        Ok(())
    }
}

impl List {
    fn submit(&self, cuda: &Cuda) -> Result<(), CudaError> {
        let stream = &cuda.streams().compute;
        match &self.commands {
            Commands::Graph(exec) => stream.launch_graph(exec)?,
            Commands::Timed { steps, events } => {
                stream.record(&events[0])?;
                for ((_, commands), after) in steps.iter().zip(&events[1..]) {
                    for command in commands {
                        match (&command.kernel, &command.ranges[..]) {
                            (Some((kernel, groups)), ranges) => kernel.launch(stream, ranges, *groups)?,
                            (None, [from, to]) => stream.copy(from, to)?,
                            (None, _) => {}
                        }
                    }
                    stream.record(after)?;
                }
            }
        }
        stream.record(&self.done)
    }
}

impl Lists {
    /// Records all steps; `cuts` are the steps with which segments begin.
    pub(super) fn new(
        cuda: &Cuda,
        steps: Vec<GpuStep>,
        cuts: &[usize],
        spaces: &Spaces<CudaMemory>,
    ) -> Result<Lists, BackendError> {
        let range = |binding: &Binding| spaces.of(binding.space).range(binding.address, binding.bytes);
        let changes = |binding: &Binding| matches!(binding.space, Space::Arena | Space::Host);
        let kernels: Vec<_> = steps.iter().flat_map(|step| step.work.runs()).map(|run| &run.kernel).collect();
        let mut compiled = cuda.pipelines().all(&kernels)?.into_iter();
        let missing = || cuda.unsupported("a kernel was not compiled");
        let failed = |e: CudaError| cuda.failed(0, e);
        let (mut lists, mut begins, mut open) = (vec![], vec![0], Open::default());
        for (step, GpuStep { work, flops }) in steps.into_iter().enumerate() {
            let is_cut = step > 0 && cuts.contains(&step);
            let (commands, flops) = match work {
                Work::Copy { from, to } => {
                    let flops = FLOPS_OF_A_BYTE.saturating_mul(to.bytes);
                    let ranges = vec![range(&from), range(&to)];
                    (vec![Command { kernel: None, ranges, changing: vec![true; 2] }], flops)
                }
                Work::Runs(runs) => {
                    let command = |run: Run| {
                        let kernel = compiled.next().ok_or_else(missing)?;
                        Ok(Command {
                            kernel: Some((kernel, run.groups)),
                            ranges: run.bindings.iter().map(range).collect(),
                            changing: run.bindings.iter().map(changes).collect(),
                        })
                    };
                    (runs.into_iter().map(command).collect::<Result<Vec<_>, BackendError>>()?, flops)
                }
            };
            if is_cut || open.flops > 0 && open.flops + flops > cuda.0.at_once {
                std::mem::take(&mut open).close(cuda, &mut lists).map_err(failed)?;
            }
            if is_cut {
                begins.push(lists.len());
            }
            open.flops += flops;
            open.steps.push((step, commands));
        }
        open.close(cuda, &mut lists).map_err(failed)?;
        cuda.streams().compute.synchronise().map_err(failed)?;
        let ends = begins.iter().skip(1).copied().chain([lists.len()]);
        let segments = begins.iter().copied().zip(ends).map(|(begin, end)| begin..end).collect();
        Ok(Lists { lists, segments })
    }

    /// Hands the steps of a segment over and waits for their end.
    pub(super) fn run(&mut self, cuda: &Cuda, segment: usize) -> Result<(), BackendError> {
        let Some(range) = self.segments.get(segment).cloned() else { return Ok(()) };
        let lists = &self.lists[range];
        let wait = |list: &List| -> Result<(), BackendError> {
            list.done.synchronise().map_err(|e| cuda.died(e))?;
            cuda.pulse().beat();
            Ok(())
        };
        let (mut oldest, mut submitted, mut stopped) = (0, 0, false);
        for (at, list) in lists.iter().enumerate() {
            if at - oldest >= AHEAD {
                wait(&lists[oldest])?;
                oldest += 1;
            }
            stopped = cuda.pulse().must_stop();
            if stopped {
                break;
            }
            list.submit(cuda).map_err(|e| cuda.died(e))?;
            submitted = at + 1;
        }
        lists[oldest..submitted].iter().try_for_each(wait)?;
        if stopped { Err(BackendError::Interrupted { device: cuda.name().into() }) } else { Ok(()) }
    }

    /// Notes what each step took in the last run, where steps are timed.
    pub(super) fn note(&self, cuda: &Cuda, times: &mut [StepTime]) -> Result<(), BackendError> {
        for list in &self.lists {
            let Commands::Timed { steps, events } = &list.commands else { continue };
            for ((step, _), pair) in steps.iter().zip(events.windows(2)) {
                times[*step].seconds = pair[1].seconds_since(&pair[0]).map_err(|e| cuda.failed(0, e))?;
            }
        }
        Ok(())
    }
}
