//! From a job to its pictures, on one screen.

use impasto_model::Model;

use crate::begin::{Beginning, Original, begin};
use crate::conditioning::{Texts, Words};
use crate::module::Module;
use crate::networks::Networks;
use crate::picture::Picture;
use crate::place::Placement;
use crate::sampling::Sampler;
use crate::settings::Preview;
use crate::{GenerateError, Job, Noise};

/// What happens, as it happens.
#[derive(Debug)]
pub enum Event<'a> {
    /// Words of the prompt that the model was never shown, and passes over.
    Unknown(&'a [String]),
    /// Something that the user should know: how a module is split, or that a device failed.
    Note(&'a str),
    /// A module is loaded.
    Loading {
        /// The module.
        module: &'static str,
        /// Parameters read so far.
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
    /// What the picture looks like so far.
    Preview(&'a Picture),
    /// A picture is ready.
    Picture {
        /// It.
        picture: &'a Picture,
        /// Its seed.
        seed: u64,
    },
}

/// Who hears what happens. To answer `false` asks to stop.
pub type Watcher<'a> = dyn FnMut(Event) -> Result<bool, GenerateError> + 'a;

/// Make the pictures of a job; each is handed to `watch` when it is ready.
pub fn generate(job: &Job, model: &Model, places: &Placement, watch: &mut Watcher) -> Result<(), GenerateError> {
    // Everything is planned, and devices are opened, before anything is loaded: what cannot be is refused before work is spent.
    let words = Words::cut(job, model)?;
    let mut texts = Texts::plan(job, model, &places.te, &words)?;
    let mut networks = Networks::plan(job, model, places, &words)?;
    texts.modules().try_for_each(Module::open)?;
    networks.open()?;
    let unknown = words.unknown(model)?;
    if !unknown.is_empty() {
        tell(watch, Event::Unknown(&unknown))?;
    }
    for note in texts.modules().filter_map(|module| module.note()).chain(networks.notes()) {
        tell(watch, Event::Note(&note))?;
    }
    networks.denoiser.hear(texts.encode(watch)?);
    let original = Original::encode(job, model, &mut networks, watch)?;
    for i in 0..job.count {
        let seed = job.seed.wrapping_add(i as u64);
        let mut noise = Noise::new(job.rng, seed);
        let beginning = begin(job, &networks, original.as_ref(), &mut noise)?;
        let latent = sample(job, &mut networks, beginning, &mut noise, i, watch)?;
        tell(watch, Event::Working("decoding"))?;
        let picture = networks.decode(&latent, watch)?;
        if picture.is_flat() {
            return Err(GenerateError::Flat { module: "vae" });
        }
        tell(watch, Event::Picture { picture: &picture, seed })?;
    }
    Ok(())
}

/// Noise to latent, step by step.
fn sample(
    job: &Job,
    networks: &mut Networks,
    beginning: Beginning,
    noise: &mut Noise,
    picture: usize,
    watch: &mut Watcher,
) -> Result<Vec<f32>, GenerateError> {
    networks.load_diffusion(watch)?;
    let Beginning { latent, sigmas, kept, extra } = beginning;
    let mut sampler = Sampler::new(job.method, job.eta, sigmas, latent)?;
    let of = sampler.steps();
    tell(watch, Event::Step { picture, done: 0, of })?;
    while !sampler.done() {
        sampler.step(|x, sigma| networks.denoiser.denoise(x, sigma, extra.as_deref()), |n| noise.draw(n))?;
        if let Some(kept) = &kept {
            kept.put_back(&mut sampler);
        }
        tell(watch, Event::Step { picture, done: sampler.taken(), of })?;
        let (how, every) = job.preview;
        if let Some(seen) = sampler.denoised()
            && how != Preview::None
            && sampler.taken().is_multiple_of(every)
        {
            let shown = networks.preview(how, seen, watch)?;
            tell(watch, Event::Preview(&shown))?;
        }
    }
    Ok(sampler.into_latent())
}

/// Tell what happens; an answer that asks to stop ends the run.
pub(crate) fn tell(watch: &mut Watcher, event: Event) -> Result<(), GenerateError> {
    match watch(event)? {
        true => Ok(()),
        false => Err(GenerateError::Interrupted),
    }
}
