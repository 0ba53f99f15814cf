//! The diffusion model with its texts: what it takes for the picture behind the noise.

use std::sync::Arc;

use impasto_graph::HostTensor;
use impasto_model::{Model, unet};

use crate::conditioning::{Condition, Lengths, added};
use crate::latent::{LatentShape, channels_first, channels_last};
use crate::module::{Module, built};
use crate::place::{Bounds, Build, Place};
use crate::sampling::{NoiseLevels, Prediction, Training};
use crate::{GenerateError, Job};

/// The diffusion model, and all that it is told besides the latent.
pub(crate) struct Denoiser {
    pub module: Module,
    /// Texts in one pass: with guidance 2, or 1 where 2 do not fit.
    batch: usize,
    /// The prompt, then for guidance the negative prompt.
    texts: Vec<Condition>,
    /// What XL is told besides, for each of the texts.
    added: Vec<Vec<f32>>,
    /// How wide that is, and the size of the picture, which it tells.
    added_width: Option<usize>,
    picture: [usize; 2],
    guidance: f32,
    prediction: Prediction,
    pub levels: NoiseLevels,
    latent: LatentShape,
}

/// The diffusion model as it fits a place, and how many texts it reads at once there.
fn fitted(
    model: &Model,
    place: &Place,
    lengths: &Lengths,
    latent: LatentShape,
) -> Result<(Module, usize), GenerateError> {
    let config = &model.unet.config;
    let (size, tokens) = ([latent.height, latent.width], lengths.tokens(model));
    let source = Arc::new(model.unet.clone());
    // Both texts in one pass where that fits: the weights are read once. Then one by one, then in bands.
    let batches = if lengths.texts > 1 { vec![lengths.texts, 1] } else { vec![1] };
    let build = |batch: usize| move |numbers| unet(config, batch, size, tokens, numbers);
    let builds: Vec<_> = batches.iter().map(|&batch| build(batch)).collect();
    let builds: Vec<&Build> = builds.iter().map(|build| build as &Build).collect();
    let (module, choice) = Module::new("diffusion", place, source, model.unet.storage(), Bounds::EXACT, &builds)?;
    Ok((module, batches[choice]))
}

impl Denoiser {
    /// Plan the diffusion model; nothing is loaded yet.
    pub fn plan(
        job: &Job,
        model: &Model,
        place: &Place,
        lengths: &Lengths,
        latent: LatentShape,
    ) -> Result<Denoiser, GenerateError> {
        let config = &model.unet.config;
        if config.out_channels != latent.channels {
            return Err(GenerateError::Asked(format!(
                "the diffusion model makes latents of {} channels and the autoencoder reads {}: they do not belong together",
                config.out_channels, latent.channels
            )));
        }
        let (module, batch) = fitted(model, place, lengths, latent)?;
        Ok(Denoiser {
            module,
            batch,
            texts: vec![],
            added: vec![],
            added_width: config.added,
            picture: [job.height, job.width],
            guidance: job.guidance,
            prediction: job.prediction,
            levels: NoiseLevels::new(&Training { zero_terminal_snr: model.zero_snr, ..Training::default() })?,
            latent,
        })
    }

    /// Plan it anew for another place; what it was told it still knows.
    pub fn put(&mut self, model: &Model, place: &Place, lengths: &Lengths) -> Result<(), GenerateError> {
        (self.module, self.batch) = fitted(model, place, lengths, self.latent)?;
        Ok(())
    }

    /// How often the module runs for one look at a latent.
    pub fn passes(&self, lengths: &Lengths) -> usize {
        lengths.texts.div_ceil(self.batch)
    }

    /// What is to be shown: the texts, encoded.
    pub fn hear(&mut self, texts: Vec<Condition>) {
        let pooled = texts.iter().map(|text| text.pooled.as_deref().unwrap_or_default());
        let told = |width| pooled.map(|pooled| added(pooled, width, self.picture)).collect();
        self.added = self.added_width.map_or(vec![], told);
        self.texts = texts;
    }

    /// What the diffusion model takes for the picture in `x (channels, height, width)`, which has noise of deviation `sigma` on it.
    /// `extra` are further channels, of inpainting.
    pub fn denoise(&mut self, x: &[f32], sigma: f32, extra: Option<&[f32]>) -> Result<Vec<f32>, GenerateError> {
        let mut seen = self.prediction.input(x, sigma);
        seen.extend(extra.unwrap_or_default());
        let channels = seen.len() / self.latent.area();
        let seen = channels_last(&seen, channels);
        let time = self.levels.timestep(sigma);
        let mut found: Vec<Vec<f32>> = vec![];
        for (i, texts) in self.texts.chunks(self.batch).enumerate() {
            let (n, tokens, LatentShape { height, width, .. }) = (texts.len(), texts[0].tokens, self.latent);
            let context: Vec<f32> = texts.iter().flat_map(|t| t.context.iter().copied()).collect();
            let tensor = |shape: &[usize], data| HostTensor::f32(shape, data).map_err(built("diffusion"));
            let latent = tensor(&[n, height, width, channels], seen.repeat(n))?;
            let time = tensor(&[n], vec![time; n])?;
            let context = tensor(&[n, tokens, context.len() / n / tokens], context)?;
            let mut inputs = vec![("latent", &latent), ("time", &time), ("context", &context)];
            let added = match self.added.get(i * self.batch..i * self.batch + n) {
                Some(rows) => Some(tensor(&[n, rows[0].len()], rows.concat())?),
                None => None,
            };
            inputs.extend(added.as_ref().map(|a| ("added", a)));
            let output = self.module.run(&inputs)?[0].to_f32();
            found.extend(output.chunks_exact(self.latent.len()).map(|one| channels_first(one, self.latent.channels)));
        }
        let guided = match &found[..] {
            [with, without] => {
                with.iter().zip(without).map(|(with, without)| without + self.guidance * (with - without)).collect()
            }
            _ => found.concat(),
        };
        Ok(self.prediction.denoised(x, sigma, &guided))
    }
}
