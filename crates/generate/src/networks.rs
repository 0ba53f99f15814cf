//! The networks of a run: planned together, loaded when they are needed, given back when memory is needed for others.

use impasto_model::{Condition, Model};

use crate::autoencoder::Autoencoder;
use crate::begin::Original;
use crate::conditioning::{Texts, TokenizedPrompts};
use crate::denoise::Denoiser;
use crate::module::{Module, load};
use crate::phases::{self, Phases};
use crate::picture::Picture;
use crate::pipeline::Watcher;
use crate::place::{DevicePeak, ModuleName, Place, Placement};
use crate::preview;
use crate::settings::Preview;
use crate::{GenerateError, Job};

/// The networks of a run, each until nobody needs it any more.
pub(crate) struct Networks<'a> {
    pub job: &'a Job,
    pub model: &'a Model,
    pub places: Placement,
    /// What the diffusion model is told, and all before it: none of this to decode only.
    prompts: Option<&'a TokenizedPrompts>,
    texts: Option<Texts>,
    denoiser: Option<Denoiser>,
    pub autoencoder: Autoencoder,
    /// Diffusion model and decoder fit beside each other; else one makes room for the other.
    both_fit: bool,
}

impl<'a> Networks<'a> {
    /// Plan all of them, or without prompts the decoder only; nothing is loaded yet, and more than a device has is refused.
    pub fn plan(
        job: &'a Job,
        model: &'a Model,
        places: &Placement,
        prompts: Option<&'a TokenizedPrompts>,
    ) -> Result<Networks<'a>, GenerateError> {
        let encodes = prompts.is_some() && job.start.is_some();
        let (texts, denoiser) = match prompts {
            Some(prompts) => {
                let texts = Texts::plan(job, model, &places.te, prompts)?;
                (Some(texts), Some(Denoiser::plan(job, model, &places.diffusion, &prompts.lengths())?))
            }
            None => (None, None),
        };
        let autoencoder = Autoencoder::plan(job, model, &places.vae, encodes)?;
        let places = places.clone();
        let mut networks = Networks { job, model, places, prompts, texts, denoiser, autoencoder, both_fit: false };
        networks.check()?;
        Ok(networks)
    }

    /// Plan a module anew for another place, and open that.
    pub fn put(&mut self, module: ModuleName, place: Place) -> Result<(), GenerateError> {
        let Networks { job, model, prompts, .. } = self;
        self.places.put(module, place.clone());
        match (module, prompts) {
            (ModuleName::Te, Some(prompts)) if self.texts.is_some() => {
                self.texts = Some(Texts::plan(job, model, &place, prompts)?);
            }
            (ModuleName::Diffusion, Some(prompts)) => {
                if let Some(denoiser) = &mut self.denoiser {
                    denoiser.put(model, &place, &prompts.lengths())?;
                }
            }
            (ModuleName::Vae, _) => self.autoencoder.put(model, &place)?,
            _ => {}
        }
        self.check()?;
        self.modules_mut().filter(|(of, _)| *of == module).try_for_each(|(_, module)| module.open())
    }

    /// Who fits beside whom, and whether every device has what it will have to hold.
    fn check(&mut self) -> Result<(), GenerateError> {
        let diffusion = self.denoiser.as_ref().map(|denoiser| &denoiser.module);
        self.both_fit = diffusion.is_some_and(|diffusion| phases::both_fit(diffusion, &self.autoencoder.decoder));
        let texts = self.texts.iter().flat_map(Texts::modules);
        let before = texts.chain(&self.autoencoder.encoder).collect();
        let phases = Phases { before, diffusion, decoder: Some(&self.autoencoder.decoder) };
        phases.peaks(&self.places).iter().try_for_each(DevicePeak::check)
    }

    /// The modules that are still needed, each under the name by which it is placed.
    pub fn modules(&self) -> impl Iterator<Item = (ModuleName, &Module)> {
        let texts = self.texts.iter().flat_map(Texts::modules).map(|module| (ModuleName::Te, module));
        let diffusion = self.denoiser.iter().map(|denoiser| (ModuleName::Diffusion, &denoiser.module));
        texts.chain(diffusion).chain(self.autoencoder.modules().map(|module| (ModuleName::Vae, module)))
    }

    /// The same, to be changed.
    pub fn modules_mut(&mut self) -> impl Iterator<Item = (ModuleName, &mut Module)> {
        let texts = self.texts.iter_mut().flat_map(Texts::modules_mut).map(|module| (ModuleName::Te, module));
        let diffusion = self.denoiser.iter_mut().map(|denoiser| (ModuleName::Diffusion, &mut denoiser.module));
        texts.chain(diffusion).chain(self.autoencoder.modules_mut().map(|module| (ModuleName::Vae, module)))
    }

    /// What to tell the user of how they are split.
    pub fn notes(&self) -> Vec<String> {
        let others = self.modules().filter(|(name, _)| *name != ModuleName::Vae);
        others.filter_map(|(_, module)| module.note()).chain(self.autoencoder.notes()).collect()
    }

    /// In which way the modules of a place run, in the user's words.
    pub fn ways(&self, of: ModuleName) -> Vec<String> {
        match of {
            ModuleName::Vae => self.autoencoder.ways(),
            _ => self.modules().filter(|(name, _)| *name == of).map(|(_, module)| module.way()).collect(),
        }
    }

    /// Open their devices.
    pub fn open(&mut self) -> Result<(), GenerateError> {
        self.modules_mut().try_for_each(|(_, module)| module.open())
    }

    /// The run is done with all of them: what is loaded stays so for the next run, as long as there is room.
    pub fn give_back(&mut self) {
        self.modules_mut().for_each(|(_, module)| module.give_back());
    }

    /// The texts of the job, encoded. The encoders are given back: nobody needs them again.
    pub fn encode_texts(&mut self, watch: &mut Watcher) -> Result<(), GenerateError> {
        let Some(texts) = &mut self.texts else { return Ok(()) };
        let loaded = self.places.te.pool().loaded();
        let key = texts.key(self.job, &self.places.te);
        let conditions: Vec<Condition> = loaded.conditions(key, || texts.encode(watch))?;
        self.texts = None;
        self.denoiser()?.set_conditioning(conditions);
        Ok(())
    }

    /// The picture that the job begins with, encoded, where it has one.
    pub fn encode_original(&mut self, watch: &mut Watcher) -> Result<Option<Original>, GenerateError> {
        let original = Original::encode(self, watch)?;
        if let Some(mut encoder) = self.autoencoder.encoder.take() {
            encoder.give_back();
        }
        Ok(original)
    }

    /// The diffusion model.
    pub fn denoiser(&mut self) -> Result<&mut Denoiser, GenerateError> {
        self.denoiser.as_mut().ok_or_else(|| GenerateError::Asked("there is no diffusion model to sample with".into()))
    }

    /// The diffusion model, loaded.
    pub fn load_diffusion(&mut self, watch: &mut Watcher) -> Result<&mut Denoiser, GenerateError> {
        if !self.both_fit {
            self.autoencoder.decoder.unload();
        }
        let denoiser = self.denoiser()?;
        load(&mut denoiser.module, watch)?;
        Ok(denoiser)
    }

    /// The picture of a latent.
    pub fn decode(&mut self, latent: &[f32], watch: &mut Watcher) -> Result<Picture, GenerateError> {
        if let Some(denoiser) = self.denoiser.as_mut().filter(|_| !self.both_fit) {
            denoiser.module.unload();
        }
        self.autoencoder.decode(latent, watch)
    }

    /// What a latent that is not finished looks like.
    pub fn preview(&mut self, how: Preview, latent: &[f32], watch: &mut Watcher) -> Result<Picture, GenerateError> {
        match how {
            Preview::Tae | Preview::Vae => self.decode(latent, watch),
            Preview::Proj | Preview::None => {
                let colours = &self.model.pipeline.latents().preview;
                Ok(preview::projection(colours, latent, self.autoencoder.latent))
            }
        }
    }
}
