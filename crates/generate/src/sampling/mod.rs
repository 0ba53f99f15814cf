//! From noise to a latent, step by step.
//!
//! A model was trained on pictures under more and more noise: [`NoiseLevels`] knows how much at which timestep. A [`Schedule`]
//! picks the levels that a run visits, from pure noise to none. A [`Method`] says how to go from one level to the next, and a
//! [`Sampler`] is such a run: it asks its caller for the denoised prediction, once or twice for each
//! step, and can be stored between any two steps.
//!
//! Latents are `picture + sigma * noise`, as in k-diffusion, or with flow matching `(1 - sigma) * picture + sigma * noise`: what the network wants
//! instead is left to [`Prediction`].
//!
//! Random numbers are drawn in one order, whatever the method: first the noise that the run begins with, then one draw of the
//! latent's size for each step that adds noise, in the order of the steps. A step adds noise if its method does, `eta` is not
//! zero and the next level is not zero.
//!
//! ```
//! use impasto_generate::sampling::{Method, NoiseLevels, Prediction, Sampler, Schedule, pure_noise};
//! use impasto_generate::{Noise, NoiseKind};
//!
//! let levels = NoiseLevels::stable_diffusion();
//! let sigmas = Schedule::Karras.sigmas(&levels, 20)?;
//! let mut noise = Noise::new(NoiseKind::Cuda, 42);
//! let latent = pure_noise(&noise.draw(4 * 8 * 8), sigmas[0]);
//! let mut sampler = Sampler::new(Method::EulerA, None, sigmas, latent)?;
//!
//! // Here stands a network.
//! let network = |input: &[f32], _timestep: f32| -> Result<Vec<f32>, std::io::Error> { Ok(input.to_vec()) };
//! while !sampler.done() {
//!     sampler.step(
//!         |x, sigma| {
//!             let input = Prediction::Epsilon.input(x, sigma);
//!             let output = network(&input, levels.timestep(sigma))?;
//!             Ok::<_, std::io::Error>(Prediction::Epsilon.denoised(x, sigma, &output))
//!         },
//!         |n| noise.draw(n),
//!     )?;
//! }
//! assert!(sampler.latent().iter().all(|x| x.is_finite()));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod error;
mod method;
mod names;
mod sampler;
mod schedule;
mod start;
mod update;

pub use error::{SamplingError, StepError};
pub use impasto_model::{BetaSchedule, NoiseLevels, Prediction, TrainingNoise};
pub use method::Method;
pub use sampler::Sampler;
pub use schedule::Schedule;
pub use start::{noised, pure_noise, remaining, steps_taken};
