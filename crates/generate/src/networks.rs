//! The networks of a run: planned together, loaded when they are needed, given back when memory is needed for others.

use std::sync::Arc;

use impasto_backend::{Backend, WeightSource};
use impasto_graph::{GraphError, HostTensor, Storage};
use impasto_model::{Family, LatentScale, Model, Numbers, taesd_decoder, unet, vae_decoder, vae_encoder};

use crate::begin::{Encoded, Original};
use crate::conditioning::{Condition, Conditions, added};
use crate::module::Module;
use crate::picture::Picture;
use crate::pipeline::{Event, Watcher, tell};
use crate::preview;
use crate::sampling::{NoiseLevels, Prediction, Training};
use crate::settings::Preview;
use crate::{GenerateError, Job};

/// The element types of a network on a device.
pub(crate) fn numbers(backend: &dyn Backend, storage: Storage) -> Numbers {
    Numbers { storage, activations: backend.activations() }
}

/// Load a module and say how far it is.
pub(crate) fn load(module: &mut Module, watch: &mut Watcher) -> Result<(), GenerateError> {
    let (name, mut failed) = (module.name(), None);
    let loaded = module.load(&mut |done, of| match watch(Event::Loading { module: name, done, of }) {
        Ok(go_on) => go_on,
        Err(error) => {
            failed = Some(error);
            false
        }
    });
    failed.map_or(loaded, Err)
}

/// The modules behind the text encoders, for pictures of one size.
pub(crate) struct Networks {
    diffusion: Module,
    /// Texts in one pass: with guidance 2, or 1 where 2 do not fit.
    batch: usize,
    decoder: Module,
    encoder: Option<Module>,
    /// The decoder is the tiny one, which takes latents as the diffusion model has them.
    tiny: bool,
    /// Everything fits beside each other; else a module makes room for the next.
    all_fit: bool,
    conditions: Conditions,
    guidance: f32,
    /// What XL is told besides, for each of the texts.
    added: Vec<Vec<f32>>,
    /// The picture to begin with, and without what is made anew.
    original: Option<(Vec<f32>, Option<Vec<f32>>)>,
    mask_only: bool,
    family: Family,
    prediction: Prediction,
    pub levels: NoiseLevels,
    pub scale: LatentScale,
    /// Channels, height and width of a latent.
    pub latent: [usize; 3],
    in_channels: usize,
    factor: usize,
}

fn built(module: &'static str) -> impl Fn(GraphError) -> GenerateError {
    move |source| GenerateError::Graph { module, source }
}

