//! The steps of a plan as lists of commands, written down once: kernels on one lane of the device, copies on the other, each waiting for what
//! it needs of the other and for nothing else.

use std::ops::Range;
use std::sync::Arc;

use impasto_vulkan::{Lane, Part, Pipeline, Recorder, Recording, VulkanError};

use super::Vulkan;
use super::memory::Memory;
use crate::gpu::{Binding, Gpu, GpuStep, MAX_SUBMITTED_FLOPS, Run, Spaces, Work};
use crate::{BackendError, StepTime};

const MOST_RUNS: usize = 500;
/// Work that the device holds: enough that it never waits for the next list, little enough that one who asks to stop is heard. As many lists
/// as that are held in any case: a single step may be longer.
const AHEAD: u64 = LISTS_AHEAD as u64 * MAX_SUBMITTED_FLOPS;
const LISTS_AHEAD: usize = 3;
/// What a device could compute while it copies a byte.
const FLOPS_OF_A_BYTE: u64 = 100;

/// All steps, in lists that are short enough.
pub(crate) struct Lists {
    /// In an order in which they can be handed over.
    lists: Vec<List>,
    /// Those of each segment.
    segments: Vec<Range<usize>>,
}

struct List {
    recording: Recording,
    /// In the order in which their times are noted.
    steps: Vec<usize>,
    /// The last list of the other lane that must have ended.
    after: Option<usize>,
    flops: u64,
}

/// What commands read and write.
#[derive(Default)]
struct Touched {
    read: Vec<Part>,
    written: Vec<Part>,
}

impl Touched {
    /// Whether commands must wait for these: they read or write what these write, or write what these read. The last part of each is written.
    fn hold_up(&self, parts: &[Part]) -> bool {
        let any = |list: &[Part], part: &Part| list.iter().any(|other| other.touches(part));
        parts.iter().any(|part| any(&self.written, part)) || parts.last().is_some_and(|to| any(&self.read, to))
    }

    fn add(&mut self, parts: &[Part]) {
        let Some((to, from)) = parts.split_last() else { return };
        self.read.extend_from_slice(from);
        self.written.push(to.clone());
    }
}

/// A list that is being written.
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
    fn new(vulkan: &Vulkan, lane: Lane, after: Option<usize>) -> Open {
        let mut recorder = Recorder::new(vulkan.device(), lane);
        recorder.stamp();
        let (recent, all, steps) = (Touched::default(), Touched::default(), vec![]);
        Open { recorder, recent, all, steps, after, flops: 0, runs: 0 }
    }
}

/// A lane while lists are written.
#[derive(Default)]
struct Writing {
    open: Option<Open>,
    /// Lists that are written, by their index, which the other lane does not wait for yet.
    done: Vec<(usize, Touched)>,
}

struct Writer<'v> {
    vulkan: &'v Vulkan,
    lanes: [Writing; 2],
    lists: Vec<List>,
}

