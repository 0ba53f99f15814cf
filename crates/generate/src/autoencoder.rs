//! Pictures to latents and back.

use std::sync::Arc;

use impasto_graph::HostTensor;
use impasto_model::{LatentScale, Model, taesd_decoder, vae_decoder, vae_encoder};

use crate::latent::{LatentShape, channels_first, channels_last};
use crate::module::{Module, built, load};
use crate::picture::Picture;
use crate::pipeline::{Event, Watcher, tell};
use crate::place::Place;
use crate::{GenerateError, Job, Noise};

/// The decoder, and where a run begins with a picture the encoder.
pub(crate) struct Autoencoder {
    pub decoder: Module,
    pub encoder: Option<Module>,
    scale: LatentScale,
    /// The decoder is the tiny one, which takes latents as the diffusion model has them.
    tiny: bool,
    pub latent: LatentShape,
    /// Pixels of a picture for one of a latent, along a side.
    factor: usize,
}

/// A picture, encoded: means and standard deviations of its latent, each `(channels, height, width)`, as the diffusion model knows them.
pub(crate) struct Encoded {
    mean: Vec<f32>,
    deviation: Vec<f32>,
}

impl Encoded {
    /// One latent of the many that it may be.
    pub fn draw(&self, noise: &mut Noise) -> Vec<f32> {
        let drawn = noise.draw(self.mean.len());
        self.mean.iter().zip(&self.deviation).zip(drawn).map(|((m, d), n)| m + d * n).collect()
    }
}

impl Autoencoder {
    /// The latents of a job's pictures.
    pub fn latent(job: &Job, model: &Model) -> LatentShape {
        let factor = model.vae.config.factor();
        LatentShape { channels: model.vae.config.latent, height: job.height / factor, width: job.width / factor }
    }

    /// Plan it for the pictures of a job; nothing is loaded yet.
    pub fn plan(job: &Job, model: &Model, place: &Place) -> Result<Autoencoder, GenerateError> {
        let factor = model.vae.config.factor();
        let latent = Autoencoder::latent(job, model);
        let size = [latent.height, latent.width];
        let vae = Arc::new(model.vae.clone());
        let decoder = match &model.taesd {
            Some(part) => {
                let build = |numbers| taesd_decoder(&part.config, 1, size, numbers);
                Module::new("taesd", place, Arc::new(part.clone()), part.storage(), build)?
            }
            None => {
                let build = |numbers| vae_decoder(&model.vae.config, 1, size, numbers);
                Module::new("vae", place, vae.clone(), model.vae.storage(), build)?
            }
        };
        let encoder = match &job.start {
            Some(_) => {
                let build = |numbers| vae_encoder(&model.vae.config, 1, [job.height, job.width], numbers);
                Some(Module::new("vae", place, vae, model.vae.storage(), build)?)
            }
            None => None,
        };
        Ok(Autoencoder { decoder, encoder, scale: model.latent, tiny: model.taesd.is_some(), latent, factor })
    }

    /// The picture of a latent `(channels, height, width)`.
    pub fn decode(&mut self, latent: &[f32], watch: &mut Watcher) -> Result<Picture, GenerateError> {
        load(&mut self.decoder, watch)?;
        let LatentShape { channels, height, width } = self.latent;
        let mut pixels = channels_last(latent, channels);
        if !self.tiny {
            pixels.iter_mut().for_each(|z| *z = *z / self.scale.factor + self.scale.shift);
        }
        let pixels = HostTensor::f32([1, height, width, channels], pixels).map_err(built("vae"))?;
        let picture = self.decoder.run(&[("latent", &pixels)])?[0].to_f32();
        Ok(Picture::from_signed(height * self.factor, width * self.factor, &picture))
    }

    /// The latents of pictures, each `(height, width, 3)` from -1 to 1. The encoder is given back: nobody needs it again.
    pub fn encode(&mut self, pictures: Vec<Vec<f32>>, watch: &mut Watcher) -> Result<Vec<Encoded>, GenerateError> {
        let Some(mut encoder) = self.encoder.take() else { return Ok(vec![]) };
        load(&mut encoder, watch)?;
        tell(watch, Event::Working("encoding the picture"))?;
        let LatentShape { channels, height, width } = self.latent;
        let shape = [1, height * self.factor, width * self.factor, 3];
        let mut encoded = vec![];
        for picture in pictures {
            let picture = HostTensor::f32(shape, picture).map_err(built("vae"))?;
            let moments = channels_first(&encoder.run(&[("picture", &picture)])?[0].to_f32(), 2 * channels);
            let (means, logs) = moments.split_at(self.latent.len());
            let LatentScale { factor, shift } = self.scale;
            encoded.push(Encoded {
                mean: means.iter().map(|m| (m - shift) * factor).collect(),
                deviation: logs.iter().map(|log| (0.5 * log.clamp(-30.0, 20.0)).exp() * factor).collect(),
            });
        }
        Ok(encoded)
    }

    /// A mask of pixels as one of the latent's, 1 where a picture is made anew.
    pub fn latent_mask(&self, mask: &[bool]) -> Vec<f32> {
        let (width, across) = (self.latent.width, self.latent.width * self.factor);
        let at = |i: usize| mask.get((i / width) * self.factor * across + (i % width) * self.factor);
        (0..self.latent.area()).map(|i| f32::from(u8::from(at(i) == Some(&true)))).collect()
    }
}
