//! What a run begins with.

use super::{Prediction, SamplingError};

/// Noise alone at the level of `sigma`: `sigma * noise`, as sd-cli, webui and diffusers' Euler, Heun and LMS begin.
///
/// ComfyUI, and DPM-Solver and DDIM of diffusers, begin with `sqrt(sigma^2 + 1) * noise`, 0.2 % more at Stable Diffusion's largest sigma.
pub fn pure_noise(noise: &[f32], sigma: f32) -> Vec<f32> {
    noise.iter().map(|n| n * sigma).collect()
}

/// A picture's latent under noise at the level of `sigma`, for a run that begins with a picture.
pub fn noised(prediction: Prediction, picture: &[f32], noise: &[f32], sigma: f32) -> Result<Vec<f32>, SamplingError> {
    if picture.len() != noise.len() {
        return Err(SamplingError::Length { what: "the noise", got: noise.len(), wanted: picture.len() });
    }
    let (share, sigma) = (f64::from(prediction.picture_share(sigma)), f64::from(sigma));
    Ok(picture.iter().zip(noise).map(|(&p, &n)| (share * f64::from(p) + sigma * f64::from(n)) as f32).collect())
}

/// The end of a schedule that is left for a picture which is changed with this strength: 1 is the whole schedule, 0 no step at all.
///
/// Of `n` steps the last [`steps_taken`] are taken. webui and sd-cli take one more where that is not all of them.
pub fn remaining(prediction: Prediction, sigmas: &[f32], strength: f64) -> Result<&[f32], SamplingError> {
    if !(0.0..=1.0).contains(&strength) {
        return Err(SamplingError::Strength { strength });
    }
    let steps = sigmas.len().saturating_sub(1);
    Ok(&sigmas[steps - steps_taken(prediction, steps, strength)..])
}

/// How many of `steps` are taken for a picture that is changed with this strength, as in diffusers' pipelines: `steps * strength`, rounded down, by
/// those of flow matching up.
pub fn steps_taken(prediction: Prediction, steps: usize, strength: f64) -> usize {
    let wanted = (steps as f64 * strength).min(steps as f64);
    match prediction {
        Prediction::Epsilon | Prediction::V => wanted as usize,
        Prediction::Flow => steps - (steps as f64 - wanted) as usize,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strength_leaves_the_steps_that_diffusers_takes() {
        let sigmas: Vec<f32> = (0..=50).rev().map(|i| i as f32).collect();
        // 50 * 0.58 is 28.999999999999996 in Python too.
        for (strength, steps) in [(1.0, 50), (0.99, 49), (0.7, 35), (0.58, 28), (0.02, 1), (0.019, 0), (0.0, 0)] {
            let rest = remaining(Prediction::Epsilon, &sigmas, strength).expect("valid");
            assert_eq!((rest.len(), rest[0]), (steps + 1, steps as f32), "{strength}");
        }
        // 6 - 6 * 0.6 is 2.4000000000000004: two are left out.
        for (strength, steps) in [(1.0, 6), (0.99, 6), (0.6, 4), (0.5, 3), (0.0, 0)] {
            assert_eq!(steps_taken(Prediction::Flow, 6, strength), steps, "{strength}");
        }
        for strength in [-0.1, 1.1, f64::NAN, f64::INFINITY] {
            assert!(matches!(remaining(Prediction::Epsilon, &sigmas, strength), Err(SamplingError::Strength { .. })));
        }
        assert_eq!(remaining(Prediction::Flow, &[], 0.5), Ok(&[][..]));
    }

    #[test]
    fn a_picture_and_noise_of_two_sizes_are_refused() {
        assert_eq!(noised(Prediction::Epsilon, &[1.0, 2.0], &[0.5, -1.0], 2.0), Ok(vec![2.0, 0.0]));
        assert_eq!(noised(Prediction::Flow, &[1.0, 2.0], &[0.5, -1.0], 0.75), Ok(vec![0.625, -0.25]));
        assert!(noised(Prediction::V, &[1.0, 2.0], &[0.5], 2.0).is_err());
    }
}
