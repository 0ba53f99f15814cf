//! How much noise a model was trained to see at which timestep.

use serde::{Deserialize, Serialize};

/// How the noise of a model's training grows from its first step to its last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BetaSchedule {
    /// The square roots of the betas are evenly spaced: Stable Diffusion.
    #[default]
    ScaledLinear,
    /// The betas are evenly spaced.
    Linear,
}

/// The noise that a model was trained on. The default is Stable Diffusion's.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrainingNoise {
    /// Timesteps.
    pub steps: usize,
    /// The first beta.
    pub beta_start: f64,
    /// The last beta.
    pub beta_end: f64,
    /// What lies between them.
    pub betas: BetaSchedule,
    /// The last timestep is noise alone ("zero terminal SNR"). Only models of v-prediction can be trained so.
    pub zero_terminal_snr: bool,
    /// The timestep that the schedule `leading` ends at, diffusers' `steps_offset`.
    #[serde(default)]
    pub steps_offset: usize,
}

impl Default for TrainingNoise {
    fn default() -> TrainingNoise {
        let betas = BetaSchedule::ScaledLinear;
        let (beta_start, beta_end) = (0.00085, 0.012);
        TrainingNoise { steps: 1000, beta_start, beta_end, betas, zero_terminal_snr: false, steps_offset: 1 }
    }
}

/// Training noise that cannot be as described.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("the model's training noise cannot be used: {problem}")]
pub struct NoiseError {
    problem: String,
}

/// What is left of the picture in the last timestep of a model of zero terminal SNR. Not zero, so that its sigma is finite (4096).
/// This is the number of diffusers; ComfyUI has 4.9e-8, which makes no difference that can be seen.
const ALMOST_NOTHING: f64 = 1.0 / 16_777_216.0;

/// More timesteps than any model has; a table of a made-up size should not take the machine's memory.
const MOST_TRAINING_STEPS: usize = 100_000;

/// The noise level of each timestep of a model: its sigma, the noise's share relative to the picture's.
///
/// The table is computed in f64. diffusers and sd-cli round the picture's share to f32 on the way, which moves the smallest
/// sigma by about 1e-5 of itself, and others less.
#[derive(Clone, Debug, PartialEq)]
pub struct NoiseLevels {
    /// By timestep, growing.
    sigmas: Vec<f64>,
    /// Their logarithms, between which timesteps are interpolated.
    logs: Vec<f64>,
    steps_offset: usize,
}

impl NoiseLevels {
    /// The levels of a model's training.
    pub fn new(training: &TrainingNoise) -> Result<NoiseLevels, NoiseError> {
        let TrainingNoise { steps, beta_start, beta_end, betas, zero_terminal_snr, steps_offset } = *training;
        let refuse = |problem: String| Err(NoiseError { problem });
        if !(2..=MOST_TRAINING_STEPS).contains(&steps) {
            return refuse(format!("it has {steps} timesteps, and 2 to {MOST_TRAINING_STEPS} are possible"));
        }
        let share = |beta: f64| beta > 0.0 && beta < 1.0;
        if !share(beta_start) || !share(beta_end) {
            return refuse(format!("its betas go from {beta_start} to {beta_end}, and must lie between 0 and 1"));
        }
        if steps_offset >= steps {
            return refuse(format!("its schedule ends at timestep {steps_offset} of {steps}"));
        }
        let last = (steps - 1) as f64;
        let between = |from: f64, to: f64, i: usize| from + (to - from) * (i as f64 / last);
        let beta = |i: usize| match betas {
            BetaSchedule::Linear => between(beta_start, beta_end, i),
            BetaSchedule::ScaledLinear => between(beta_start.sqrt(), beta_end.sqrt(), i).powi(2),
        };
        // The picture's share of the variance at each timestep.
        let mut shares: Vec<f64> = (0..steps)
            .scan(1.0, |product, i| {
                *product *= 1.0 - beta(i);
                Some(*product)
            })
            .collect();
        if zero_terminal_snr {
            let (first, end) = (shares[0].sqrt(), shares[steps - 1].sqrt());
            for share in &mut shares {
                *share = ((share.sqrt() - end) * first / (first - end)).powi(2);
            }
            shares[steps - 1] = ALMOST_NOTHING;
        }
        let sigmas: Vec<f64> = shares.iter().map(|share| ((1.0 - share) / share).sqrt()).collect();
        if let Some(i) = (1..steps).find(|&i| !(sigmas[i].is_finite() && sigmas[i - 1] < sigmas[i])) {
            return refuse(format!("its noise does not grow from timestep {} to {i}; check its betas", i - 1));
        }
        let logs = sigmas.iter().map(|sigma| sigma.ln()).collect();
        Ok(NoiseLevels { sigmas, logs, steps_offset })
    }

