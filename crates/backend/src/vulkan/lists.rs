//! The steps of a plan as command buffers, recorded once: kernels on the compute queue, copies on the transfer queue, each waiting only for
//! what it needs of the other.

use std::ops::Range;
use std::sync::Arc;

use impasto_vulkan::{BufferRange, ComputePipeline, QueueKind, Recorder, Recording, VulkanError};

use super::Vulkan;
use super::memory::VulkanMemory;
use crate::gpu::{Binding, Gpu, GpuStep, MAX_SUBMITTED_FLOPS, Run, Spaces, Work};
use crate::{BackendError, StepTime};

const MOST_RUNS: usize = 500;
/// Work that is queued on the device: enough that it never waits for the next command buffer, little enough that a stop takes effect soon. So
/// many command buffers are queued in any case: a single step may be longer.
const AHEAD: u64 = LISTS_AHEAD as u64 * MAX_SUBMITTED_FLOPS;
const LISTS_AHEAD: usize = 3;
/// What a device could compute while it copies a byte.
const FLOPS_OF_A_BYTE: u64 = 100;

/// All steps of a plan, in command buffers that are short enough.
pub(crate) struct Lists {
    /// In an order in which they can be submitted.
    lists: Vec<List>,
    /// Those of each segment.
    segments: Vec<Range<usize>>,
}

struct List {
    recording: Recording,
    /// In the order in which their times are noted.
    steps: Vec<usize>,
    /// The last list of the other queue that must have ended.
    after: Option<usize>,
    flops: u64,
}

/// The buffer ranges that commands read and write.
#[derive(Default)]
struct Touched {
    read: Vec<BufferRange>,
    written: Vec<BufferRange>,
}

impl Touched {
    /// Whether commands must wait for these: they read or write what these write, or write what these read. The last part of each is written.
    fn hold_up(&self, ranges: &[BufferRange]) -> bool {
        let any = |list: &[BufferRange], range: &BufferRange| list.iter().any(|other| other.overlaps(range));
        ranges.iter().any(|range| any(&self.written, range)) || ranges.last().is_some_and(|to| any(&self.read, to))
    }

    fn add(&mut self, ranges: &[BufferRange]) {
        let Some((to, from)) = ranges.split_last() else { return };
        self.read.extend_from_slice(from);
        self.written.push(to.clone());
    }
}

/// A command buffer that is being recorded.
struct Open {
    recorder: Recorder,
    /// Since the last barrier, and in all.
    recent: Touched,
    all: Touched,
    steps: Vec<usize>,
    after: Option<usize>,
    flops: u64,
    runs: usize,
}

impl Open {
    fn new(vulkan: &Vulkan, kind: QueueKind, after: Option<usize>) -> Open {
        let mut recorder = Recorder::new(vulkan.device(), kind);
        recorder.timestamp();
        let (recent, all, steps) = (Touched::default(), Touched::default(), vec![]);
        Open { recorder, recent, all, steps, after, flops: 0, runs: 0 }
    }
}

/// A queue while its command buffers are recorded.
#[derive(Default)]
struct Writing {
    open: Option<Open>,
    /// Finished command buffers, by their index, which the other queue does not wait for yet.
    done: Vec<(usize, Touched)>,
}

struct Writer<'v> {
    vulkan: &'v Vulkan,
    queues: [Writing; 2],
    lists: Vec<List>,
}

