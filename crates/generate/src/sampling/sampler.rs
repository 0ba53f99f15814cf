//! A run from noise to a latent, which can be stored between any two steps.

use serde::{Deserialize, Serialize};

use super::{Method, SamplingError, StepError, update};
use crate::bits::Numbers;

/// A run: its method, its noise levels, and where it stands. Stored with serde and read again, in this process or another, it goes on
/// with the same bits; a stored run that no run can have stored is refused when it is read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "StoredSampler", into = "StoredSampler")]
pub struct Sampler {
    method: Method,
    eta: f32,
    sigmas: Vec<f32>,
    /// Steps taken.
    taken: usize,
    latent: Vec<f32>,
    /// The denoised prediction of the last step: there is one after the first step. DPM-Solver++ reads it in the next step.
    denoised: Option<Vec<f32>>,
    /// Slopes of the last steps, the newest last, as many as the method reads.
    slopes: Vec<Vec<f32>>,
}

impl Sampler {
    /// A run that begins with this latent, whose noise level is the first of `sigmas`; one step leads to each of the others.
    /// `eta` is the method's own unless given, and has no effect on methods that have none.
    pub fn new(method: Method, eta: Option<f32>, sigmas: Vec<f32>, latent: Vec<f32>) -> Result<Sampler, SamplingError> {
        let eta = eta.or(method.default_eta()).unwrap_or(0.0);
        check(eta, &sigmas)?;
        Ok(Sampler { method, eta, sigmas, taken: 0, latent, denoised: None, slopes: Vec::new() })
    }

    /// Takes the next step.
    ///
    /// `denoise` gives the denoised prediction for a latent of this sigma (see
    /// [`Prediction::denoised`](super::Prediction::denoised)). It is called once, by `heun` twice. `noise` draws so many normal
    /// numbers, and is called once, after `denoise`, if the step adds noise.
    ///
    /// After an error the run stands where it stood, and no noise was drawn unless the error is about the noise or the sum: the step can be
    /// tried again.
    pub fn step<E>(
        &mut self,
        mut denoise: impl FnMut(&[f32], f32) -> Result<Vec<f32>, E>,
        mut noise: impl FnMut(usize) -> Vec<f32>,
    ) -> Result<(), StepError<E>> {
        let steps = self.steps();
        if self.done() {
            return Err(StepError::Done { steps });
        }
        let (step, wanted) = (self.taken + 1, self.latent.len());
        let sized = |what, latent: Vec<f32>| match latent.len() {
            got if got == wanted => Ok(latent),
            got => Err(StepError::Length { step, steps, what, got, wanted }),
        };
        let finite = |latent: Vec<f32>| match latent.iter().filter(|x| !x.is_finite()).count() {
            0 => Ok(latent),
            bad => Err(StepError::NotFinite { step, steps, bad, of: wanted }),
        };
        let before = update::Before {
            method: self.method,
            eta: f64::from(self.eta),
            sigmas: &self.sigmas,
            at: self.taken,
            latent: &self.latent,
            denoised: self.denoised.as_deref(),
            slopes: &self.slopes,
        };
        let after = before.step(
            &mut |x, sigma| {
                let seen = denoise(x, sigma).map_err(|cause| StepError::Denoise { step, steps, cause })?;
                finite(sized("the denoised prediction", seen)?)
            },
            &mut || sized("the noise", noise(wanted)),
        )?;
        self.latent = finite(after.latent)?;
        self.denoised = Some(after.denoised);
        self.slopes.extend(after.slope);
        let forgotten = self.slopes.len().saturating_sub(self.method.slopes());
        self.slopes.drain(..forgotten);
        self.taken += 1;
        Ok(())
    }

    /// How it goes from step to step.
    pub fn method(&self) -> Method {
        self.method
    }

    /// All steps of the run.
    pub fn steps(&self) -> usize {
        self.sigmas.len() - 1
    }

    /// The steps taken.
    pub fn taken(&self) -> usize {
        self.taken
    }

    /// Whether all steps are taken.
    pub fn done(&self) -> bool {
        self.taken == self.steps()
    }

    /// The noise level of the latent.
    pub fn sigma(&self) -> f32 {
        self.sigmas[self.taken]
    }

    /// The latent as it stands: `picture + sigma * noise`.
    pub fn latent(&self) -> &[f32] {
        &self.latent
    }

    /// The latent, to be changed between two steps: inpainting puts back what stays.
    pub fn latent_mut(&mut self) -> &mut [f32] {
        &mut self.latent
    }

    /// The denoised prediction of the last step, a preview of the picture. There is none before the first step.
    pub fn denoised(&self) -> Option<&[f32]> {
        self.denoised.as_deref()
    }

    /// The latent, where nothing else of the run is needed.
    pub fn into_latent(self) -> Vec<f32> {
        self.latent
    }
}

fn check(eta: f32, sigmas: &[f32]) -> Result<(), SamplingError> {
    if !(eta >= 0.0 && eta.is_finite()) {
        return Err(SamplingError::Eta { eta: f64::from(eta) });
    }
    let refuse = |problem: String| Err(SamplingError::Sigmas { problem });
    let Some(last) = sigmas.last() else {
        return refuse("there is none".to_string());
    };
    if let Some(i) = sigmas.iter().position(|sigma| !sigma.is_finite()) {
        return refuse(format!("number {i} is {}", sigmas[i]));
    }
    if let Some(i) = (1..sigmas.len()).find(|&i| sigmas[i - 1] <= sigmas[i]) {
        return refuse(format!("number {i} is {}, after {}", sigmas[i], sigmas[i - 1]));
    }
    if *last < 0.0 {
        return refuse(format!("the last is {last}"));
    }
    Ok(())
}

/// What is stored of a run: latents by their bits.
#[derive(Serialize, Deserialize)]
struct StoredSampler {
    method: Method,
    eta: f32,
    sigmas: Numbers,
    taken: usize,
    latent: Numbers,
    denoised: Option<Numbers>,
    slopes: Vec<Numbers>,
}

impl From<Sampler> for StoredSampler {
    fn from(run: Sampler) -> StoredSampler {
        let Sampler { method, eta, sigmas, taken, latent, denoised, slopes } = run;
        let slopes = slopes.into_iter().map(Numbers).collect();
        StoredSampler {
            method,
            eta,
            sigmas: Numbers(sigmas),
            taken,
            latent: Numbers(latent),
            denoised: denoised.map(Numbers),
            slopes,
        }
    }
}

impl TryFrom<StoredSampler> for Sampler {
    type Error = SamplingError;

    fn try_from(stored: StoredSampler) -> Result<Sampler, SamplingError> {
        let StoredSampler { method, eta, sigmas: Numbers(sigmas), taken, latent: Numbers(latent), denoised, slopes } =
            stored;
        check(eta, &sigmas)?;
        let refuse = |problem: String| Err(SamplingError::Stored { problem });
        if taken >= sigmas.len() {
            return refuse(format!("{taken} steps are taken of {}", sigmas.len() - 1));
        }
        if denoised.is_some() != (taken > 0) || slopes.len() != taken.min(method.slopes()) {
            return refuse(format!("{method} needs other memories of its last steps after {taken} of them"));
        }
        if let Some(other) = denoised.iter().chain(&slopes).find(|other| other.0.len() != latent.len()) {
            let problem = format!("it has latents of {} and of {} numbers", latent.len(), other.0.len());
            return refuse(problem);
        }
        let slopes = slopes.into_iter().map(|Numbers(slope)| slope).collect();
        Ok(Sampler { method, eta, sigmas, taken, latent, denoised: denoised.map(|Numbers(x)| x), slopes })
    }
}
