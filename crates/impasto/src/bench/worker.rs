//! What a worker process costs: a step of the model inside the program, in this process and in a worker, in turns.

use std::sync::Arc;
use std::time::Instant;

use impasto_backend::{Backend, DeviceOptions, Session};
use impasto_device::{Api, SurveyOptions, survey};
use impasto_graph::{Graph, HostTensor, Plan};
use impasto_model::{ElementTypes, NetworkId, OpenNetwork};
use impasto_worker::{Remote, WorkerOptions};
use serde::Serialize;

use super::{Published, median, random_inputs, room_for_outputs};

/// What was measured, in seconds.
#[derive(Clone, Debug, Serialize)]
pub struct WorkerLine {
    /// A step in this process, the median of several.
    pub here: f64,
    /// The same in a worker.
    pub worker: f64,
    /// The one over the other, turn by turn.
    pub ratio: Spread,
    /// The same of the time that processors were busy with either, which other work on the machine changes less. Linux tells.
    pub cpu_ratio: Option<Spread>,
    /// A step in this process, as time of processors.
    pub cpu_here: Option<f64>,
    /// What processors did for a step in a worker beside the step: asking, waiting and watching in this process, listening and saying that it
    /// lives in the worker.
    pub cpu_added: Option<f64>,
    /// The first step in this process.
    pub first_here: f64,
    /// The first step in a worker.
    pub first_worker: f64,
    /// From nothing to a worker with its device open.
    pub start: f64,
    /// Weights to the device and making ready, in this process.
    pub load_here: f64,
    /// The same in a worker.
    pub load_worker: f64,
    /// Both computed the same bits.
    pub same: bool,
}

/// How measurements of the same differ.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Spread {
    /// The smallest.
    pub least: f64,
    /// The one in the middle.
    pub median: f64,
    /// The largest.
    pub most: f64,
}

impl Spread {
    pub(super) fn of(mut values: Vec<f64>) -> Spread {
        let median = median(&mut values);
        Spread {
            least: values.first().copied().unwrap_or(f64::NAN),
            median,
            most: values.last().copied().unwrap_or(f64::NAN),
        }
    }
}

/// Measures on a device, for pictures of `size` by `size` with guidance.
pub fn worker(name: &str, size: usize, runs: usize) -> anyhow::Result<WorkerLine> {
    let found = survey(&SurveyOptions { apis: vec![Api::Vulkan], asked_for: true, ..crate::survey_options() });
    let device = found.find(name).ok_or_else(|| anyhow::anyhow!("there is no device {name}"))?;
    let options = DeviceOptions {
        cache: impasto_store::user_folder().map(|folder| folder.join("kernels")),
        ..DeviceOptions::default()
    };
    let here = impasto_backend::open(device, &options)?;
    let remote = Remote::open(device, &options, WorkerOptions::default())?;
    let start = remote.start_seconds();
    let process = remote.process().ok_or_else(|| anyhow::anyhow!("the worker ended at once"))?;
    let there: Arc<dyn Backend> = Arc::new(remote);
    let model = crate::default_model()?;
    let network = model.network(NetworkId::Denoiser).ok_or_else(|| anyhow::anyhow!("the model has no denoiser"))?;
    let numbers = ElementTypes { storage: network.storage(), activations: here.profile().activations() };
    let published = Published { name: "default", pipeline: model.pipeline.clone() };
    let graph = published.step(size, numbers)?;
    let plan = Plan::new(&graph, &*here.profile())?;
    let (mut one, load_here) = loaded(&*here, &graph, &plan, network)?;
    let (mut two, load_worker) = loaded(&*there, &graph, &plan, network)?;
    let inputs = random_inputs(&*one)?;
    let (mut mine, mut theirs) = (room_for_outputs(&*one), room_for_outputs(&*two));
    let first_here = run(&mut *one, &inputs, &mut mine)?;
    let first_worker = run(&mut *two, &inputs, &mut theirs)?;
    let mut turns: Vec<[Measured; 2]> = vec![];
    for turn in 0..runs.max(1) {
        let mut in_this = || measured(&mut *one, &inputs, &mut mine, None);
        let mut in_worker = || measured(&mut *two, &inputs, &mut theirs, Some(process));
        // Who begins changes, since what ran before leaves the processor warm.
        let (here, worker) = match turn % 2 {
            0 => (in_this()?, in_worker()?),
            _ => {
                let worker = in_worker()?;
                (in_this()?, worker)
            }
        };
        turns.push([here, worker]);
    }
    let both = |of: fn(&Measured) -> f64| turns.iter().map(move |[here, worker]| [of(here), of(worker)]);
    let ratio = |of| Spread::of(both(of).map(|[here, worker]| worker / here).collect());
    let middle = |which: usize, of| median(&mut both(of).map(|pair| pair[which]).collect::<Vec<f64>>());
    let told = turns.iter().flatten().all(|measured| measured.cpu > 0.0);
    Ok(WorkerLine {
        here: middle(0, |m| m.seconds),
        worker: middle(1, |m| m.seconds),
        ratio: ratio(|m| m.seconds),
        cpu_ratio: told.then(|| ratio(|m| m.cpu)),
        cpu_here: told.then(|| middle(0, |m| m.cpu)),
        cpu_added: told.then(|| middle(1, |m| m.added)),
        first_here,
        first_worker,
        start,
        load_here,
        load_worker,
        same: mine == theirs,
    })
}

