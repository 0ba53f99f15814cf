//! What a worker process costs: a step of the model inside the program, in this process and in a worker, in turns.

use std::sync::Arc;
use std::time::Instant;

use impasto_backend::vulkan::VulkanOptions;
use impasto_backend::{Backend, Session};
use impasto_device::{Api, SurveyOptions, survey};
use impasto_graph::{Graph, HostTensor, Plan};
use impasto_model::{Numbers, unet};
use impasto_worker::{Remote, WorkerOptions, open_here};
use serde::Serialize;

use super::{median, random_inputs, room_for_outputs};

/// What was measured, in seconds.
#[derive(Clone, Debug, Serialize)]
pub struct WorkerLine {
    /// A step in this process, the median of several.
    pub here: f64,
    /// The same in a worker.
    pub worker: f64,
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

/// Measures on a device, for pictures of `size` by `size` with guidance.
pub fn worker(name: &str, size: usize, runs: usize) -> anyhow::Result<WorkerLine> {
    let found = survey(&SurveyOptions { apis: vec![Api::Vulkan], asked_for: true, ..crate::survey_options() });
    let device = found.find(name).ok_or_else(|| anyhow::anyhow!("there is no device {name}"))?;
    let options = VulkanOptions {
        cache: impasto_store::user_folder().map(|folder| folder.join("kernels")),
        ..VulkanOptions::default()
    };
    let here: Arc<dyn Backend> = Arc::new(open_here(device, &options)?);
    let remote = Remote::open(device, &options, WorkerOptions::default())?;
    let start = remote.start_seconds();
    let there: Arc<dyn Backend> = Arc::new(remote);
    let model = crate::default_model()?;
    let numbers = Numbers { storage: model.unet.storage(), activations: here.activations() };
    let side = size.div_ceil(8);
    let graph = unet(&model.unet.config, 2, [side, side], 77, numbers)?;
    let plan = Plan::new(&graph, &*here)?;
    let (mut one, load_here) = loaded(&*here, &graph, &plan, &model.unet)?;
    let (mut two, load_worker) = loaded(&*there, &graph, &plan, &model.unet)?;
    let inputs = random_inputs(&*one)?;
    let (mut mine, mut theirs) = (room_for_outputs(&*one), room_for_outputs(&*two));
    let first_here = run(&mut *one, &inputs, &mut mine)?;
    let first_worker = run(&mut *two, &inputs, &mut theirs)?;
    let (mut times_here, mut times_worker) = (vec![], vec![]);
    for turn in 0..runs.max(1) {
        // Who begins changes, since what ran before leaves the processor warm.
        if turn % 2 == 0 {
            times_here.push(run(&mut *one, &inputs, &mut mine)?);
        }
        times_worker.push(run(&mut *two, &inputs, &mut theirs)?);
        if turn % 2 == 1 {
            times_here.push(run(&mut *one, &inputs, &mut mine)?);
        }
    }
    Ok(WorkerLine {
        here: median(&mut times_here),
        worker: median(&mut times_worker),
        first_here,
        first_worker,
        start,
        load_here,
        load_worker,
        same: mine == theirs,
    })
}

fn loaded<C>(
    backend: &dyn Backend,
    graph: &Graph,
    plan: &Plan,
    part: &impasto_model::Part<C>,
) -> anyhow::Result<(Box<dyn Session>, f64)> {
    let begun = Instant::now();
    let weights = backend.pack(graph, plan, part)?;
    let session = backend.prepare(graph, plan, &weights)?;
    Ok((session, begun.elapsed().as_secs_f64()))
}

fn run(session: &mut dyn Session, inputs: &[(String, HostTensor)], to: &mut [HostTensor]) -> anyhow::Result<f64> {
    let inputs: Vec<(&str, &HostTensor)> = inputs.iter().map(|(name, tensor)| (&**name, tensor)).collect();
    let begun = Instant::now();
    session.run(&inputs, to)?;
    Ok(begun.elapsed().as_secs_f64())
}
