//! One step of each method, as sums of latents. Factors are computed, and sums added up, in f64, and rounded once to f32.

use super::Method;

/// Where a run stands before a step.
pub(super) struct Before<'a> {
    pub method: Method,
    pub eta: f64,
    /// All noise levels of the run.
    pub sigmas: &'a [f32],
    /// Which of them the latent has. There is a next one.
    pub at: usize,
    pub latent: &'a [f32],
    /// The denoised prediction of the step before this one.
    pub denoised: Option<&'a [f32]>,
    /// Slopes of the steps before this one, the newest last.
    pub slopes: &'a [Vec<f32>],
}

/// What a step found.
pub(super) struct After {
    pub latent: Vec<f32>,
    pub denoised: Vec<f32>,
    /// The slope of this step, if the method will read it.
    pub slope: Option<Vec<f32>>,
}

/// The network: its denoised prediction for a latent of this level.
pub(super) type Denoise<'a, E> = dyn FnMut(&[f32], f32) -> Result<Vec<f32>, E> + 'a;

/// Noise of the latent's size.
pub(super) type Draw<'a, E> = dyn FnMut() -> Result<Vec<f32>, E> + 'a;

impl Before<'_> {
    /// Takes the step. All latents that come in have the same length.
    pub fn step<E>(&self, denoise: &mut Denoise<'_, E>, draw: &mut Draw<'_, E>) -> Result<After, E> {
        let x = self.latent;
        let denoised = denoise(x, self.sigmas[self.at])?;
        let (sigma, next) = (self.sigma(0), f64::from(self.sigmas[self.at + 1]));
        let mut slope = None;
        let latent = match self.method {
            // To zero, every method takes what the network sees; but LMS, whose curve does not end there.
            _ if next == 0.0 && self.method != Method::Lms => denoised.clone(),
            Method::Euler => sum([(next / sigma, x), (1.0 - next / sigma, &denoised)]),
            Method::EulerA | Method::DdimTrailing => self.ancestral(&denoised, next, draw)?,
            Method::Heun => return self.heun(denoised, next, denoise),
            Method::Dpmpp2m => self.dpmpp2m(&denoised, next, 0.0, draw)?,
            Method::Dpmpp2mSde => self.dpmpp2m(&denoised, next, self.eta, draw)?,
            Method::Lms => {
                slope = Some(sum([(1.0 / sigma, x), (-1.0 / sigma, &denoised)]));
                self.lms(&denoised, next)
            }
            Method::Lcm => sum([(1.0, &denoised), (next, &draw()?)]),
        };
        Ok(After { latent, denoised, slope })
    }

    /// The noise level so many steps before this one.
    fn sigma(&self, back: usize) -> f64 {
        f64::from(self.sigmas[self.at - back])
    }

    fn ancestral<E>(&self, denoised: &[f32], next: f64, draw: &mut Draw<'_, E>) -> Result<Vec<f32>, E> {
        let sigma = self.sigma(0);
        // Down to `down`, then noise of `up`: together the variance of `next`.
        let up = (self.eta * next * (1.0 - (next / sigma).powi(2)).sqrt()).min(next);
        let down = (next * next - up * up).max(0.0).sqrt();
        let (keep, take) = (down / sigma, 1.0 - down / sigma);
        Ok(if up > 0.0 {
            sum([(keep, self.latent), (take, denoised), (up, &draw()?)])
        } else {
            sum([(keep, self.latent), (take, denoised)])
        })
    }

    fn heun<E>(&self, denoised: Vec<f32>, next: f64, denoise: &mut Denoise<'_, E>) -> Result<After, E> {
        let sigma = self.sigma(0);
        let x = self.latent;
        let there = sum([(next / sigma, x), (1.0 - next / sigma, &denoised)]);
        let seen = denoise(&there, self.sigmas[self.at + 1])?;
        let half = (next - sigma) / 2.0;
        let (here, ahead) = (half / sigma, half / next);
        let latent = sum([(1.0 + here, x), (-here, &denoised), (ahead, &there), (-ahead, &seen)]);
        Ok(After { latent, denoised: seen, slope: None })
    }

    /// With an `eta` of 0 it adds no noise.
    fn dpmpp2m<E>(&self, denoised: &[f32], next: f64, eta: f64, draw: &mut Draw<'_, E>) -> Result<Vec<f32>, E> {
        let sigma = self.sigma(0);
        let h = (sigma / next).ln();
        let keep = next / sigma * (-eta * h).exp();
        let take = -(-h - eta * h).exp_m1();
        // How what the network sees changes over the step, as it did over the last one.
        let change = match self.denoised {
            Some(_) if self.at > 0 => take * h / (2.0 * (self.sigma(1) / sigma).ln()),
            _ => 0.0,
        };
        let last = self.denoised.unwrap_or(denoised);
        let up = next * (-(-2.0 * eta * h).exp_m1()).sqrt();
        let (x, new, old) = ((keep, self.latent), (take + change, denoised), (-change, last));
        Ok(if up > 0.0 { sum([x, new, old, (up, &draw()?)]) } else { sum([x, new, old]) })
    }

    /// Integrates the polynomial through the last slopes, at most four, over the step.
    fn lms(&self, denoised: &[f32], next: f64) -> Vec<f32> {
        let sigma = self.sigma(0);
        let order = self.slopes.len().min(self.at) + 1;
        // The share of slope `j`, counted back from this step's, in the polynomial at a level.
        let share = |level: f64, j: usize| -> f64 {
            let others = (0..order).filter(|&k| k != j);
            others.map(|k| (level - self.sigma(k)) / (self.sigma(j) - self.sigma(k))).product()
        };
        // Two points of Gauss and Legendre are exact up to the third degree.
        let (middle, half) = ((sigma + next) / 2.0, (next - sigma) / 2.0);
        let point = half / 3f64.sqrt();
        let factor = |j: usize| half * (share(middle - point, j) + share(middle + point, j));
        // This step's slope is not rounded before it is used: over a step from 4096 to 6 that would cost two digits.
        let here = factor(0) / sigma;
        let ahead = |(&x, &seen)| (1.0 + here) * f64::from(x) - here * f64::from(seen);
        let mut latent: Vec<f64> = self.latent.iter().zip(denoised).map(ahead).collect();
        for (j, slope) in (1..order).zip(self.slopes.iter().rev()) {
            let factor = factor(j);
            latent.iter_mut().zip(slope).for_each(|(x, &d)| *x += factor * f64::from(d));
        }
        latent.into_iter().map(|x| x as f32).collect()
    }
}

/// The sum of latents of one length, each times a factor.
fn sum<const N: usize>(terms: [(f64, &[f32]); N]) -> Vec<f32> {
    let n = terms.iter().map(|(_, latent)| latent.len()).min().unwrap_or(0);
    (0..n).map(|i| terms.iter().map(|(factor, latent)| factor * f64::from(latent[i])).sum::<f64>() as f32).collect()
}
