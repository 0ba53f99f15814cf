//! Which noise levels a run visits.

use super::{NoiseLevels, SamplingError, names::named};

/// Which noise levels a run visits, from a model's largest towards zero. Names are those of sd-cli.
///
/// How each is compared, in `tests/sampling.rs`: `discrete`, `karras` and `exponential` with k-diffusion and with diffusers,
/// `trailing` and `lcm` with diffusers, `sgm_uniform` and `simple` with formulas of ComfyUI, written down again in f64.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Schedule {
    /// Timesteps evenly spaced from the last to the first, both included: `get_sigmas` of k-diffusion, `normal` in ComfyUI.
    ///
    /// diffusers calls it `linspace` in its Euler, Heun and LMS, and interpolates between two sigmas where the others interpolate
    /// between their logarithms: 2e-5 apart in 20 steps. We follow k-diffusion, since then the network is asked for exactly the
    /// timesteps that diffusers asks it for. In a single step diffusers begins at the smallest sigma; we begin at the largest.
    #[default]
    Discrete,
    /// Evenly spaced in the seventh root of sigma (Karras and others, 2022). All implementations agree.
    Karras,
    /// Evenly spaced in the logarithm of sigma. All implementations agree.
    Exponential,
    /// Timesteps evenly spaced from the last to the first, which is left out: sd-cli and ComfyUI. diffusers' DPM-Solver rounds
    /// them to whole numbers and calls it `linspace`.
    SgmUniform,
    /// Every n-th timestep, counted from the last and rounded up: sd-cli and ComfyUI.
    Simple,
    /// Every n-th timestep, counted from the last and rounded to the nearest: diffusers' `trailing`. Where the number of steps
    /// divides 1000 it is `simple`. sd-cli does not have it.
    Trailing,
    /// Every n-th timestep, counted from the first, which the model's files may move: diffusers' `leading` in its Euler, Heun and LMS. It
    /// never reaches the largest noise, and begins with `sqrt(sigma^2 + 1) * noise`. sd-cli does not have it.
    Leading,
    /// Of the 50 timesteps that LCM models were trained on, every n-th: sd-cli and diffusers.
    Lcm,
}

named!(
    Schedule,
    "schedule",
    [
        (Discrete, "discrete"),
        (Karras, "karras"),
        (Exponential, "exponential"),
        (SgmUniform, "sgm_uniform"),
        (Simple, "simple"),
        (Trailing, "trailing"),
        (Leading, "leading"),
        (Lcm, "lcm"),
    ]
);

/// The timesteps that LCM models were trained on.
const LCM_STEPS: usize = 50;

/// The `i`-th of `n` numbers evenly spaced between two, both included; of one number, the first.
fn between(from: f64, to: f64, i: usize, n: usize) -> f64 {
    if n < 2 { from } else { from + (to - from) * (i as f64 / (n - 1) as f64) }
}

impl Schedule {
    /// The sigmas of a run of `steps` steps: one more than steps, strictly falling, the last of them zero.
    pub fn sigmas(self, levels: &NoiseLevels, steps: usize) -> Result<Vec<f32>, SamplingError> {
        let most = match self {
            Schedule::Lcm => levels.steps().min(LCM_STEPS),
            Schedule::Leading => levels.steps() - levels.steps_offset(),
            _ => levels.steps(),
        };
        if !(1..=most).contains(&steps) {
            return Err(SamplingError::Steps { schedule: self.name(), steps, most });
        }
        let last = levels.steps() - 1;
        let (smallest, largest) = (levels.level(0), levels.level(last));
        // Timesteps from one visited to the next.
        let stride = levels.steps() as f64 / steps as f64;
        let sigma = |i: usize| match self {
            Schedule::Discrete => levels.sigma_between(between(last as f64, 0.0, i, steps)),
            Schedule::SgmUniform => levels.sigma_between(between(last as f64, 0.0, i, steps + 1)),
            Schedule::Karras => {
                const RHO: f64 = 7.0;
                between(largest.powf(1.0 / RHO), smallest.powf(1.0 / RHO), i, steps).powf(RHO)
            }
            Schedule::Exponential => between(largest.ln(), smallest.ln(), i, steps).exp(),
            Schedule::Simple => levels.level(last - ((i as f64 * stride) as usize).min(last)),
            Schedule::Trailing => {
                let timestep = (levels.steps() as f64 - i as f64 * stride).round_ties_even() as usize;
                levels.level(timestep.saturating_sub(1).min(last))
            }
            Schedule::Leading => {
                let first = (steps - 1 - i) * (levels.steps() / steps);
                levels.level((first + levels.steps_offset()).min(last))
            }
            Schedule::Lcm => levels.level((most - i * most / steps) * (levels.steps() / most) - 1),
        };
        Ok((0..steps).map(|i| sigma(i) as f32).chain([0.0]).collect())
    }

    /// The standard deviation of the noise that a run without a picture begins with, where the first noise level is `sigma`.
    pub fn first_deviation(self, sigma: f32) -> f32 {
        match self {
            Schedule::Leading => f64::from(sigma).hypot(1.0) as f32,
            _ => sigma,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{BetaSchedule, TrainingNoise};
    use super::*;

    #[test]
    fn sigmas_fall_from_the_largest_to_zero_in_every_schedule() {
        let sd = TrainingNoise::default();
        for training in [
            sd,
            TrainingNoise { zero_terminal_snr: true, ..sd },
            TrainingNoise { betas: BetaSchedule::Linear, beta_start: 1e-4, beta_end: 0.02, ..sd },
            TrainingNoise { steps: 57, ..sd },
            TrainingNoise { steps: 3, ..sd },
        ] {
            let levels = NoiseLevels::new(&training).expect("valid");
            for &schedule in Schedule::ALL {
                for steps in (1..=200).chain([333, 999, 1000]) {
                    let sigmas = match schedule.sigmas(&levels, steps) {
                        Ok(sigmas) => sigmas,
                        Err(SamplingError::Steps { most, .. }) if steps > most => continue,
                        Err(error) => panic!("{schedule} {steps}: {error}"),
                    };
                    assert_eq!((sigmas.len(), sigmas[steps]), (steps + 1, 0.0), "{schedule} {steps}");
                    assert!(sigmas.windows(2).all(|pair| pair[0] > pair[1]), "{schedule} {steps}: {sigmas:?}");
                    let reaches_all_noise = match schedule {
                        Schedule::Lcm => training.steps == 1000,
                        schedule => schedule != Schedule::Leading,
                    };
                    if reaches_all_noise {
                        assert!((sigmas[0] / levels.largest() - 1.0).abs() < 1e-6, "{schedule} {steps}: {}", sigmas[0]);
                    }
                }
            }
        }
    }

    #[test]
    fn steps_that_a_model_cannot_tell_apart_are_refused() {
        let levels = NoiseLevels::stable_diffusion();
        for &schedule in Schedule::ALL {
            for steps in [0, 1001, usize::MAX] {
                let error = schedule.sigmas(&levels, steps).expect_err("refused");
                assert!(error.to_string().contains(schedule.name()), "{error}");
            }
        }
        assert!(Schedule::Lcm.sigmas(&levels, 51).is_err());
    }

    #[test]
    fn names_are_read_as_written() {
        for &schedule in Schedule::ALL {
            assert_eq!(schedule.to_string().parse(), Ok(schedule));
        }
        let error = "karas".parse::<Schedule>().expect_err("unknown").to_string();
        assert_eq!(
            error,
            "there is no schedule 'karas'; known are discrete, karras, exponential, sgm_uniform, simple, trailing, leading, lcm"
        );
    }
}
