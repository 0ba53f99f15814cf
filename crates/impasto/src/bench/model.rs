//! Whole networks of true size on random weights: seconds, share of the machine's peak, and where the time goes.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use impasto_backend::{Backend, StepTime};
use impasto_graph::{Banded, Cutting, DType, Graph, GraphError, HostTensor, Plan, Storage};
use impasto_model::{ElementTypes, FAMILIES, NetworkId, Pipeline, TokenLayout};
use serde::Serialize;

use super::{RandomWeights, median, random_inputs, room_for_outputs};

/// One line of results.
#[derive(Clone, Debug, Serialize)]
pub struct ModelLine {
    /// What was run: a step with guidance (two passes of the denoiser at once), or the decoding of a picture.
    pub name: String,
    /// Seconds of one run, the median of several.
    pub seconds: f64,
    /// Useful operations a second, in thousand millions.
    pub gflops: f64,
    /// What a loop without memory reaches on the same threads.
    pub peak_gflops: f64,
    /// The share of that peak.
    pub ratio: f64,
    /// The shortest times of all steps together, each over all runs: what a run would take that nobody disturbs. Absent where steps are
    /// not timed.
    pub least_seconds: Option<f64>,
    /// Bytes of activations and scratch.
    pub arena_bytes: u64,
    /// Bytes of packed weights.
    pub weight_bytes: u64,
    /// Seconds to bring the weights to the device, here made up on the way.
    pub pack_seconds: f64,
    /// Seconds to make ready: memory, and kernels that are not in the cache.
    pub prepare_seconds: f64,
    /// Seconds of the first run.
    pub first_seconds: f64,
    /// Seconds by kind of op, the longest first; each step at its best over all runs.
    pub profile: Vec<(String, f64)>,
    /// All steps at their best, the longest first.
    pub steps: Vec<StepLine>,
}

/// One step of a network.
#[derive(Clone, Debug, Serialize)]
pub struct StepLine {
    /// Where in the network it stands.
    pub label: String,
    /// Its op.
    pub op: &'static str,
    /// Its shortest time.
    pub seconds: f64,
    /// Useful operations a second, in thousand millions.
    pub gflops: f64,
}

/// A published model in its true size, by its name: `sd15`, `sdxl`, `flux-dev` and others.
#[derive(Clone)]
pub struct Published {
    /// The name.
    pub name: &'static str,
    /// The model, without weights.
    pub pipeline: Arc<dyn Pipeline>,
}

impl Published {
    /// The model of this name.
    pub fn named(text: &str) -> Result<Published, String> {
        let all: Vec<_> = FAMILIES.iter().flat_map(|family| family.published()).collect();
        let names = all.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
        let found = all.into_iter().find(|(name, _)| *name == text);
        found
            .map(|(name, pipeline)| Published { name, pipeline })
            .ok_or_else(|| format!("'{text}' is no family; there are {names}"))
    }

    /// A step for a picture of `size` by `size`: where the model has guidance by a negative prompt, with both texts at once if they may be.
    pub fn step(&self, size: usize, numbers: ElementTypes) -> Result<Graph, GraphError> {
        // Sizes that are no multiple are rounded up: a bench asks for any.
        let latents = self.pipeline.latents();
        let latent = self.pipeline.latent_shape([size.next_multiple_of(latents.pixels); 2]);
        let tokens: Vec<usize> = self.pipeline.text().iter().map(|encoder| tokens(&encoder.tokens)).collect();
        let twice = self.pipeline.reads_negative(self.pipeline.defaults().guidance) && self.pipeline.texts_together();
        self.pipeline.denoiser(if twice { 2 } else { 1 }, latent, &tokens, numbers)
    }
}

/// Tokens of a prompt of some sentences.
fn tokens(layout: &TokenLayout) -> usize {
    match *layout {
        TokenLayout::Chunks(tokens) | TokenLayout::Single(tokens) => tokens,
        TokenLayout::Sequence { least, most, .. } => least.max(128).min(most),
    }
}

