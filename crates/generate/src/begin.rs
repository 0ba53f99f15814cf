//! Where a picture begins: noise alone, or noise over a picture, as diffusers' pipelines have it.

use crate::networks::Networks;
use crate::sampling::{Sampler, remaining};
use crate::{GenerateError, Job, Noise};

/// The first latent of a run, and what holds on its way.
pub(crate) struct Beginning {
    /// With the noise of the first of the sigmas.
    pub latent: Vec<f32>,
    /// The noise levels that are gone through, the last 0.
    pub sigmas: Vec<f32>,
    /// What stays as it was.
    pub kept: Option<Kept>,
    /// Further channels for the diffusion model of inpainting: the mask, and the latent of what stays.
    pub extra: Option<Vec<f32>>,
}

/// The part of a latent that is not made anew.
pub(crate) struct Kept {
    latent: Vec<f32>,
    noise: Vec<f32>,
    /// 1 where it is made anew, a number for each pixel of the latent.
    mask: Vec<f32>,
}

/// A picture, encoded: means and standard deviations of its latent, each `(channels, height, width)`.
pub(crate) struct Encoded {
    pub mean: Vec<f32>,
    pub deviation: Vec<f32>,
}

/// The picture that a run begins with, encoded; for inpainting models also without what is made anew.
pub(crate) struct Original {
    pub whole: Option<Encoded>,
    pub masked: Option<Encoded>,
}

impl Encoded {
    /// One latent of the many that it may be.
    fn draw(&self, noise: &mut Noise, scale: impl Fn(f32) -> f32) -> Vec<f32> {
        let drawn = noise.draw(self.mean.len());
        self.mean.iter().zip(&self.deviation).zip(drawn).map(|((m, d), n)| scale(m + d * n)).collect()
    }
}

/// The first latent of a picture. Noise is drawn in the order of diffusers: the original's latent, the noise itself, the latent of
/// what stays.
pub(crate) fn begin(
    job: &Job,
    networks: &Networks,
    original: Option<&Original>,
    noise: &mut Noise,
) -> Result<Beginning, GenerateError> {
    let sigmas = networks.levels.schedule(job.schedule, job.steps)?;
    let n = networks.latent_len();
    let (Some(start), Some(original)) = (&job.start, original) else {
        let latent = noise.draw(n).iter().map(|x| x * sigmas[0]).collect();
        return Ok(Beginning { latent, sigmas, kept: None, extra: None });
    };
    let scale = |z: f32| (z - networks.scale.shift) * networks.scale.factor;
    let whole = original.whole.as_ref().map(|encoded| encoded.draw(noise, scale));
    let drawn = noise.draw(n);
    let sigmas = remaining(&sigmas, start.strength)?.to_vec();
    let latent = match (&whole, start.mask.is_some() && start.strength >= 1.0) {
        // With nothing of the original wanted, inpainting begins with noise alone.
        (Some(whole), false) => whole.iter().zip(&drawn).map(|(z, n)| z + n * sigmas[0]).collect(),
        _ => drawn.iter().map(|n| n * sigmas[0]).collect(),
    };
    let (mut kept, mut extra) = (None, None);
    if let Some(mask) = &start.mask {
        let mask = networks.latent_mask(mask);
        match &original.masked {
            Some(masked) => {
                let masked = masked.draw(noise, scale);
                extra = Some([mask, masked].concat());
            }
            None => kept = whole.map(|latent| Kept { latent, noise: drawn, mask }),
        }
    }
    Ok(Beginning { latent, sigmas, kept, extra })
}

impl Kept {
    /// Put back what is not made anew, with as much noise as there should be now.
    pub fn put_back(&self, sampler: &mut Sampler) {
        let sigma = sampler.sigma();
        let area = self.mask.len();
        for (i, x) in sampler.latent_mut().iter_mut().enumerate() {
            let mask = self.mask[i % area];
            *x = mask * *x + (1.0 - mask) * (self.latent[i] + sigma * self.noise[i]);
        }
    }
}
