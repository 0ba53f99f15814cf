//! Where a picture begins: noise alone, or noise over a picture, as diffusers' pipelines have it.

use impasto_model::{Gaussian, Levels};
use serde::{Deserialize, Serialize};

use crate::bits::Numbers;
use crate::networks::Networks;
use crate::picture::Picture;
use crate::pipeline::Watcher;
use crate::sampling::{Prediction, Sampler, noised, pure_noise, remaining};
use crate::{GenerateError, Noise};

/// The first latent of a run, and what holds on its way.
pub(crate) struct Beginning {
    /// With the noise of the first of the sigmas.
    pub latent: Vec<f32>,
    /// The noise levels that are gone through, the last 0.
    pub sigmas: Vec<f32>,
    /// What stays as it was.
    pub kept: Option<OutsideMask>,
    /// Further channels for the diffusion model of inpainting: the mask, and the latent of what stays.
    pub extra: Option<Vec<f32>>,
}

/// What lies outside of the mask of inpainting, which is not made anew.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(from = "StoredOutsideMask", into = "StoredOutsideMask")]
pub(crate) struct OutsideMask {
    latent: Vec<f32>,
    noise: Vec<f32>,
    /// 1 where it is made anew, a number for each pixel of the latent.
    mask: Vec<f32>,
}

/// The picture that a run begins with, encoded.
pub(crate) struct Original {
    /// All of it, where the run begins with it.
    whole: Option<Gaussian>,
    /// For inpainting models, without what is made anew.
    masked: Option<Gaussian>,
}

impl Original {
    /// Encode the picture of a job, where it has one.
    pub fn encode(networks: &mut Networks, watch: &mut Watcher) -> Result<Option<Original>, GenerateError> {
        let Some(start) = &networks.job.start else { return Ok(None) };
        let masked = start
            .mask
            .as_ref()
            .filter(|_| networks.model.pipeline.inpaints())
            .map(|mask| without(&start.picture, mask));
        // An inpainting model that makes everything in the mask anew needs nothing of what was there.
        let whole = (masked.is_none() || start.strength < 1.0).then(|| start.picture.to_signed());
        let wanted = [whole.is_some(), masked.is_some()];
        let mut encoded =
            networks.autoencoder.encode([whole, masked].into_iter().flatten().collect(), watch)?.into_iter();
        let [whole, masked] = wanted.map(|wanted| if wanted { encoded.next() } else { None });
        Ok(Some(Original { whole, masked }))
    }
}

/// A picture with grey, which is 0 to the encoder, where it is made anew.
fn without(picture: &Picture, mask: &[bool]) -> Vec<f32> {
    let kept = |i: usize| mask.get(i / 3) != Some(&true);
    picture.to_signed().into_iter().enumerate().map(|(i, v)| if kept(i) { v } else { 0.0 }).collect()
}

/// One latent of the many that a picture may have.
fn draw(encoded: &Gaussian, noise: &mut Noise) -> Vec<f32> {
    let drawn = noise.draw(encoded.mean.len());
    encoded.mean.iter().zip(&encoded.deviation).zip(drawn).map(|((m, d), n)| m + d * n).collect()
}

/// The first latent of a picture. Noise is drawn in the order of diffusers: the original's latent, the noise itself, the latent of
/// what stays.
pub(crate) fn begin(
    networks: &mut Networks,
    original: Option<&Original>,
    noise: &mut Noise,
) -> Result<Beginning, GenerateError> {
    let job = networks.job;
    let sigmas = match &networks.denoiser()?.levels {
        Levels::Training(levels) => job.schedule.sigmas(levels, job.steps)?,
        Levels::Fixed(sigmas) => sigmas.clone(),
    };
    let shape = networks.autoencoder.latent;
    let (Some(start), Some(original)) = (&job.start, original) else {
        let latent = pure_noise(&noise.draw(shape.len()), job.schedule.first_deviation(sigmas[0]));
        return Ok(Beginning { latent, sigmas, kept: None, extra: None });
    };
    let whole = original.whole.as_ref().map(|encoded| draw(encoded, noise));
    let drawn = noise.draw(shape.len());
    let sigmas = remaining(job.prediction, &sigmas, start.strength)?.to_vec();
    let latent = match &whole {
        // With nothing of the original wanted in the mask, inpainting begins with noise alone.
        Some(whole) if start.mask.is_none() || start.strength < 1.0 => {
            noised(job.prediction, whole, &drawn, sigmas[0])?
        }
        _ => pure_noise(&drawn, job.schedule.first_deviation(sigmas[0])),
    };
    let (mut kept, mut extra) = (None, None);
    if let Some(mask) = &start.mask {
        let mask = networks.autoencoder.latent_mask(mask);
        match &original.masked {
            Some(masked) => extra = Some([mask, draw(masked, noise)].concat()),
            None => kept = whole.map(|latent| OutsideMask { latent, noise: drawn, mask }),
        }
    }
    Ok(Beginning { latent, sigmas, kept, extra })
}

/// The same, as it is stored.
#[derive(Serialize, Deserialize)]
struct StoredOutsideMask {
    latent: Numbers,
    noise: Numbers,
    mask: Numbers,
}

impl From<OutsideMask> for StoredOutsideMask {
    fn from(kept: OutsideMask) -> StoredOutsideMask {
        StoredOutsideMask { latent: Numbers(kept.latent), noise: Numbers(kept.noise), mask: Numbers(kept.mask) }
    }
}

impl From<StoredOutsideMask> for OutsideMask {
    fn from(stored: StoredOutsideMask) -> OutsideMask {
        OutsideMask { latent: stored.latent.0, noise: stored.noise.0, mask: stored.mask.0 }
    }
}

impl OutsideMask {
    /// Whether it belongs to latents of this length and area.
    pub fn fits(&self, len: usize, area: usize) -> bool {
        self.latent.len() == len && self.noise.len() == len && self.mask.len() == area
    }

    /// Put back what is not made anew, with as much noise as there should be now.
    pub fn put_back(&self, sampler: &mut Sampler, prediction: Prediction) {
        let (sigma, area) = (sampler.sigma(), self.mask.len());
        let share = prediction.picture_share(sigma);
        for (i, x) in sampler.latent_mut().iter_mut().enumerate() {
            let mask = self.mask[i % area];
            *x = mask * *x + (1.0 - mask) * (share * self.latent[i] + sigma * self.noise[i]);
        }
    }
}
