//! From a job to its pictures, on one screen.

use std::path::Path;

use impasto_model::{LatentShape, NetworkId};

use crate::begin::{Beginning, begin};
use crate::bits::Numbers;
use crate::conditioning::TokenizedPrompts;
use crate::failover::FailoverNetworks;
use crate::networks::Networks;
use crate::picture::Picture;
use crate::place::Placement;
use crate::sampling::Sampler;
use crate::saved_run::Run;
use crate::settings::Preview;
use crate::{GenerateError, Job, Noise};

/// What happens, as it happens.
#[derive(Debug)]
pub enum Event<'a> {
    /// Words of the prompt that the model was never shown, and passes over.
    Unknown(&'a [String]),
    /// What went wrong with a driver, or why a GPU that was seen is not used.
    Device(&'a str),
    /// Where the modules compute and keep their weights.
    Placed(&'a Placement),
    /// Something that the user should know: how a module is split, or that a device failed.
    Note(&'a str),
    /// Something that the user should see to, though the run goes on.
    Warning(&'a str),
    /// A module is loaded.
    Loading {
        /// The module.
        module: NetworkId,
        /// Bytes of its weights that are read.
        done: u64,
        /// Bytes of all of them.
        of: u64,
    },
    /// Kernels of a module are compiled for its device.
    Compiling {
        /// The module.
        module: NetworkId,
        /// Kernels compiled so far.
        done: u64,
        /// All of them.
        of: u64,
    },
    /// Something begins that takes a while.
    Working(
        /// What, in the user's words.
        &'static str,
    ),
    /// A step is done.
    Step {
        /// The picture, from 0.
        picture: usize,
        /// Steps done; 0 before the first.
        done: usize,
        /// All of them.
        of: usize,
    },
    /// Where the run stands, after each step: enough to resume it from here.
    State(&'a Run),
    /// What the picture looks like so far.
    Preview(&'a Picture),
    /// A picture is ready.
    Picture {
        /// It.
        picture: &'a Picture,
        /// Its seed.
        seed: u64,
        /// The text that webui keeps inside a picture, from which it can be made again.
        parameters: &'a str,
        /// The file that it was written to, where the job writes files.
        file: Option<&'a Path>,
    },
    /// The run has ended before its time: with this file it can be resumed.
    Resumable(&'a Path),
}

/// Receives the events of a run. To answer `false` asks to stop.
pub type Watcher<'a> = dyn FnMut(Event) -> Result<bool, GenerateError> + 'a;

/// Makes the pictures of a job, from where a run stands if it is given; each is handed to `watch` when it is ready.
pub fn run(job: &Job, places: &Placement, from: Option<Run>, watch: &mut Watcher) -> Result<(), GenerateError> {
    let model = &*job.model;
    // Everything is planned, and devices are opened, before anything is loaded: what cannot be is refused before work is spent.
    let prompts = TokenizedPrompts::new(job, model)?;
    let mut networks = FailoverNetworks::new(Networks::plan(job, model, places, Some(&prompts))?);
    networks.work(watch, |networks, _| networks.open())?;
    let unknown = prompts.unknown(model)?;
    if !unknown.is_empty() {
        tell(watch, Event::Unknown(&unknown))?;
    }
    for note in networks.notes() {
        tell(watch, Event::Note(&note))?;
    }
    let done = pictures(job, &mut networks, from, watch);
    networks.give_back();
    done
}

/// Texts to conditioning, then picture after picture: where it begins, its steps, its decoding.
fn pictures(
    job: &Job,
    networks: &mut FailoverNetworks,
    mut from: Option<Run>,
    watch: &mut Watcher,
) -> Result<(), GenerateError> {
    networks.work(watch, Networks::encode_texts)?;
    let LatentShape { channels, height, width } = networks.autoencoder.latent;
    let shape = [channels, height, width];
    if from.as_ref().is_some_and(|run| run.shape != shape) {
        return Err(GenerateError::Asked("the stored run has latents of another size than these settings".into()));
    }
    let mut original = None;
    for i in from.as_ref().map_or(0, |run| run.picture)..job.count {
        let seed = job.seed.wrapping_add(i as u64);
        let run = match from.take() {
            Some(run) => run,
            None => {
                if original.is_none() {
                    original = Some(networks.work(watch, Networks::encode_original)?);
                }
                let mut noise = Noise::new(job.rng, seed);
                let beginning = begin(networks, original.as_ref().and_then(Option::as_ref), &mut noise)?;
                let Beginning { latent, sigmas, kept, extra } = beginning;
                let sampler = Sampler::new(job.method, job.eta, sigmas, latent)?;
                Run { picture: i, seed: job.seed, shape, sampler, noise, kept, extra: extra.map(Numbers) }
            }
        };
        let latent = sample(job, networks, run, watch)?;
        tell(watch, Event::Working("decoding"))?;
        let picture = networks.work(watch, |networks, watch| networks.decode(&latent, watch))?;
        if picture.is_flat() {
            return Err(GenerateError::Flat { module: NetworkId::VaeDecoder });
        }
        tell(watch, Event::Picture { picture: &picture, seed, parameters: &job.parameters(seed), file: None })?;
    }
    Ok(())
}

/// Only the picture of a run as it stands.
pub fn decode(job: &Job, places: &Placement, run: &Run, watch: &mut Watcher) -> Result<Picture, GenerateError> {
    let mut networks = FailoverNetworks::new(Networks::plan(job, &job.model, places, None)?);
    let LatentShape { channels, height, width } = networks.autoencoder.latent;
    if run.shape != [channels, height, width] {
        return Err(GenerateError::Asked("the stored run has latents of another size than these settings".into()));
    }
    for note in networks.notes() {
        tell(watch, Event::Note(&note))?;
    }
    tell(watch, Event::Working("decoding"))?;
    networks.work(watch, |networks, watch| networks.decode(run.latent(), watch))
}

/// Noise to latent, step by step. A step that fails is begun again: until it is done the run stands where it stood.
fn sample(
    job: &Job,
    networks: &mut FailoverNetworks,
    mut run: Run,
    watch: &mut Watcher,
) -> Result<Vec<f32>, GenerateError> {
    tell(watch, Event::State(&run))?;
    if !run.sampler.done() {
        networks.work(watch, |networks, watch| networks.load_diffusion(watch).map(drop))?;
    }
    let (picture, of) = (run.picture, run.sampler.steps());
    tell(watch, Event::Step { picture, done: run.sampler.taken(), of })?;
    while !run.sampler.done() {
        let Run { sampler, noise, kept, extra, .. } = &mut run;
        let extra = extra.as_ref().map(|extra| &extra.0[..]);
        networks.work(watch, |networks, watch| {
            let denoiser = networks.load_diffusion(watch)?;
            Ok(sampler.step(|x, sigma| denoiser.denoise(x, sigma, extra), |n| noise.draw(n))?)
        })?;
        if let Some(kept) = kept {
            kept.put_back(sampler, job.prediction);
        }
        tell(watch, Event::State(&run))?;
        tell(watch, Event::Step { picture, done: run.sampler.taken(), of })?;
        let (how, every) = job.preview;
        if let Some(seen) = run.sampler.denoised()
            && how != Preview::None
            && run.sampler.taken().is_multiple_of(every)
        {
            let shown = networks.work(watch, |networks, watch| networks.preview(how, seen, watch))?;
            tell(watch, Event::Preview(&shown))?;
        }
    }
    Ok(run.sampler.into_latent())
}

/// Tell what happens; an answer that asks to stop ends the run.
pub(crate) fn tell(watch: &mut Watcher, event: Event) -> Result<(), GenerateError> {
    match watch(event)? {
        true => Ok(()),
        false => Err(GenerateError::Interrupted),
    }
}