/// Run the networks of a published model for pictures of `size` by `size`, decoded in so many bands; `show` gets each line as it is ready.
pub fn model(
    backend: &dyn Backend,
    published: &Published,
    size: usize,
    bands: u64,
    runs: usize,
    mut show: impl FnMut(&ModelLine),
) -> anyhow::Result<()> {
    let numbers = ElementTypes { storage: Storage::Dense(DType::F16), activations: backend.profile().activations() };
    let Published { name, pipeline } = published;
    let step = published.step(size, numbers)?;
    show(&measure(backend, format!("{name}_step_{size}"), &step, runs)?);
    drop(step);
    let side = size.div_ceil(pipeline.latents().autoencoder_pixels);
    let decode = pipeline.autoencoder(NetworkId::VaeDecoder, [side, side], numbers)?;
    let (decode, name) = match bands {
        0 | 1 => (decode, format!("{name}_decode_{size}")),
        _ => (
            Banded::new(&decode, &Cutting::bands(&decode, bands))?.graph,
            format!("{name}_decode_{size}_in_{bands}_bands"),
        ),
    };
    show(&measure(backend, name, &decode, runs)?);
    Ok(())
}

fn measure(backend: &dyn Backend, name: String, graph: &Graph, runs: usize) -> anyhow::Result<ModelLine> {
    let plan = Plan::new(graph, &*backend.profile())?;
    let start = Instant::now();
    let weights = backend.pack(graph, &plan, &RandomWeights::of(graph))?;
    let pack_seconds = start.elapsed().as_secs_f64();
    let mut session = backend.prepare(graph, &plan, &weights)?;
    let prepare_seconds = start.elapsed().as_secs_f64() - pack_seconds;
    let (inputs, mut outputs) = (random_inputs(&*session)?, room_for_outputs(&*session));
    let inputs: Vec<(&str, &HostTensor)> = inputs.iter().map(|(n, t)| (n.as_str(), t)).collect();
    let (mut peaks, mut times) = (vec![], vec![]);
    let mut best: Vec<StepTime> = vec![];
    for _ in 0..runs.max(1) {
        for _ in 0..3 {
            peaks.push(backend.peak_gflops()?);
        }
        let start = Instant::now();
        session.run(&inputs, &mut outputs)?;
        times.push(start.elapsed().as_secs_f64());
        let steps = session.profile();
        match best.is_empty() {
            true => best = steps,
            false => best.iter_mut().zip(&steps).for_each(|(best, step)| best.seconds = step.seconds.min(best.seconds)),
        }
    }
    let first_seconds = times[0];
    anyhow::ensure!(
        outputs.iter().all(|o| o.to_f32().iter().all(|v| v.is_finite())),
        "{name}: the result is not finite; its time would mean nothing"
    );
    // Where steps were not timed there is nothing to show of them.
    best.retain(|step| step.seconds > 0.0);
    let (seconds, peak) = (median(&mut times), median(&mut peaks));
    let gflops = graph.flops() as f64 / seconds / 1e9;
    best.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    Ok(ModelLine {
        name,
        seconds,
        gflops,
        peak_gflops: peak,
        ratio: gflops / peak,
        least_seconds: (!best.is_empty()).then(|| best.iter().map(|s| s.seconds).sum()),
        arena_bytes: plan.arena_bytes(),
        weight_bytes: plan.weight_bytes(),
        pack_seconds,
        prepare_seconds,
        first_seconds,
        profile: by_op(&best),
        steps: best.into_iter().map(StepLine::from).collect(),
    })
}

impl From<StepTime> for StepLine {
    fn from(s: StepTime) -> StepLine {
        StepLine { gflops: s.flops as f64 / s.seconds.max(1e-9) / 1e9, label: s.label, op: s.op, seconds: s.seconds }
    }
}

/// Seconds by kind of op, the longest first.
pub(super) fn by_op(steps: &[StepTime]) -> Vec<(String, f64)> {
    let mut sums: HashMap<&str, f64> = HashMap::new();
    for step in steps {
        *sums.entry(step.op).or_default() += step.seconds;
    }
    let mut list: Vec<(String, f64)> = sums.into_iter().map(|(op, s)| (op.to_string(), s)).collect();
    list.sort_by(|a, b| b.1.total_cmp(&a.1));
    list
}
