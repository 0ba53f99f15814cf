//! Whole runs against k-diffusion, diffusers, and published formulas in float64 (`tools/sampling_fixtures.py`). What a user would
//! lose: the picture that these settings give elsewhere.

use std::collections::BTreeMap;

use impasto_generate::sampling::{
    Method, NoiseLevels, Prediction, Sampler, Schedule, TrainingNoise, noised, pure_noise, remaining,
};
use serde::Deserialize;

use super::{Never, distance};

#[derive(Deserialize)]
#[serde(untagged)]
enum Line {
    Noise { noise: Vec<Vec<f32>> },
    Levels { levels: TrainingNoise, every: usize, sigmas: Vec<f32> },
    Run(Box<Run>),
}

#[derive(Deserialize)]
struct Run {
    /// Who computed it.
    reference: String,
    method: Method,
    schedule: Schedule,
    steps: usize,
    strength: f64,
    prediction: Prediction,
    zero_terminal_snr: bool,
    eta: f32,
    sigmas: Vec<f32>,
    timesteps: Vec<f32>,
    /// The latent after each step.
    states: Vec<Vec<f32>>,
}

/// The network of the fixtures.
fn network(z: &[f32], timestep: f32) -> Vec<f32> {
    let t = f64::from(timestep) / 999.0;
    let weight = |i: usize, j: usize| (1.3 * i as f64 + 0.7 * j as f64 + 0.5).cos() * 0.6;
    let answer = |(i, &own): (usize, &f32)| {
        let mix: f64 = z.iter().enumerate().map(|(j, &z)| weight(i, j) * f64::from(z)).sum();
        (f64::from(own) * (0.3 + 0.6 * t) + 0.4 * (mix + 2.0 * t - 1.0).tanh()) as f32
    };
    z.iter().enumerate().map(answer).collect()
}

fn close(got: &[f32], want: &[f32], bound: f64, what: &str) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (i, (&g, &w)) in got.iter().zip(want).enumerate() {
        let apart = (f64::from(g) - f64::from(w)).abs();
        assert!(apart <= bound * f64::from(w.abs()), "{what}, number {i}: {g}, expected {w}");
    }
}

/// Of what is computed in float64. In a step that is long against where it ends, Heun multiplies the rounding of what the network
/// sees there by hundreds.
fn bound(method: Method) -> f64 {
    if method == Method::Heun { 5e-6 } else { 1e-6 }
}

fn lines() -> impl Iterator<Item = Line> {
    include_str!("../fixtures/sampling.jsonl").lines().map(|line| serde_json::from_str(line).expect("a line"))
}

#[test]
fn levels_are_those_of_float64() {
    for line in lines() {
        if let Line::Levels { levels: training, every, sigmas } = line {
            let levels = NoiseLevels::new(&training).expect("valid");
            let got: Vec<f32> = (0..training.steps).step_by(every).map(|t| levels.sigma(t as f32)).collect();
            close(&got, &sigmas, 2e-7, &format!("{training:?}"));
        }
    }
}

#[test]
fn runs_are_those_of_k_diffusion_and_diffusers() {
    let mut noise = Vec::new();
    let mut worst: BTreeMap<(String, String), BTreeMap<String, f64>> = BTreeMap::new();
    let mut runs = 0;
    for line in lines() {
        let run = match line {
            Line::Noise { noise: rows } => {
                noise = rows;
                continue;
            }
            Line::Levels { .. } => continue,
            Line::Run(run) => run,
        };
        let Run { reference, method, schedule, steps, strength, prediction, zero_terminal_snr, .. } = &*run;
        let what = format!(
            "{method} {schedule} {steps} steps, strength {strength}, {prediction:?}, eta {}, zero snr {zero_terminal_snr}, {reference}",
            run.eta
        );
        let exact = reference != "diffusers";
        let training = TrainingNoise { zero_terminal_snr: *zero_terminal_snr, ..TrainingNoise::default() };
        let levels = NoiseLevels::new(&training).expect("valid");
        let all = schedule.sigmas(&levels, *steps).expect("valid");
        let sigmas = remaining(Prediction::Epsilon, &all, *strength).expect("valid").to_vec();
        close(&sigmas, &run.sigmas, if exact { 2e-7 } else { 1e-4 }, &what);
        let timesteps: Vec<f32> = sigmas[..sigmas.len() - 1].iter().map(|&sigma| levels.timestep(sigma)).collect();
        for (got, want) in timesteps.iter().zip(&run.timesteps) {
            assert!((got - want).abs() < if exact { 1e-3 } else { 0.02 }, "{what}: timestep {got}, expected {want}");
        }

        let mut draws = noise.iter();
        let mut draw = || draws.next().expect("enough noise").clone();
        let latent = if *strength == 1.0 {
            pure_noise(&draw(), sigmas[0])
        } else {
            let picture: Vec<f32> = (0..8).map(|i| (0.9 * f64::from(i) + 0.2).cos() as f32).collect();
            noised(*prediction, &picture, &draw(), sigmas[0]).expect("one size")
        };
        let mut sampler = Sampler::new(*method, Some(run.eta), sigmas, latent).expect("valid");
        let mut furthest = 0.0f64;
        for want in &run.states {
            let denoise = |x: &[f32], sigma: f32| {
                let output = network(&prediction.input(x, sigma), levels.timestep(sigma));
                Ok::<_, Never>(prediction.denoised(x, sigma, &output))
            };
            sampler.step(denoise, |_| draw()).expect(&what);
            let apart = distance(sampler.latent(), want);
            let bound = if exact { bound(*method) } else { 1e-4 };
            assert!(apart < bound, "{what}: step {}: {apart:.1e}", sampler.taken());
            furthest = furthest.max(apart);
        }
        assert!(sampler.done(), "{what}");
        let row = worst.entry((method.to_string(), reference.clone())).or_default();
        let cell = row.entry(schedule.to_string()).or_default();
        *cell = cell.max(furthest);
        runs += 1;
    }
    assert!(runs > 300, "{runs} runs");
    // With --nocapture, the largest relative error after any step of any run, in the tables of a report.
    for ((method, reference), row) in &worst {
        let cells: Vec<String> = row.iter().map(|(schedule, error)| format!("{schedule} {error:.1e}")).collect();
        println!("{method:>13} {reference:>11}: {}", cells.join(", "));
    }
    for &method in Method::ALL {
        let compared = worst.keys().filter(|(name, _)| name == method.name()).count();
        assert!(compared > 0, "{method} is compared with nothing");
    }
}