/// A step.
struct Measured {
    seconds: f64,
    /// Seconds of processors in all, or 0 where the system does not tell.
    cpu: f64,
    /// Those of them that are not the device's.
    added: f64,
}

/// Runs a step in this process, or in the worker of that number.
fn measured(
    session: &mut dyn Session,
    inputs: &[(String, HostTensor)],
    to: &mut [HostTensor],
    worker: Option<u32>,
) -> anyhow::Result<Measured> {
    let busy = || {
        (
            busy(std::process::id(), |_| true),
            worker.map_or(0.0, |it| busy(it, |_| true)),
            worker.map_or(0.0, |it| busy(it, talks)),
        )
    };
    let before = busy();
    let seconds = run(session, inputs, to)?;
    let after = busy();
    let (own, theirs, talk) = (after.0 - before.0, after.1 - before.1, after.2 - before.2);
    Ok(Measured { seconds, cpu: own + theirs, added: own + talk })
}

/// The threads of a worker that are not there for the device.
fn talks(thread: &str) -> bool {
    matches!(thread, "listen" | "live")
}

/// Seconds that processors have been busy with the threads of a process that have such names and still run, as Linux tells.
fn busy(process: u32, which: impl Fn(&str) -> bool) -> f64 {
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let of = |name: &str, thread: &std::path::Path| std::fs::read_to_string(thread.join(name)).unwrap_or_default();
    let wanted = threads.map(|thread| thread.path()).filter(|thread| which(of("comm", thread).trim()));
    let nanoseconds =
        |thread: std::path::PathBuf| of("schedstat", &thread).split_whitespace().next()?.parse::<u64>().ok();
    wanted.filter_map(nanoseconds).sum::<u64>() as f64 / 1e9
}

fn loaded(
    backend: &dyn Backend,
    graph: &Graph,
    plan: &Plan,
    network: &OpenNetwork,
) -> anyhow::Result<(Box<dyn Session>, f64)> {
    let begun = Instant::now();
    let weights = backend.pack(graph, plan, &**network)?;
    let session = backend.prepare(graph, plan, &weights)?;
    Ok((session, begun.elapsed().as_secs_f64()))
}

fn run(session: &mut dyn Session, inputs: &[(String, HostTensor)], to: &mut [HostTensor]) -> anyhow::Result<f64> {
    let inputs: Vec<(&str, &HostTensor)> = inputs.iter().map(|(name, tensor)| (&**name, tensor)).collect();
    let begun = Instant::now();
    session.run(&inputs, to)?;
    Ok(begun.elapsed().as_secs_f64())
}
