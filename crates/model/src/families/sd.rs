//! Stable Diffusion 1 and 2. Version 2 has linear projections around its transformers and OpenCLIP's text encoder; some of its models predict
//! the velocity.

use std::sync::Arc;

use super::latent_diffusion::{CLIP_L, LatentDiffusion, OPEN_CLIP_H, Version, assemble, looks_like_v, unet_of};
use super::{AssembledModel, Family, Pipeline};
use crate::discovery::Discovered;
use crate::networks::{
    CLIP, ClipConfig, ClipLayout, Heads, HiddenState, Network, Recogniser, TAESD, UNET, Unet, UnetConfig, VAE,
};
use crate::{ModelError, Prediction};

/// Stable Diffusion 1 and 2.
pub struct StableDiffusion;

static SD1: Version = Version {
    name: "Stable Diffusion 1",
    encoders: &[CLIP_L],
    hidden: |_| HiddenState { skip: 0, norm: true },
    clip_skip: 1,
    zero_empty_negative: false,
    looks_like_v: |_, _| Ok(false),
    factor: 0.18215,
    preview: PREVIEW,
    side: |_, _| 512,
};

static SD2: Version = Version {
    name: "Stable Diffusion 2",
    encoders: &[OPEN_CLIP_H],
    // The layer before the last. Diffusers folders leave the last one out: 23 of 24.
    hidden: |clip| {
        let last = clip.layout == ClipLayout::OpenClip || clip.config.layers == 24;
        HiddenState { skip: usize::from(last), norm: true }
    },
    clip_skip: 2,
    zero_empty_negative: false,
    looks_like_v,
    factor: 0.18215,
    preview: PREVIEW,
    side: |prediction, _| if prediction == Prediction::V { 768 } else { 512 },
};

const PREVIEW: [[f32; 3]; 5] = [
    [0.3512, 0.2297, 0.3227],
    [0.3250, 0.4974, 0.2350],
    [-0.2829, 0.1762, 0.2721],
    [-0.2120, -0.2616, -0.7177],
    [0.0; 3],
];

impl Family for StableDiffusion {
    fn networks(&self) -> Vec<&'static Recogniser> {
        vec![&CLIP, &UNET, &VAE, &TAESD]
    }

    fn recognises(&self, denoiser: &dyn Network) -> Option<&'static str> {
        version(&denoiser.downcast::<Unet>()?.config).map(|version| version.name)
    }

    fn open(&self, files: &mut Discovered) -> Result<AssembledModel, ModelError> {
        let (pick, mut unet) = unet_of(files)?;
        let by_shape = version(&unet.config).ok_or_else(|| files.no_denoiser())?;
        // The file's own word decides between the two, which differ in little else.
        let said = pick.metadata("modelspec.architecture").unwrap_or_default();
        let (version, heads) = match said {
            _ if said.starts_with("stable-diffusion-v1") => (&SD1, Heads::Count(8)),
            _ if said.starts_with("stable-diffusion-v2") => (&SD2, Heads::Width(64)),
            _ => (by_shape, unet.config.heads.clone()),
        };
        if version.name != by_shape.name {
            unet.config.heads = heads;
        }
        assemble(version, files, (pick, unet))
    }

    fn published(&self) -> Vec<(&'static str, Arc<dyn Pipeline>)> {
        vec![
            ("sd15", LatentDiffusion::published(&SD1, UnetConfig::sd15(), &[ClipConfig::clip_l()])),
            ("sd21", LatentDiffusion::published(&SD2, UnetConfig::sd21(), &[ClipConfig::open_clip_h()])),
        ]
    }
}

/// The version, by structure.
fn version(unet: &UnetConfig) -> Option<&'static Version> {
    match (unet.added, unet.linear_projection) {
        (Some(_), _) => None,
        (None, true) => Some(&SD2),
        (None, false) => Some(&SD1),
    }
}