impl Networks {
    /// Plan every network; nothing is loaded yet.
    pub fn plan(
        job: &Job,
        model: &Model,
        backend: &Arc<dyn Backend>,
        conditions: Conditions,
    ) -> Result<Networks, GenerateError> {
        let factor = model.vae.config.factor();
        let size = [job.height / factor, job.width / factor];
        let [height, width] = size;
        let tokens = conditions.positive.tokens;
        let source = Arc::new(model.unet.clone()) as Arc<dyn WeightSource>;
        let plan_diffusion = |batch: usize| {
            let graph = unet(&model.unet.config, batch, size, tokens, numbers(&**backend, model.unet.storage()));
            Module::new("diffusion", backend, source.clone(), graph.map_err(built("diffusion"))?)
        };
        let texts = 1 + usize::from(conditions.negative.is_some());
        // Both texts in one pass where that fits: the weights are read once.
        let (diffusion, batch) = match plan_diffusion(texts) {
            Err(GenerateError::Plan { .. }) if texts > 1 => (plan_diffusion(1)?, 1),
            planned => (planned?, texts),
        };

        let vae = Arc::new(model.vae.clone()) as Arc<dyn WeightSource>;
        let vae_numbers = numbers(&**backend, model.vae.storage());
        let decoder = match &model.taesd {
            Some(part) => {
                let graph = taesd_decoder(&part.config, 1, size, numbers(&**backend, part.storage()));
                Module::new("taesd", backend, Arc::new(part.clone()), graph.map_err(built("taesd"))?)?
            }
            None => {
                let graph = vae_decoder(&model.vae.config, 1, size, vae_numbers);
                Module::new("vae", backend, vae.clone(), graph.map_err(built("vae"))?)?
            }
        };
        let encoder = match &job.start {
            Some(_) => {
                let graph = vae_encoder(&model.vae.config, 1, [job.height, job.width], vae_numbers);
                Some(Module::new("vae", backend, vae.clone(), graph.map_err(built("vae"))?)?)
            }
            None => None,
        };
        let in_channels = model.unet.config.in_channels;
        let inpaints = model.inpainting();
        let original = job.start.as_ref().map(|start| {
            let masked = start.mask.as_ref().filter(|_| inpaints).map(|mask| without(&start.picture, mask));
            (start.picture.to_signed(), masked)
        });
        let added = match model.unet.config.added {
            Some(width) => [Some(&conditions.positive), conditions.negative.as_ref()]
                .into_iter()
                .flatten()
                .map(|c| added(c.pooled.as_deref().unwrap_or_default(), width, job))
                .collect(),
            None => vec![],
        };
        let all_fit = diffusion.bytes() + decoder.bytes() <= backend.limits().memory;
        Ok(Networks {
            diffusion,
            batch,
            decoder,
            encoder,
            tiny: model.taesd.is_some(),
            all_fit,
            guidance: job.guidance,
            added,
            mask_only: inpaints && job.start.as_ref().is_some_and(|s| s.strength >= 1.0),
            original,
            family: model.family,
            levels: NoiseLevels::new(&Training { zero_terminal_snr: model.zero_snr, ..Training::default() })?,
            prediction: job.prediction,
            scale: model.latent,
            latent: [model.vae.config.latent, height, width],
            in_channels,
            factor,
            conditions,
        })
    }

    /// Elements of a latent.
    pub fn latent_len(&self) -> usize {
        self.latent.iter().product()
    }

    /// Encode the picture that a run begins with, where it has one.
    pub fn encode_original(&mut self, watch: &mut Watcher) -> Result<Option<Original>, GenerateError> {
        let (Some((picture, masked)), Some(encoder)) = (self.original.take(), &mut self.encoder) else {
            return Ok(None);
        };
        load(encoder, watch)?;
        tell(watch, Event::Working("encoding the picture"))?;
        let channels = self.latent[0];
        let [height, width] = [self.latent[1], self.latent[2]].map(|n| n * self.factor);
        let mut encode = |pixels: Vec<f32>| {
            let pixels = HostTensor::f32([1, height, width, 3], pixels).map_err(built("vae"))?;
            let moments = encoder.run(&[("picture", &pixels)])?[0].to_f32();
            // (height, width, means and log variances)
            let plane = |from: usize, f: fn(f32) -> f32| -> Vec<f32> {
                (0..channels)
                    .flat_map(|c| moments.iter().skip(from + c).step_by(2 * channels).map(move |&v| f(v)))
                    .collect()
            };
            let deviation = plane(channels, |log| (0.5 * log.clamp(-30.0, 20.0)).exp());
            Ok::<_, GenerateError>(Encoded { mean: plane(0, |m| m), deviation })
        };
        let original = Original {
            whole: if self.mask_only { None } else { Some(encode(picture)?) },
            masked: masked.map(&mut encode).transpose()?,
        };
        self.encoder = None;
        Ok(Some(original))
    }

    /// A mask of pixels as one of the latent's, 1 where a picture is made anew.
    pub fn latent_mask(&self, mask: &[bool]) -> Vec<f32> {
        let [_, height, width] = self.latent;
        let across = width * self.factor;
        let at = |i: usize| mask.get((i / width) * self.factor * across + (i % width) * self.factor);
        (0..height * width).map(|i| f32::from(u8::from(at(i) == Some(&true)))).collect()
    }

    /// Load the diffusion model, if it is not.
    pub fn load_diffusion(&mut self, watch: &mut Watcher) -> Result<(), GenerateError> {
        if !self.all_fit {
            self.decoder.unload();
        }
        load(&mut self.diffusion, watch)
    }

