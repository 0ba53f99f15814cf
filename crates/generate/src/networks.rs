//! The networks of a run behind the text encoders: planned together, loaded when they are needed, given back when memory is needed for
//! others.

use impasto_model::Model;

use crate::autoencoder::Autoencoder;
use crate::conditioning::{Lengths, Texts};
use crate::denoise::Denoiser;
use crate::module::{Module, load};
use crate::phases::{self, Phases};
use crate::picture::Picture;
use crate::pipeline::Watcher;
use crate::place::{DevicePeak, Placement};
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
    pub fn plan(job: &Job, model: &Model, places: &Placement, lengths: &Lengths) -> Result<Networks, GenerateError> {
        let autoencoder = Autoencoder::plan(job, model, &places.vae)?;
        let denoiser = Denoiser::plan(job, model, &places.diffusion, lengths, autoencoder.latent)?;
        let both_fit = phases::both_fit(&denoiser.module, &autoencoder.decoder);
        Ok(Networks { denoiser, autoencoder, both_fit, colours: preview::colours(model) })
    }

    /// What to tell the user of how they are split.
    pub fn notes(&self) -> Vec<String> {
        self.denoiser.module.note().into_iter().chain(self.autoencoder.notes()).collect()
    }

    /// Open their devices.
    pub fn open(&mut self) -> Result<(), GenerateError> {
        let Networks { denoiser, autoencoder, .. } = self;
        let modules = [&mut denoiser.module, &mut autoencoder.decoder].into_iter().chain(&mut autoencoder.encoder);
        modules.into_iter().try_for_each(Module::open)
    }

    /// The most that each device will hold at once, with the text encoders.
    pub fn peaks(&self, texts: &Texts, places: &Placement) -> Vec<DevicePeak> {
        let phases = Phases {
            before: texts.modules().chain(&self.autoencoder.encoder).collect(),
            diffusion: Some(&self.denoiser.module),
            decoder: Some(&self.autoencoder.decoder),
        };
        phases.peaks(places)
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
