//! One run, decided: what was asked for, and where nothing was, what suits the model.

use std::path::PathBuf;
use std::sync::Arc;

use impasto_model::{ChangedModel, Levels, Model, NetworkId, Pipeline, Prediction, RunOptions};

use crate::loras::AskedLoras;
use crate::picture::Picture;
use crate::place::Request;
use crate::run_files::RunFiles;
use crate::sampling::{Method, Schedule, steps_taken};
use crate::settings::{LoraChoices, Preview, Settings};
use crate::{GenerateError, NoiseKind, Run, SavedRun, Split};

/// Everything that a run needs to know, and the model that it needs.
#[derive(Clone)]
pub struct Job {
    /// The model.
    pub model: Arc<Model>,
    /// Where modules are to compute and keep their weights.
    pub request: Request,
    /// Where the run stands that it resumes.
    pub resume: Option<Run>,
    /// Measure where the time goes.
    pub profile: bool,
    /// Which model it is, without LoRAs.
    fingerprint: String,
    /// Which LoRAs change it, and how much.
    pub(crate) lora_fingerprint: Option<String>,
    /// When they do, as the setting has it.
    lora_mode: Option<&'static str>,
    /// The LoRAs that the prompt does not name.
    loras_by_flag: LoraChoices,
    /// What was asked for.
    settings: Settings,
    /// Whether pictures, and the state of the run, are written to files.
    writes: bool,
    /// The file of the picture that a resumed run was making.
    resumed_output: Option<PathBuf>,
    /// What to show, without tags of LoRAs.
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
    /// The guidance that the diffusion model is told, where it reads one.
    pub distilled_guidance: Option<f32>,
    /// How far noise levels are moved towards noise, where that is asked for.
    pub flow_shift: Option<f32>,
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
    /// Host memory that its pictures take at most, beside what networks take: one that was decoded, in floats, twice where it comes in
    /// parts, then in bytes, packed to be written; and the one that it begins with.
    pub(crate) fn picture_bytes(&self) -> u64 {
        const DECODED: u64 = 2 * 3 * 4 + 3 + 2 * 3;
        const BEGUN: u64 = 3 + 1 + 2 * 3 * 4;
        let each = DECODED + if self.start.is_some() { BEGUN } else { 0 };
        each.saturating_mul((self.width as u64).saturating_mul(self.height as u64))
    }

    /// Decides everything, or refuses what cannot be. Reads the pictures that the run begins with. Pictures are given to who watches the run.
    pub fn new(settings: &Settings, model: &Arc<Model>) -> Result<Job, GenerateError> {
        let asked = |problem: &str| GenerateError::Asked(problem.into());
        let prompt = settings.prompt.clone().ok_or_else(|| asked("no prompt: say what to show, with -p TEXT"))?;
        let mut notes = vec![];
        let pipeline = &*model.pipeline;
        let defaults = pipeline.defaults();

        // A picture to begin with has its own size, unless another one is asked for.
        let given = settings.init_img.as_deref().map(Picture::size_of).transpose()?;
        let [usual_height, usual_width] = defaults.size;
        let wanted =
            [(settings.width, given.map(|g| g.0), usual_width), (settings.height, given.map(|g| g.1), usual_height)]
                .map(|(asked, given, usual)| asked.map(|n| n as usize).or(given).unwrap_or(usual));
        let step = pipeline.latents().multiple;
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
        if pipeline.inpaints() && start.as_ref().is_none_or(|s| s.mask.is_none()) {
            let problem =
                "this is an inpainting model: it needs a picture and where it is made anew, -i FILE --mask FILE";
            return Err(asked(problem));
        }
        let preview = settings.preview.unwrap_or_default();
        if preview == Preview::Tae && model.network(NetworkId::TinyDecoder).is_none() {
            return Err(asked("--preview tae needs the tiny autoencoder: --taesd FILE"));
        }
        let steps = settings.steps.map_or(defaults.steps, |n| n as usize);
        let (method, schedule, prediction) = sampling(settings, model, [height, width], steps)?;
        let clip_skip = clip_skip(settings, pipeline)?;
        let count = settings.batch_count.unwrap_or(1) as usize;
        let seed = seed_of(settings, count)?;
        let asked_loras = AskedLoras::new(settings, &prompt)?;
        let by_flag = names_of(&asked_loras.files[..asked_loras.by_flag]);
        let (changed, of_loras) = asked_loras.applied(model, settings.lora_apply_mode.unwrap_or_default())?;
        notes.extend(of_loras);
        let mut decided = settings.clone();
        if let Some(changed) = &changed {
            // What auto has chosen stays so when the run is resumed or the picture is made again.
            decided.set("lora-apply-mode", lora_mode(changed))?;
        }
        Ok(Job {
            model: changed.as_ref().map_or(model, |changed| &changed.model).clone(),
            request: Request::new(settings)?,
            resume: None,
            profile: settings.profile == Some(true),
            fingerprint: model.fingerprint()?,
            lora_mode: changed.as_deref().map(lora_mode),
            lora_fingerprint: changed.map(|changed| changed.fingerprint.clone()),
            loras_by_flag: by_flag,
            settings: decided,
            writes: false,
            resumed_output: None,
            prompt: asked_loras.prompt,
            negative: settings.negative_prompt.clone().unwrap_or_default(),
            width,
            height,
            seed,
            count,
            steps,
            guidance: settings.cfg_scale.unwrap_or(defaults.guidance),
            distilled_guidance: distilled_guidance(settings, pipeline)?,
            flow_shift: settings.flow_shift,
            method,
            schedule,
            eta: settings.eta,
            rng: settings.rng.unwrap_or_default(),
            prediction,
            clip_skip,
            start,
            preview: (preview, settings.preview_interval.unwrap_or(1) as usize),
            split: Split::of(settings)?,
            notes,
        })
    }

