//! The networks of a run behind the text encoders: planned together, loaded when they are needed, given back when memory is needed for
//! others.

use std::sync::Arc;

use impasto_backend::Backend;
use impasto_model::Model;

use crate::autoencoder::Autoencoder;
use crate::conditioning::Texts;
use crate::denoise::Denoiser;
use crate::module::load;
use crate::picture::Picture;
use crate::pipeline::Watcher;
use crate::preview;
use crate::settings::Preview;
use crate::{GenerateError, Job};

/// The diffusion model and the autoencoder, for pictures of one size.
pub(crate) struct Networks {
    pub denoiser: Denoiser,
    pub autoencoder: Autoencoder,
    /// Both fit beside each other; else one makes room for the other.
    both_fit: bool,
    /// What a latent looks like without a network.
    colours: Vec<[f32; 3]>,
}

impl Networks {
    /// Plan both; nothing is loaded yet.
    pub fn plan(
        job: &Job,
        model: &Model,
        backend: &Arc<dyn Backend>,
        texts: &Texts,
    ) -> Result<Networks, GenerateError> {
        let autoencoder = Autoencoder::plan(job, model, backend)?;
        let denoiser = Denoiser::plan(job, model, backend, texts, autoencoder.latent)?;
        let both_fit = denoiser.module.bytes() + autoencoder.decoder.bytes() <= backend.limits().memory;
        Ok(Networks { denoiser, autoencoder, both_fit, colours: preview::colours(model) })
    }

    /// Load the diffusion model, if it is not.
    pub fn load_diffusion(&mut self, watch: &mut Watcher) -> Result<(), GenerateError> {
        if !self.both_fit {
            self.autoencoder.decoder.unload();
        }
        load(&mut self.denoiser.module, watch)
    }

    /// The picture of a latent.
    pub fn decode(&mut self, latent: &[f32], watch: &mut Watcher) -> Result<Picture, GenerateError> {
        if !self.both_fit {
            self.denoiser.module.unload();
        }
        self.autoencoder.decode(latent, watch)
    }

    /// What a latent that is not finished looks like.
    pub fn preview(&mut self, how: Preview, latent: &[f32], watch: &mut Watcher) -> Result<Picture, GenerateError> {
        match how {
            Preview::Tae | Preview::Vae => {
                let shown = self.decode(latent, watch)?;
                self.load_diffusion(watch)?;
                Ok(shown)
            }
            Preview::Proj | Preview::None => {
                let shape = self.autoencoder.latent;
                Ok(preview::projection(&self.colours, latent, shape.height, shape.width))
            }
        }
    }
}