impl Writer<'_> {
    fn close(&mut self, kind: QueueKind) -> Result<(), VulkanError> {
        let kind = &mut self.queues[kind as usize];
        let Some(open) = kind.open.take() else { return Ok(()) };
        kind.done.push((self.lists.len(), open.all));
        let recording = open.recorder.finish()?;
        self.lists.push(List { recording, steps: open.steps, after: open.after, flops: open.flops });
        Ok(())
    }

    fn close_all(&mut self) -> Result<(), VulkanError> {
        [QueueKind::Compute, QueueKind::Transfer].into_iter().try_for_each(|kind| self.close(kind))
    }

    /// The last command buffer of the other queue that these commands must wait for, which is finished for that.
    fn waits_for(&mut self, other: QueueKind, commands: &[Command]) -> Result<Option<usize>, VulkanError> {
        let held_up = |touched: &Touched| commands.iter().any(|command| touched.hold_up(&command.ranges));
        if self.queues[other as usize].open.as_ref().is_some_and(|open| held_up(&open.all)) {
            self.close(other)?;
        }
        let done = &mut self.queues[other as usize].done;
        let Some(at) = done.iter().rposition(|(_, touched)| held_up(touched)) else { return Ok(None) };
        Ok(done.drain(..=at).next_back().map(|(index, _)| index))
    }

    /// Adds a step whose commands all belong to one queue.
    fn add(&mut self, step: usize, flops: u64, commands: Vec<Command>) -> Result<(), VulkanError> {
        let copies = !commands.is_empty() && commands.iter().all(|command| command.kernel.is_none());
        let (kind, other) =
            if copies { (QueueKind::Transfer, QueueKind::Compute) } else { (QueueKind::Compute, QueueKind::Transfer) };
        let bytes: u64 = commands.iter().flat_map(|command| command.ranges.last()).map(|range| range.bytes).sum();
        let flops = if copies { FLOPS_OF_A_BYTE.saturating_mul(bytes) } else { flops };
        let after = self.waits_for(other, &commands)?;
        let full = |open: &Open| {
            open.runs > 0 && (open.flops + flops > MAX_SUBMITTED_FLOPS || open.runs + commands.len() > MOST_RUNS)
        };
        if after.is_some() || self.queues[kind as usize].open.as_ref().is_some_and(full) {
            self.close(kind)?;
        }
        let open = self.queues[kind as usize].open.get_or_insert_with(|| Open::new(self.vulkan, kind, after));
        open.runs += commands.len();
        open.flops += flops;
        open.steps.push(step);
        for Command { kernel, ranges } in commands {
            if open.recent.hold_up(&ranges) {
                open.recorder.barrier();
                open.recent = Touched::default();
            }
            open.recent.add(&ranges);
            open.all.add(&ranges);
            match (kernel, &ranges[..]) {
                (Some((pipeline, groups)), _) => open.recorder.run(&pipeline, ranges, groups)?,
                (None, [from, to]) => open.recorder.copy(from.clone(), to.clone())?,
                (None, _) => {}
            }
        }
        open.recorder.timestamp();
        Ok(())
    }
}

/// A kernel with its workgroups, or a copy. The last of its buffers is written.
struct Command {
    kernel: Option<(Arc<ComputePipeline>, [u32; 3])>,
    ranges: Vec<BufferRange>,
}