    /// The rest of a run that was saved, with these settings over its own.
    pub fn resumed(saved: SavedRun, flags: &Settings, model: &Arc<Model>) -> Result<Job, GenerateError> {
        let (theirs, ours) = (saved.fingerprint.split('+').next().unwrap_or_default(), model.fingerprint()?);
        if theirs != ours {
            return Err(GenerateError::Asked(format!(
                "the run was made by another model ({theirs}) than '{}' ({ours}): its file has changed, or name the right one with -m FILE",
                model.title
            )));
        }
        let job = Job::new(&flags.over(saved.settings()?), model)?;
        if saved.fingerprint != job.saved_fingerprint() {
            return Err(GenerateError::Asked(
                "the run was made with other LoRAs: their files have changed, or name the right ones with --lora FILE"
                    .into(),
            ));
        }
        if saved.run.picture >= job.count {
            let (picture, count) = (saved.run.picture + 1, job.count);
            return Err(GenerateError::Asked(format!(
                "the run is at picture {picture} of {count}: its file was changed, or -b is less than it was"
            )));
        }
        let resumed_output = flags.output.is_none().then(|| saved.output.clone());
        Ok(Job { seed: saved.run.seed, resume: Some(saved.run), resumed_output, ..job })
    }

    /// The same job, with its pictures written to files, and the state of the run beside them until they are done.
    pub fn written(self) -> Job {
        Job { writes: true, ..self }
    }

    /// The files that it writes. Refuses at once what could not be written in the end.
    pub(crate) fn files(&self) -> Result<Option<RunFiles>, GenerateError> {
        if !self.writes {
            return Ok(None);
        }
        let fingerprint = self.saved_fingerprint();
        match &self.resume {
            Some(_) => RunFiles::resumed(&self.settings, fingerprint, self.resumed_output.clone()).map(Some),
            None => RunFiles::new(&self.settings, fingerprint, self.count).map(Some),
        }
    }

    /// Which model and LoRAs it is made with.
    fn saved_fingerprint(&self) -> String {
        let loras = self.lora_fingerprint.iter().map(|loras| format!("+{loras}"));
        self.fingerprint.clone() + &loras.collect::<String>()
    }

    /// What it asks of the model's pipeline.
    pub(crate) fn options(&self) -> RunOptions {
        let Job { height, width, guidance, distilled_guidance, clip_skip, prediction, .. } = *self;
        let distilled_guidance = distilled_guidance.unwrap_or(1.0);
        RunOptions { size: [height, width], guidance, distilled_guidance, clip_skip, prediction }
    }

    /// How often the diffusion model looks at a latent to make one picture.
    pub fn looks(&self) -> usize {
        let strength = self.start.as_ref().map_or(1.0, |start| start.strength);
        let steps = steps_taken(self.prediction, self.steps, strength);
        // Heun looks twice, but in its last step.
        if self.method == Method::Heun { (2 * steps).saturating_sub(1) } else { steps }
    }

    /// The text that webui keeps inside a picture, from which the picture can be made again.
    pub fn parameters(&self, seed: u64) -> String {
        let model = &self.model;
        // With its tags, so that the picture can be made again.
        let mut text = self.settings.prompt.clone().unwrap_or_default();
        if !self.negative.is_empty() {
            text += &format!("\nNegative prompt: {}", self.negative);
        }
        let (w, h) = (self.width, self.height);
        text += &format!(
            "\nSteps: {}, Sampler: {}, Schedule type: {}, CFG scale: {}, Seed: {seed}, Size: {w}x{h}, Model: {}, Model hash: {}",
            self.steps,
            self.method.title(),
            self.schedule,
            self.guidance,
            model.title,
            self.fingerprint
        );
        if let Some(start) = &self.start {
            text += &format!(", Denoising strength: {}", start.strength);
        }
        if let Some(guidance) = self.distilled_guidance {
            text += &format!(", Distilled CFG Scale: {guidance}");
        }
        if let Some(shift) = self.flow_shift {
            text += &format!(", Flow shift: {shift}");
        }
        if let Some(eta) = self.eta {
            text += &format!(", Eta: {eta}");
        }
        if !self.loras_by_flag.0.is_empty() {
            text += &format!(", Lora: {}", self.loras_by_flag);
        }
        if let Some(loras) = &self.lora_fingerprint {
            text += &format!(", Lora hash: {loras}");
        }
        if let Some(mode) = self.lora_mode {
            text += &format!(", Lora mode: {mode}");
        }
        let rng = if self.rng == NoiseKind::Cuda { "GPU" } else { "CPU" };
        let version = env!("CARGO_PKG_VERSION");
        text + &format!(", Clip skip: {}, RNG: {rng}, Version: Impasto {version}", self.clip_skip)
    }
}

