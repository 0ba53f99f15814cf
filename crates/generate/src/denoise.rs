//! The denoiser with its texts: the picture that it sees in a noisy latent.

use std::sync::Arc;

use impasto_graph::HostTensor;
use impasto_model::{Condition, LatentShape, Levels, Model, NetworkId, NoisyLatent, Pipeline, RunOptions};

use crate::conditioning::Lengths;
use crate::module::{Module, built};
use crate::place::{Bounds, Build, Place};
use crate::{GenerateError, Job};

/// The denoiser, and all that it reads besides the latent.
pub(crate) struct Denoiser {
    pub module: Module,
    /// Texts in one pass: with a negative prompt 2, or 1 where 2 do not fit.
    batch: usize,
    /// The prompt, then where it is read the negative prompt.
    conditions: Vec<Condition>,
    pipeline: Arc<dyn Pipeline>,
    options: RunOptions,
    pub levels: Levels,
    latent: LatentShape,
}

/// The denoiser as it fits a place, and how many texts it reads at once there.
fn fitted(
    model: &Model,
    place: &Place,
    lengths: &Lengths,
    latent: LatentShape,
) -> Result<(Module, usize), GenerateError> {
    let (pipeline, tokens) = (&model.pipeline, &lengths.tokens());
    // Both texts in one pass where that fits: the weights are read once. Then one by one, then in bands.
    let together = lengths.texts > 1 && pipeline.texts_together();
    let batches = if together { vec![lengths.texts, 1] } else { vec![1] };
    let build = |batch: usize| move |numbers| pipeline.denoiser(batch, latent, tokens, numbers);
    let builds: Vec<_> = batches.iter().map(|&batch| build(batch)).collect();
    let builds: Vec<&Build> = builds.iter().map(|build| build as &Build).collect();
    let shape = format!("{latent:?} {tokens:?} {batches:?}");
    let (module, choice) = Module::new(NetworkId::Denoiser, model, place, Bounds::EXACT, shape, &builds)?;
    Ok((module, batches[choice]))
}

impl Denoiser {
    /// Plan the denoiser; nothing is loaded yet.
    pub fn plan(job: &Job, model: &Model, place: &Place, lengths: &Lengths) -> Result<Denoiser, GenerateError> {
        let latent = model.pipeline.latent_shape([job.height, job.width]);
        let (module, batch) = fitted(model, place, lengths, latent)?;
        let levels = model.pipeline.levels(latent, job.steps, job.flow_shift);
        let (pipeline, options) = (model.pipeline.clone(), job.options());
        Ok(Denoiser { module, batch, conditions: vec![], pipeline, options, levels, latent })
    }

    /// Plan it anew for another place; its conditions stay.
    pub fn put(&mut self, model: &Model, place: &Place, lengths: &Lengths) -> Result<(), GenerateError> {
        (self.module, self.batch) = fitted(model, place, lengths, self.latent)?;
        Ok(())
    }

    /// How often the module runs for one look at a latent.
    pub fn passes(&self, lengths: &Lengths) -> usize {
        lengths.texts.div_ceil(self.batch)
    }

    /// What is to be shown: the texts, encoded.
    pub fn set_conditioning(&mut self, conditions: Vec<Condition>) {
        self.conditions = conditions;
    }

    /// The picture that the denoiser sees in `x (channels, height, width)`, which has noise of level `sigma`. `extra` are further channels, of
    /// inpainting.
    pub fn denoise(&mut self, x: &[f32], sigma: f32, extra: Option<&[f32]>) -> Result<Vec<f32>, GenerateError> {
        let noisy = NoisyLatent { values: x, shape: self.latent, sigma, extra };
        let mut found: Vec<Vec<f32>> = vec![];
        for conditions in self.conditions.chunks(self.batch) {
            let inputs = self.pipeline.denoiser_inputs(&noisy, conditions, &self.options);
            let inputs = inputs.map_err(built(NetworkId::Denoiser))?;
            let inputs: Vec<(&str, &HostTensor)> = inputs.iter().map(|(name, tensor)| (*name, tensor)).collect();
            let outputs = self.module.run(&inputs)?;
            found.extend(outputs.first().map_or(vec![], |output| self.pipeline.predictions(output, self.latent)));
        }
        let guided = match &found[..] {
            [prompt, negative] => self.pipeline.guide([prompt, negative], self.latent, self.options.guidance),
            _ => found.concat(),
        };
        Ok(self.options.prediction.denoised(x, sigma, &guided))
    }
}