impl Writer<'_> {
    fn close(&mut self, lane: Lane) -> Result<(), VulkanError> {
        let lane = &mut self.lanes[lane as usize];
        let Some(open) = lane.open.take() else { return Ok(()) };
        lane.done.push((self.lists.len(), open.all));
        let recording = open.recorder.finish()?;
        self.lists.push(List { recording, steps: open.steps, after: open.after, flops: open.flops });
        Ok(())
    }

    fn close_all(&mut self) -> Result<(), VulkanError> {
        [Lane::Kernels, Lane::Copies].into_iter().try_for_each(|lane| self.close(lane))
    }

    /// The last list of the other lane that these commands must wait for, after it is written to its end.
    fn waits_for(&mut self, other: Lane, commands: &[Command]) -> Result<Option<usize>, VulkanError> {
        let held_up = |touched: &Touched| commands.iter().any(|command| touched.hold_up(&command.parts));
        if self.lanes[other as usize].open.as_ref().is_some_and(|open| held_up(&open.all)) {
            self.close(other)?;
        }
        let done = &mut self.lanes[other as usize].done;
        let Some(at) = done.iter().rposition(|(_, touched)| held_up(touched)) else { return Ok(None) };
        Ok(done.drain(..=at).next_back().map(|(index, _)| index))
    }

    /// A step of commands that all belong to one lane.
    fn add(&mut self, step: usize, flops: u64, commands: Vec<Command>) -> Result<(), VulkanError> {
        let copies = !commands.is_empty() && commands.iter().all(|command| command.kernel.is_none());
        let (lane, other) = if copies { (Lane::Copies, Lane::Kernels) } else { (Lane::Kernels, Lane::Copies) };
        let bytes: u64 = commands.iter().flat_map(|command| command.parts.last()).map(|part| part.bytes).sum();
        let flops = if copies { FLOPS_OF_A_BYTE.saturating_mul(bytes) } else { flops };
        let after = self.waits_for(other, &commands)?;
        let full = |open: &Open| {
            open.runs > 0 && (open.flops + flops > MAX_SUBMITTED_FLOPS || open.runs + commands.len() > MOST_RUNS)
        };
        if after.is_some() || self.lanes[lane as usize].open.as_ref().is_some_and(full) {
            self.close(lane)?;
        }
        let open = self.lanes[lane as usize].open.get_or_insert_with(|| Open::new(self.vulkan, lane, after));
        open.runs += commands.len();
        open.flops += flops;
        open.steps.push(step);
        for Command { kernel, parts } in commands {
            if open.recent.hold_up(&parts) {
                open.recorder.barrier();
                open.recent = Touched::default();
            }
            open.recent.add(&parts);
            open.all.add(&parts);
            match (kernel, &parts[..]) {
                (Some((pipeline, groups)), _) => open.recorder.run(&pipeline, parts, groups)?,
                (None, [from, to]) => open.recorder.copy(from.clone(), to.clone())?,
                (None, _) => {}
            }
        }
        open.recorder.stamp();
        Ok(())
    }
}

/// A kernel with its workgroups, or a copy. The last of its buffers is written.
struct Command {
    kernel: Option<(Arc<Pipeline>, [u32; 3])>,
    parts: Vec<Part>,
}

impl Lists {
    /// Writes down all steps; `cuts` are the steps with which segments begin.
    pub(super) fn new(
        vulkan: &Vulkan,
        steps: Vec<GpuStep>,
        cuts: &[usize],
        spaces: &Spaces<Memory>,
    ) -> Result<Lists, BackendError> {
        let mut kernels = vec![];
        for step in &steps {
            if let Work::Runs(runs) = &step.work {
                kernels.extend(runs.iter().map(|run| &run.kernel));
            }
        }
        let mut pipelines = vulkan.0.pipelines.all(&kernels).map_err(|e| vulkan.unsupported(e))?.into_iter();
        let missing = || vulkan.unsupported("a kernel was not compiled");
        let mut writer = Writer { vulkan, lanes: Default::default(), lists: vec![] };
        let failed = |e: VulkanError| vulkan.failed(0, e);
        let mut begins = vec![0];
        let part = |binding: &Binding| spaces.of(binding.space).part(binding.address, binding.bytes);
        for (step, GpuStep { work, flops }) in steps.into_iter().enumerate() {
            if step > 0 && cuts.contains(&step) {
                writer.close_all().map_err(failed)?;
                begins.push(writer.lists.len());
            }
            let commands = match work {
                Work::Copy { from, to } => vec![Command { kernel: None, parts: vec![part(&from), part(&to)] }],
                Work::Runs(runs) => {
                    let command = |run: Run| {
                        let pipeline = pipelines.next().ok_or_else(missing)?;
                        let parts = run.bindings.iter().map(part).collect();
                        Ok(Command { kernel: Some((pipeline, run.groups)), parts })
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

    /// Hands the lists of a segment to the device, each when it may begin, and waits for their end.
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
            let after = lists[at].after.map(|other| lists[other].recording.ends());
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