/// The guidance that the denoiser is told, where it reads one; refused where it reads none.
fn distilled_guidance(settings: &Settings, pipeline: &dyn Pipeline) -> Result<Option<f32>, GenerateError> {
    let usual = pipeline.defaults().distilled_guidance;
    match settings.guidance {
        Some(_) if usual.is_none() => {
            let problem = format!("{} is told no guidance: leave out --guidance, or use --cfg-scale", pipeline.name());
            Err(GenerateError::Asked(problem))
        }
        asked => Ok(asked.or(usual)),
    }
}

/// When LoRAs change a model, as the setting has it.
fn lora_mode(changed: &ChangedModel) -> &'static str {
    if changed.as_branches { "at_runtime" } else { "immediately" }
}

/// The first seed of so many; what settings say must be able to say the last one too.
fn seed_of(settings: &Settings, count: usize) -> Result<u64, GenerateError> {
    match u64::try_from(settings.seed.unwrap_or(42)) {
        Err(_) => Ok(random_seed()),
        Ok(seed) if seed + (count as u64 - 1) <= i64::MAX as u64 => Ok(seed),
        Ok(seed) => Err(GenerateError::Asked(format!(
            "--seed {seed} has no {} seeds after it; the last one is {}",
            count - 1,
            i64::MAX
        ))),
    }
}

/// The names of files without their folders, which say more of a machine than of a picture.
fn names_of(loras: &[(PathBuf, f32)]) -> LoraChoices {
    let name = |path: &PathBuf| path.file_name().map_or_else(|| path.clone(), PathBuf::from);
    LoraChoices(loras.iter().map(|(path, strength)| (name(path), *strength)).collect())
}

/// Bits that nobody knows beforehand, as many as webui's seeds have.
fn random_seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(std::process::id()) >> 32
}

/// The layer of the text encoders, counted from the end: as asked for, where they have so many.
fn clip_skip(settings: &Settings, pipeline: &dyn Pipeline) -> Result<usize, GenerateError> {
    let asked = settings.clip_skip.and_then(|n| usize::try_from(n).ok()).filter(|n| *n > 0);
    let most = pipeline.clip_layers();
    match asked.unwrap_or(pipeline.defaults().clip_skip) {
        n if asked.is_some() && n > most => {
            let problem = format!("--clip-skip {n}: this model's text encoder has {most} layers; choose 1 to {most}");
            Err(GenerateError::Asked(problem))
        }
        n => Ok(n),
    }
}

/// How noise is taken away: as asked for, where that can be done with this model.
fn sampling(
    settings: &Settings,
    model: &Model,
    size: [usize; 2],
    steps: usize,
) -> Result<(Method, Schedule, Prediction), GenerateError> {
    let (pipeline, refused) = (&*model.pipeline, |problem: String| Err(GenerateError::Asked(problem)));
    let method = match settings.sampling_method {
        Some(method) => method,
        None => pipeline.defaults().method.parse()?,
    };
    // A method that is made for a schedule keeps it, whatever the model's files say.
    let of_model = pipeline.defaults().schedule.filter(|_| method.default_schedule() == Schedule::default());
    let schedule = match (settings.scheduler, of_model) {
        (Some(asked), _) => asked,
        (None, Some(name)) => name.parse()?,
        (None, None) => method.default_schedule(),
    };
    let prediction = settings.prediction.unwrap_or(pipeline.prediction());
    let flow = pipeline.prediction() == Prediction::Flow;
    if flow && prediction != Prediction::Flow {
        return refused(
            "this model was trained by flow matching and predicts nothing else: leave out --prediction".into(),
        );
    }
    if flow && !method.solves_flow() {
        let others: Vec<&str> = Method::ALL.iter().filter(|m| m.solves_flow()).map(|m| m.name()).collect();
        return refused(format!("{method} is not for models of flow matching; choose one of {}", others.join(", ")));
    }
    let levels = || pipeline.levels(pipeline.latent_shape(size), steps, settings.flow_shift);
    if schedule != Schedule::Discrete && matches!(levels(), Levels::Fixed(_)) {
        return refused("this model has a schedule of its own: leave out --scheduler".into());
    }
    if settings.flow_shift.is_some() && !flow {
        return refused("--flow-shift is for models of flow matching, and this one is none: leave it out".into());
    }
    Ok((method, schedule, prediction))
}
