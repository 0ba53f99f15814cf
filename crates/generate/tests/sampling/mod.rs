//! Sampling: against other programs, against exact solutions, and through interruptions.

mod parity;
mod properties;
mod resume;

use impasto_generate::sampling::{Method, Sampler, StepError};

/// An error that no test expects.
type Never = std::convert::Infallible;

/// Takes all steps with a network that does not fail.
fn run(
    mut sampler: Sampler,
    mut denoise: impl FnMut(&[f32], f32) -> Vec<f32>,
    mut noise: impl FnMut(usize) -> Vec<f32>,
) -> Result<Sampler, StepError<Never>> {
    while !sampler.done() {
        sampler.step(|x, sigma| Ok::<_, Never>(denoise(x, sigma)), &mut noise)?;
    }
    Ok(sampler)
}

/// Whether its result depends on noise.
fn random(method: Method, eta: Option<f32>) -> bool {
    method == Method::Lcm || eta.or(method.default_eta()).unwrap_or(0.0) > 0.0
}

/// The distance of two latents, relative to the second.
fn distance(got: &[f32], want: &[f32]) -> f64 {
    assert_eq!(got.len(), want.len());
    let square = |x: f64| x * x;
    let apart: f64 = got.iter().zip(want).map(|(&g, &w)| square(f64::from(g) - f64::from(w))).sum();
    (apart / want.iter().map(|&w| square(f64::from(w))).sum::<f64>()).sqrt()
}