    /// What the diffusion model takes for the picture in `x`, which has noise of deviation `sigma` on it.
    pub fn denoise(&mut self, x: &[f32], sigma: f32, extra: Option<&[f32]>) -> Result<Vec<f32>, GenerateError> {
        let conditions = [Some(&self.conditions.positive), self.conditions.negative.as_ref()];
        let conditions: Vec<&Condition> = conditions.into_iter().flatten().collect();
        let shrink = self.prediction.input_scale(sigma);
        let channels = self.in_channels;
        let [own, height, width] = self.latent;
        let area = height * width;
        let value = |c: usize, pixel: usize| match c {
            _ if c < own => x[c * area + pixel] * shrink,
            _ => extra.and_then(|e| e.get((c - own) * area + pixel)).copied().unwrap_or(0.0),
        };
        // (height, width, channels)
        let seen: Vec<f32> = (0..area).flat_map(|pixel| (0..channels).map(move |c| value(c, pixel))).collect();
        let time = self.levels.timestep(sigma);
        let mut found = vec![];
        for (i, some) in conditions.chunks(self.batch).enumerate() {
            let (n, tokens) = (some.len(), some[0].tokens);
            let context: Vec<f32> = some.iter().flat_map(|c| c.context.iter().copied()).collect();
            let tensor = |shape: Vec<usize>, data| HostTensor::f32(shape, data).map_err(built("diffusion"));
            let latent = tensor(vec![n, height, width, channels], seen.repeat(n))?;
            let time = tensor(vec![n], vec![time; n])?;
            let context = tensor(vec![n, tokens, context.len() / n / tokens], context)?;
            let mut inputs = vec![("latent", &latent), ("time", &time), ("context", &context)];
            let added = match self.added.is_empty() {
                true => None,
                false => {
                    let rows = &self.added[i * self.batch..][..n];
                    Some(tensor(vec![n, rows[0].len()], rows.concat())?)
                }
            };
            inputs.extend(added.as_ref().map(|a| ("added", a)));
            found.extend(self.diffusion.run(&inputs)?[0].to_f32());
        }
        // (texts, height, width, channels) to (channels, height, width)
        let plane = |i: usize| {
            let one = &found[i * area * own..][..area * own];
            (0..own).flat_map(move |c| (0..area).map(move |pixel| one[pixel * own + c]))
        };
        let guided: Vec<f32> = match conditions.len() {
            1 => plane(0).collect(),
            _ => plane(0).zip(plane(1)).map(|(with, without)| without + self.guidance * (with - without)).collect(),
        };
        Ok(self.prediction.denoised(x, sigma, &guided))
    }

    /// The picture of a latent.
    pub fn decode(&mut self, latent: &[f32], watch: &mut Watcher) -> Result<Picture, GenerateError> {
        if !self.all_fit {
            self.diffusion.unload();
        }
        load(&mut self.decoder, watch)?;
        let [channels, height, width] = self.latent;
        // (channels, height, width) to (height, width, channels)
        let area = height * width;
        let pixels = (0..area).flat_map(|pixel| (0..channels).map(move |c| latent[c * area + pixel]));
        let scaled = pixels.map(|z| if self.tiny { z } else { z / self.scale.factor + self.scale.shift }).collect();
        let scaled = HostTensor::f32([1, height, width, channels], scaled).map_err(built("vae"))?;
        let picture = self.decoder.run(&[("latent", &scaled)])?[0].to_f32();
        Ok(Picture::from_signed(height * self.factor, width * self.factor, &picture))
    }

    /// What a latent that is not finished looks like.
    pub fn preview(&mut self, how: Preview, latent: &[f32], watch: &mut Watcher) -> Result<Picture, GenerateError> {
        let [_, height, width] = self.latent;
        match how {
            Preview::Tae | Preview::Vae => {
                let shown = self.decode(latent, watch)?;
                self.load_diffusion(watch)?;
                Ok(shown)
            }
            _ => Ok(preview::projection(self.family, latent, height, width)),
        }
    }
}

/// A picture with grey, which is 0 to the encoder, where it is made anew.
fn without(picture: &Picture, mask: &[bool]) -> Vec<f32> {
    let pixels = picture.to_signed();
    let kept = |i: usize| mask.get(i / 3) != Some(&true);
    pixels.into_iter().enumerate().map(|(i, v)| if kept(i) { v } else { 0.0 }).collect()
}
