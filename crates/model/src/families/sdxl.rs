//! Stable Diffusion XL: two text encoders side by side, and a UNet that also reads the pooled text and the size of the picture.

use std::sync::Arc;

use super::latent_diffusion::{CLIP_L, LatentDiffusion, OPEN_CLIP_G, Version, assemble, is_second, unet_of};
use super::{AssembledModel, Family, Pipeline};
use crate::ModelError;
use crate::discovery::Discovered;
use crate::networks::{CLIP, Clip, ClipConfig, HiddenState, Network, Recogniser, TAESD, UNET, Unet, UnetConfig, VAE};

/// Stable Diffusion XL.
pub struct StableDiffusionXl;

static SDXL: Version = Version {
    name: "Stable Diffusion XL",
    encoders: &[CLIP_L, OPEN_CLIP_G],
    hidden: |_| HiddenState { skip: 1, norm: false },
    clip_skip: 2,
    zero_empty_negative: true,
    looks_like_v: |_, _| Ok(false),
    factor: 0.13025,
    preview: [
        [0.3651, 0.4232, 0.4341],
        [-0.2533, -0.0042, 0.1068],
        [0.1076, 0.1111, -0.0362],
        [-0.3165, -0.2492, -0.2188],
        [0.1084, -0.0175, -0.0011],
    ],
    side: |_, turbo| if turbo { 512 } else { 1024 },
};

impl Family for StableDiffusionXl {
    fn networks(&self) -> Vec<&'static Recogniser> {
        vec![&CLIP, &UNET, &VAE, &TAESD]
    }

    fn recognises(&self, denoiser: &dyn Network) -> Option<&'static str> {
        denoiser.downcast::<Unet>()?.config.added.map(|_| SDXL.name)
    }

    fn open(&self, files: &mut Discovered) -> Result<AssembledModel, ModelError> {
        let (pick, unet) = unet_of(files)?;
        if is_refiner(files, &unet.config) {
            let what = "it is a refiner of Stable Diffusion XL, which improves pictures of the base model and cannot make one; give the \
                        base model";
            return Err(ModelError::Unsupported { path: files.named.clone(), what: what.into() });
        }
        assemble(&SDXL, files, (pick, unet))
    }

    fn published(&self) -> Vec<(&'static str, Arc<dyn Pipeline>)> {
        let text = [ClipConfig::clip_l(), ClipConfig::open_clip_g()];
        vec![("sdxl", LatentDiffusion::published(&SDXL, UnetConfig::sdxl(), &text))]
    }
}

/// A refiner reads the second text encoder alone.
fn is_refiner(files: &Discovered, unet: &UnetConfig) -> bool {
    let named = files.named_text.iter().any(|(flag, _)| *flag == CLIP_L.flag);
    let reads = |(pick, _): &(_, _)| {
        is_second(pick) && pick.network::<Clip>().is_some_and(|clip| clip.config.width == unet.context)
    };
    !named && files.text.len() == 1 && files.text.iter().all(reads)
}
