//! What holds for every method and schedule, and exact solutions.

use impasto_generate::sampling::{Method, NoiseLevels, Prediction, Sampler, Schedule, pure_noise};
use impasto_generate::{Noise, NoiseKind};
use proptest::prelude::*;

use super::{distance, random, run};

/// Pictures that are normally distributed around `MEAN` with the deviation `SPREAD`: then what a perfect network sees is linear, and
/// the path from noise to picture is known.
const MEAN: f32 = 0.4;
const SPREAD: f32 = 0.6;

fn gaussian(x: &[f32], sigma: f32) -> Vec<f32> {
    let (s, v) = (f64::from(sigma).powi(2), f64::from(SPREAD).powi(2));
    x.iter().map(|&x| ((f64::from(x) * v + f64::from(MEAN) * s) / (s + v)) as f32).collect()
}

/// Where the path through `x` at one level is at another.
fn path(x: &[f32], from: f32, to: f32) -> Vec<f32> {
    let width = |sigma: f32| f64::from(sigma).hypot(f64::from(SPREAD));
    let mean = f64::from(MEAN);
    x.iter().map(|&x| (mean + (f64::from(x) - mean) * width(to) / width(from)) as f32).collect()
}

#[test]
fn methods_without_noise_converge_to_the_exact_path_with_their_order() {
    let levels = NoiseLevels::stable_diffusion();
    let start = pure_noise(&Noise::new(NoiseKind::Cpu, 3).draw(32), levels.largest());
    // Without the step to zero, in which every method is of first order.
    let error = |method, steps: usize| {
        let mut sigmas = Schedule::Exponential.sigmas(&levels, steps).expect("valid");
        sigmas.pop();
        let want = path(&start, sigmas[0], sigmas[steps - 1]);
        let sampler = Sampler::new(method, Some(0.0), sigmas, start.clone()).expect("valid");
        distance(run(sampler, gaussian, |_| unreachable!("no noise")).expect("runs").latent(), &want)
    };
    for (method, order, steps) in [
        (Method::Euler, 1.0, 200),
        (Method::EulerA, 1.0, 200),
        (Method::DdimTrailing, 1.0, 200),
        (Method::Heun, 2.0, 50),
        (Method::Dpmpp2m, 2.0, 100),
        (Method::Dpmpp2mSde, 2.0, 100),
        (Method::Lms, 4.0, 50),
    ] {
        let (coarse, fine) = (error(method, steps), error(method, 2 * steps));
        let got = (coarse / fine).log2();
        println!("{method}: {coarse:.1e} in {steps} steps, {fine:.1e} in twice as many: order {got:.2}");
        assert!((got - order).abs() < 0.4 && fine < 0.02, "{method}: {coarse} then {fine}: order {got}");
    }
}

#[test]
fn noisy_methods_end_in_the_distribution_of_pictures() {
    let levels = NoiseLevels::stable_diffusion();
    for (method, steps) in [(Method::EulerA, 200), (Method::Dpmpp2mSde, 100), (Method::DdimTrailing, 200)] {
        let sigmas = Schedule::Karras.sigmas(&levels, steps).expect("valid");
        let mut noise = Noise::new(NoiseKind::Cuda, 11);
        let start = pure_noise(&noise.draw(4000), sigmas[0]);
        let sampler = Sampler::new(method, Some(1.0), sigmas, start).expect("valid");
        let end = run(sampler, gaussian, |n| noise.draw(n)).expect("runs").into_latent();
        let mean = end.iter().sum::<f32>() / end.len() as f32;
        let spread = (end.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / end.len() as f32).sqrt();
        assert!((mean - MEAN).abs() < 0.05 && (spread - SPREAD).abs() < 0.04, "{method}: {mean} and {spread}");
    }
}

#[test]
fn euler_a_without_noise_is_euler() {
    let levels = NoiseLevels::stable_diffusion();
    for &schedule in Schedule::ALL {
        let sigmas = schedule.sigmas(&levels, 12).expect("valid");
        let start = pure_noise(&Noise::new(NoiseKind::Cpu, 3).draw(32), sigmas[0]);
        let end = |method, eta| {
            let sampler = Sampler::new(method, eta, sigmas.clone(), start.clone()).expect("valid");
            run(sampler, gaussian, |_| unreachable!("no noise")).expect("runs").into_latent()
        };
        let euler = end(Method::Euler, None);
        assert_eq!(end(Method::EulerA, Some(0.0)), euler);
        assert_eq!(end(Method::DdimTrailing, None), euler);
        assert_eq!(end(Method::Dpmpp2mSde, Some(0.0)), end(Method::Dpmpp2m, None));
    }
}

#[test]
fn noise_is_drawn_once_for_each_step_that_adds_some() {
    let levels = NoiseLevels::stable_diffusion();
    for &method in Method::ALL {
        let sigmas = Schedule::Discrete.sigmas(&levels, 6).expect("valid");
        let mut sizes = Vec::new();
        let sampler = Sampler::new(method, None, sigmas, vec![1.0; 12]).expect("valid");
        let draw = |n: usize| {
            sizes.push(n);
            vec![0.5; n]
        };
        run(sampler, gaussian, draw).expect("runs");
        // The last step leads to no noise.
        assert_eq!(sizes, vec![12; if random(method, None) { 5 } else { 0 }], "{method}");
    }
}

/// A preview is what the network saw; every method but LMS ends with it.
#[test]
fn the_last_preview_is_the_picture() {
    let levels = NoiseLevels::stable_diffusion();
    for &method in Method::ALL {
        let sigmas = Schedule::Karras.sigmas(&levels, 5).expect("valid");
        let sampler = Sampler::new(method, None, sigmas, vec![3.0; 12]).expect("valid");
        assert_eq!(sampler.denoised(), None);
        let sampler = run(sampler, gaussian, |n| vec![0.1; n]).expect("runs");
        let preview = sampler.denoised().expect("a preview");
        assert!(method == Method::Lms || preview == sampler.latent(), "{method}");
    }
}

proptest! {
    #[test]
    fn every_run_ends_and_stays_finite(
        method in prop::sample::select(Method::ALL),
        schedule in prop::sample::select(Schedule::ALL),
        steps in prop_oneof![Just(1usize), Just(2), 3usize..40],
        eta in prop::option::of(prop_oneof![Just(0.0f32), Just(1.0), 0.0f32..3.0, Just(1e30)]),
        prediction in prop::sample::select(&[Prediction::Epsilon, Prediction::V][..]),
        zero_terminal_snr: bool,
        seed: u64,
    ) {
        let training = impasto_generate::sampling::TrainingNoise { zero_terminal_snr, ..Default::default() };
        let levels = NoiseLevels::new(&training).expect("valid");
        let sigmas = schedule.sigmas(&levels, steps).expect("valid");
        let mut noise = Noise::new(NoiseKind::Cuda, seed);
        let start = pure_noise(&noise.draw(16), sigmas[0]);
        let sampler = Sampler::new(method, eta, sigmas, start).expect("valid");
        let network = |x: &[f32], sigma: f32| {
            let input = prediction.input(x, sigma);
            let t = levels.timestep(sigma) / 999.0;
            let output: Vec<f32> = input.iter().map(|z| z.tanh() * (0.5 + 0.5 * t)).collect();
            prediction.denoised(x, sigma, &output)
        };
        let end = run(sampler, network, |n| noise.draw(n)).expect("runs");
        prop_assert_eq!((end.taken(), end.latent().len()), (steps, 16));
        prop_assert!(end.latent().iter().all(|x| x.is_finite()));
    }
}