    /// The levels of Stable Diffusion 1, 2 and XL.
    pub fn stable_diffusion() -> NoiseLevels {
        match NoiseLevels::new(&TrainingNoise::default()) {
            Ok(levels) => levels,
            Err(error) => unreachable!("the default is tested: {error}"),
        }
    }

    /// Timesteps.
    pub fn steps(&self) -> usize {
        self.sigmas.len()
    }

    /// The timestep that the schedule `leading` ends at.
    pub fn steps_offset(&self) -> usize {
        self.steps_offset
    }

    /// The sigma of the first timestep.
    pub fn smallest(&self) -> f32 {
        self.level(0) as f32
    }

    /// The sigma of the last timestep.
    pub fn largest(&self) -> f32 {
        self.level(self.steps() - 1) as f32
    }

    /// The sigma at a timestep, which may lie between two: then it is interpolated in its logarithm, as k-diffusion, ComfyUI and
    /// sd-cli do it. Beyond the ends it is that of the end.
    pub fn sigma(&self, timestep: f32) -> f32 {
        self.sigma_between(f64::from(timestep)) as f32
    }

    /// The timestep of a sigma: the inverse of [`sigma`](NoiseLevels::sigma). It is not rounded, as in k-diffusion, sd-cli and
    /// diffusers' Euler; ComfyUI and diffusers' DPM-Solver round it to a whole number.
    pub fn timestep(&self, sigma: f32) -> f32 {
        let log = f64::from(sigma).ln();
        let low = self.logs.partition_point(|&l| l <= log).saturating_sub(1).min(self.steps() - 2);
        let share = (log - self.logs[low]) / (self.logs[low + 1] - self.logs[low]);
        (low as f64 + share.clamp(0.0, 1.0)) as f32
    }

    /// The sigma of a whole timestep, which must exist.
    pub fn level(&self, timestep: usize) -> f64 {
        self.sigmas[timestep]
    }

    /// The same as [`sigma`](NoiseLevels::sigma), not rounded.
    pub fn sigma_between(&self, timestep: f64) -> f64 {
        let timestep = timestep.clamp(0.0, (self.steps() - 1) as f64);
        let (low, share) = (timestep.floor() as usize, timestep.fract());
        if share == 0.0 {
            return self.sigmas[low];
        }
        ((1.0 - share) * self.logs[low] + share * self.logs[low + 1]).exp()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stable_diffusion_has_its_known_levels() {
        let levels = NoiseLevels::stable_diffusion();
        assert_eq!((levels.steps(), levels.smallest(), levels.largest()), (1000, 0.029_167_159, 14.614_641));
    }

    #[test]
    fn timestep_and_sigma_are_inverse_and_stay_within_the_table() {
        for zero_terminal_snr in [false, true] {
            let levels =
                NoiseLevels::new(&TrainingNoise { zero_terminal_snr, ..TrainingNoise::default() }).expect("valid");
            for i in 0..=9990 {
                let t = i as f32 / 10.0;
                assert!((levels.timestep(levels.sigma(t)) - t).abs() < 2e-4, "{t}");
            }
            for sigma in [f32::NEG_INFINITY, -1.0, 0.0, 1e-30, 0.01, 1e5, f32::INFINITY, f32::NAN] {
                let t = levels.timestep(sigma);
                assert!(
                    (0.0..=999.0).contains(&t) || t.is_nan() && (sigma < 0.0 || sigma.is_nan()),
                    "{sigma} gives {t}"
                );
            }
            assert_eq!((levels.sigma(-5.0), levels.sigma(1e9)), (levels.smallest(), levels.largest()));
            assert_eq!((levels.timestep(0.0), levels.timestep(f32::INFINITY)), (0.0, 999.0));
        }
    }

    #[test]
    fn impossible_training_is_refused() {
        let sane = TrainingNoise::default();
        for training in [
            TrainingNoise { steps: 0, ..sane },
            TrainingNoise { steps: 1, ..sane },
            TrainingNoise { steps: usize::MAX, ..sane },
            TrainingNoise { beta_start: 0.0, ..sane },
            TrainingNoise { beta_end: 1.0, ..sane },
            TrainingNoise { beta_start: f64::NAN, ..sane },
            TrainingNoise { beta_start: 0.9, beta_end: 0.9, ..sane },
            TrainingNoise { steps: 2, beta_start: 0.5, beta_end: 1e-300, ..sane },
        ] {
            let error = NoiseLevels::new(&training).expect_err("impossible");
            assert!(error.to_string().starts_with("the model's training noise cannot be used: it"), "{error}");
        }
    }
}