impl Lists {
    /// Records all steps; `cuts` are the steps with which segments begin.
    pub(super) fn new(
        vulkan: &Vulkan,
        steps: Vec<GpuStep>,
        cuts: &[usize],
        spaces: &Spaces<VulkanMemory>,
    ) -> Result<Lists, BackendError> {
        let range = |binding: &Binding| spaces.of(binding.space).range(binding.address, binding.bytes);
        let kernels: Vec<_> = steps.iter().flat_map(|step| step.work.runs()).map(|run| &run.kernel).collect();
        let (pipelines, lazy) = vulkan.0.pipelines.all_and_lazy(&kernels).map_err(|e| vulkan.unsupported(e))?;
        let bindings: Vec<&[Binding]> =
            steps.iter().flat_map(|step| step.work.runs()).map(|run| &run.bindings[..]).collect();
        for at in lazy {
            compile_now(vulkan, &pipelines[at], bindings[at].iter().map(range).collect())?;
        }
        let mut pipelines = pipelines.into_iter();
        let missing = || vulkan.unsupported("a kernel was not compiled");
        let mut writer = Writer { vulkan, queues: Default::default(), lists: vec![] };
        let failed = |e: VulkanError| vulkan.failed(0, e);
        let mut begins = vec![0];
        for (step, GpuStep { work, flops }) in steps.into_iter().enumerate() {
            if step > 0 && cuts.contains(&step) {
                writer.close_all().map_err(failed)?;
                begins.push(writer.lists.len());
            }
            let commands = match work {
                Work::Copy { from, to } => vec![Command { kernel: None, ranges: vec![range(&from), range(&to)] }],
                Work::Runs(runs) => {
                    let command = |run: Run| {
                        let pipeline = pipelines.next().ok_or_else(missing)?;
                        let ranges = run.bindings.iter().map(range).collect();
                        Ok(Command { kernel: Some((pipeline, run.groups)), ranges })
                    };
                    runs.into_iter().map(command).collect::<Result<_, BackendError>>()?
                }
            };
            writer.add(step, flops, commands).map_err(failed)?;
        }
        writer.close_all().map_err(failed)?;
        let ends = begins.iter().skip(1).copied().chain([writer.lists.len()]);
        let segments = begins.iter().copied().zip(ends).map(|(begin, end)| begin..end).collect();
        Ok(Lists { lists: writer.lists, segments })
    }

    /// Submits the command buffers of a segment, each when it may begin, and waits for their end.
    pub(super) fn run(&mut self, vulkan: &Vulkan, segment: usize) -> Result<(), BackendError> {
        let Some(range) = self.segments.get(segment).cloned() else { return Ok(()) };
        let (pulse, lists) = (vulkan.pulse(), &mut self.lists);
        let wait = |list: &List| -> Result<(), BackendError> {
            list.recording.wait().map_err(|e| vulkan.died(e))?;
            pulse.beat();
            Ok(())
        };
        let (mut oldest, mut held, mut stopped) = (range.start, 0, false);
        let mut submitted = range.start;
        for at in range {
            while at - oldest >= LISTS_AHEAD && held + lists[at].flops > AHEAD {
                wait(&lists[oldest])?;
                held -= lists[oldest].flops;
                oldest += 1;
            }
            stopped = pulse.must_stop();
            if stopped {
                break;
            }
            let after = lists[at].after.map(|other| lists[other].recording.done_at());
            lists[at].recording.submit_after(after.as_slice()).map_err(|e| vulkan.died(e))?;
            (held, submitted) = (held + lists[at].flops, at + 1);
        }
        lists[oldest..submitted].iter().try_for_each(wait)?;
        if stopped { Err(BackendError::Interrupted { device: vulkan.name().into() }) } else { Ok(()) }
    }

    /// Notes what each step took in the last run, where the device has a clock.
    pub(super) fn note(&self, vulkan: &Vulkan, times: &mut [StepTime]) -> Result<(), BackendError> {
        for list in &self.lists {
            let seconds = list.recording.seconds().map_err(|e| vulkan.failed(0, e))?;
            list.steps.iter().zip(seconds).for_each(|(&step, seconds)| times[step].seconds = seconds);
        }
        Ok(())
    }
}

/// Has the driver compile a kernel that it would compile when it first runs: by a run without workgroups, so that each kernel is a piece of work of
/// its own, which is counted and may be the last.
fn compile_now(vulkan: &Vulkan, pipeline: &Arc<ComputePipeline>, ranges: Vec<BufferRange>) -> Result<(), BackendError> {
    if vulkan.pulse().must_stop() {
        return Err(BackendError::Interrupted { device: vulkan.name().into() });
    }
    let run = || {
        let mut recorder = Recorder::new(vulkan.device(), QueueKind::Compute);
        recorder.run(pipeline, ranges, [0, 0, 0])?;
        let mut recording = recorder.finish()?;
        recording.submit()?;
        recording.wait()
    };
    run().map_err(|e| vulkan.died(e))?;
    vulkan.device().meter().note_compiled();
    vulkan.pulse().beat();
    Ok(())
}
