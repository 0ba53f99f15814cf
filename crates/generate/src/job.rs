//! One run, decided: what was asked for, and where nothing was, what suits the model.

use impasto_model::{Model, Prediction};

use crate::conditioning::usual_clip_skip;
use crate::picture::Picture;
use crate::sampling::{Method, Schedule};
use crate::settings::{Preview, Settings};
use crate::{GenerateError, NoiseKind, Split};

/// Everything that a run needs to know besides the model's files.
#[derive(Clone, Debug)]
pub struct Job {
    /// What to show.
    pub prompt: String,
    /// What not to show.
    pub negative: String,
    /// Pixels across.
    pub width: usize,
    /// Pixels down.
    pub height: usize,
    /// The first picture's seed; each further one has the next.
    pub seed: u64,
    /// Pictures.
    pub count: usize,
    /// Steps.
    pub steps: usize,
    /// How much the prompt counts; 1 is without guidance.
    pub guidance: f32,
    /// The sampling method.
    pub method: Method,
    /// How the noise levels are spread over the steps.
    pub schedule: Schedule,
    /// How much fresh noise a step adds; by default what the method has.
    pub eta: Option<f32>,
    /// Whose noise.
    pub rng: NoiseKind,
    /// What the diffusion model predicts.
    pub prediction: Prediction,
    /// Layers of the text encoder to stop before, counted from its end; 1 uses all.
    pub clip_skip: usize,
    /// Where it begins, if not with noise alone.
    pub start: Option<Start>,
    /// What is shown on the way, and after how many steps.
    pub preview: (Preview, usize),
    /// How the autoencoder may be split.
    pub split: Split,
    /// What was asked for and is done otherwise, a line each.
    pub notes: Vec<String>,
}

/// A picture to begin with.
#[derive(Clone, Debug)]
pub struct Start {
    /// It, in the size of the result.
    pub picture: Picture,
    /// For each pixel whether it is made anew.
    pub mask: Option<Vec<bool>>,
    /// How much is made anew, from 0 to 1.
    pub strength: f64,
}

impl Job {
    /// Decide everything. Reads the pictures that the run begins with; `random` is the seed if a random one is asked for.
    pub fn new(settings: &Settings, model: &Model, random: u64) -> Result<Job, GenerateError> {
        let asked = |problem: &str| GenerateError::Asked(problem.into());
        let prompt = settings.prompt.clone().ok_or_else(|| asked("no prompt: say what to show, with -p TEXT"))?;
        let mut notes = vec![];
        let prediction = settings.prediction.unwrap_or(model.prediction);

        // A picture to begin with has its own size, unless another one is asked for.
        let given = settings.init_img.as_deref().map(Picture::size_of).transpose()?;
        let [usual_height, usual_width] = model.size;
        let wanted =
            [(settings.width, given.map(|g| g.0), usual_width), (settings.height, given.map(|g| g.1), usual_height)]
                .map(|(asked, given, usual)| asked.map(|n| n as usize).or(given).unwrap_or(usual));
        // Each level of the diffusion model halves the latent.
        let step = model.vae.config.factor() << (model.unet.config.channels.len() - 1);
        let [width, height] = wanted.map(|n| n.next_multiple_of(step).max(step));
        if [width, height] != wanted {
            let [w, h] = wanted;
            notes.push(format!("{width}x{height} instead of {w}x{h}: this model's pictures are multiples of {step}"));
        }
        let start = match &settings.init_img {
            Some(path) => {
                let mask = settings.mask.as_deref().map(|m| Picture::read_mask(m, width, height)).transpose()?;
                let strength = settings.strength.unwrap_or(if mask.is_some() { 1.0 } else { 0.75 });
                Some(Start { picture: Picture::read(path, width, height)?, mask, strength })
            }
            None if settings.mask.is_some() => return Err(asked("--mask needs a picture that it lies on: -i FILE")),
            None if settings.strength.is_some() => {
                return Err(asked("--strength says how much of a picture is made anew: name it with -i FILE"));
            }
            None => None,
        };
        if model.inpainting() && start.as_ref().is_none_or(|s| s.mask.is_none()) {
            let problem =
                "this is an inpainting model: it needs a picture and where it is made anew, -i FILE --mask FILE";
            return Err(asked(problem));
        }
        let preview = settings.preview.unwrap_or_default();
        if preview == Preview::Tae && model.taesd.is_none() {
            return Err(asked("--preview tae needs the tiny autoencoder: --taesd FILE"));
        }
        let method = settings.sampling_method.unwrap_or_default();
        Ok(Job {
            prompt,
            negative: settings.negative_prompt.clone().unwrap_or_default(),
            width,
            height,
            seed: match settings.seed.unwrap_or(42) {
                -1 => random,
                seed => seed.unsigned_abs(),
            },
            count: settings.batch_count.unwrap_or(1) as usize,
            steps: settings.steps.unwrap_or(if model.turbo { 4 } else { 20 }) as usize,
            guidance: settings.cfg_scale.or(model.guidance).unwrap_or(if model.turbo { 1.0 } else { 7.0 }),
            method,
            schedule: settings.scheduler.unwrap_or(method.default_schedule()),
            eta: settings.eta,
            rng: settings.rng.unwrap_or_default(),
            prediction,
            clip_skip: match settings.clip_skip {
                Some(n) if n > 0 => n as usize,
                _ => usual_clip_skip(model.family),
            },
            start,
            preview: (preview, settings.preview_interval.unwrap_or(1) as usize),
            split: Split::of(settings)?,
            notes,
        })
    }

    /// How often the diffusion model looks at a latent to make one picture.
    pub fn looks(&self) -> usize {
        let strength = self.start.as_ref().map_or(1.0, |start| start.strength);
        let steps = (self.steps as f64 * strength) as usize;
        // Heun looks twice, but in its last step.
        if self.method == Method::Heun { (2 * steps).saturating_sub(1) } else { steps }
    }

    /// The text that webui keeps inside a picture, from which the picture can be made again.
    pub fn parameters(&self, seed: u64, model: &Model) -> String {
        let mut text = self.prompt.clone();
        if !self.negative.is_empty() {
            text += &format!("\nNegative prompt: {}", self.negative);
        }
        let (w, h) = (self.width, self.height);
        text += &format!(
            "\nSteps: {}, Sampler: {}, Schedule type: {}, CFG scale: {}, Seed: {seed}, Size: {w}x{h}, Model: {}, Model hash: {}",
            self.steps,
            self.method,
            self.schedule,
            self.guidance,
            model.title,
            model.fingerprint()
        );
        if let Some(start) = &self.start {
            text += &format!(", Denoising strength: {}", start.strength);
        }
        if let Some(eta) = self.eta {
            text += &format!(", Eta: {eta}");
        }
        let rng = if self.rng == NoiseKind::Cuda { "GPU" } else { "CPU" };
        text + &format!(", Clip skip: {}, RNG: {rng}, Version: Impasto {}", self.clip_skip, env!("CARGO_PKG_VERSION"))
    }
}
