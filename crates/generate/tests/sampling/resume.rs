//! Runs that are interrupted, that fail, and that were stored wrongly. What a user would lose: a run that was nearly done.

use impasto_generate::sampling::{Method, NoiseLevels, Sampler, Schedule, StepError};
use impasto_generate::{Noise, NoiseKind};

use super::{Never, random, run};

fn denoise(x: &[f32], sigma: f32) -> Vec<f32> {
    x.iter().map(|x| (x / (1.0 + sigma)).tanh() * 0.9).collect()
}

fn begin(method: Method, eta: Option<f32>, steps: usize, noise: &mut Noise) -> Sampler {
    let sigmas = Schedule::Karras.sigmas(&NoiseLevels::stable_diffusion(), steps).expect("valid");
    let latent = noise.draw(20).iter().map(|n| n * sigmas[0]).collect();
    Sampler::new(method, eta, sigmas, latent).expect("valid")
}

fn bits(latent: &[f32]) -> Vec<u32> {
    latent.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn a_run_goes_on_from_what_was_stored_with_the_same_bits() {
    for kind in [NoiseKind::Cuda, NoiseKind::Cpu] {
        for &method in Method::ALL {
            for eta in [None, Some(0.3)] {
                let mut noise = Noise::new(kind, 5);
                let whole = begin(method, eta, 9, &mut noise);
                let mut parts = (whole.clone(), noise.clone());
                let whole = run(whole, denoise, |n| noise.draw(n)).expect("runs");
                while !parts.0.done() {
                    // All that goes from one process to the next.
                    let stored = serde_json::to_string(&parts).expect("can be stored");
                    let (mut sampler, mut noise): (Sampler, Noise) =
                        serde_json::from_str(&stored).expect("can be read");
                    assert_eq!(sampler, parts.0);
                    sampler.step(|x, sigma| Ok::<_, Never>(denoise(x, sigma)), |n| noise.draw(n)).expect("a step");
                    parts = (sampler, noise);
                }
                assert_eq!(bits(parts.0.latent()), bits(whole.latent()), "{method} {eta:?}");
                assert_eq!(parts.0.denoised().map(bits), whole.denoised().map(bits), "{method} {eta:?}");
            }
        }
    }
}

#[test]
fn a_step_that_fails_can_be_tried_again() {
    for &method in Method::ALL {
        let mut noise = Noise::new(NoiseKind::Cuda, 5);
        let sampler = begin(method, None, 4, &mut noise);
        let (mut halting, mut halting_noise) = (sampler.clone(), noise.clone());
        let whole = run(sampler, denoise, |n| noise.draw(n)).expect("runs");
        while !halting.done() {
            // The first call fails, then the second: heun has one, to others nothing happens.
            for good in 0..2 {
                let before = halting.clone();
                let mut calls = 0;
                let network = |x: &[f32], sigma: f32| {
                    calls += 1;
                    if calls > good { Err("device lost") } else { Ok(denoise(x, sigma)) }
                };
                match halting.step(network, |n| halting_noise.draw(n)) {
                    Ok(()) => break,
                    Err(error) => {
                        assert_eq!(error.to_string(), format!("step {} of 4: device lost", before.taken() + 1));
                        assert_eq!(halting, before, "{method}");
                    }
                }
            }
            if !halting.done() && method == Method::Heun {
                halting.step(|x, sigma| Ok::<_, Never>(denoise(x, sigma)), |n| halting_noise.draw(n)).expect("a step");
            }
        }
        assert_eq!(bits(halting.latent()), bits(whole.latent()), "{method}");
    }
}

#[test]
fn numbers_that_overflow_or_do_not_fit_are_refused_and_change_nothing() {
    for &method in Method::ALL {
        let mut sampler = begin(method, None, 3, &mut Noise::new(NoiseKind::Cpu, 1));
        let before = sampler.clone();
        let error =
            sampler.step(|x, _| Ok::<_, Never>(vec![f32::NAN; x.len()]), |n| vec![0.0; n]).expect_err("refused");
        assert_eq!(error, StepError::NotFinite { step: 1, steps: 3, bad: 20, of: 20 });
        let error = sampler.step(|_, _| Ok::<_, Never>(vec![0.0; 19]), |n| vec![0.0; n]).expect_err("refused");
        assert!(matches!(error, StepError::Length { got: 19, wanted: 20, .. }), "{error}");
        if random(method, None) {
            let error = sampler.step(|x, _| Ok::<_, Never>(x.to_vec()), |n| vec![0.0; n + 1]).expect_err("refused");
            assert!(matches!(error, StepError::Length { got: 21, wanted: 20, .. }), "{error}");
        }
        assert_eq!(sampler, before, "{method}");
        let mut done = run(sampler, denoise, |n| vec![0.0; n]).expect("runs");
        let error = done.step(|x, _| Ok::<_, Never>(x.to_vec()), |n| vec![0.0; n]).expect_err("done");
        assert_eq!(error, StepError::Done { steps: 3 });
    }
}

#[test]
fn runs_that_cannot_be_are_refused() {
    let begin = |eta, sigmas: &[f32]| Sampler::new(Method::EulerA, eta, sigmas.to_vec(), vec![1.0; 4]);
    for sigmas in
        [&[][..], &[1.0, 1.0], &[1.0, 2.0], &[1.0, -0.5], &[f32::NAN, 0.0], &[f32::INFINITY, 0.0], &[1.0, f32::NAN]]
    {
        let error = begin(None, sigmas).expect_err("refused").to_string();
        assert!(error.starts_with("the noise levels of a run must be finite and fall"), "{error}");
    }
    for eta in [-1.0, f32::NAN, f32::INFINITY] {
        assert!(begin(Some(eta), &[1.0, 0.0]).is_err(), "{eta}");
    }
    // No steps at all: a picture that is changed with a strength of 0.
    assert!(begin(None, &[0.0]).expect("valid").done());
}

#[test]
fn damaged_runs_are_refused() {
    let mut noise = Noise::new(NoiseKind::Cpu, 1);
    let mut sampler = begin(Method::Lms, None, 4, &mut noise);
    for _ in 0..2 {
        sampler.step(|x, sigma| Ok::<_, Never>(denoise(x, sigma)), |n| noise.draw(n)).expect("a step");
    }
    let stored = serde_json::to_string(&sampler).expect("can be stored");
    for (from, to) in [
        ("\"taken\":2", "\"taken\":5"),
        ("\"taken\":2", "\"taken\":0"),
        ("\"taken\":2", "\"taken\":3"),
        ("\"taken\":2", "\"taken\":-1"),
        ("\"method\":\"lms\"", "\"method\":\"euler\""),
        ("\"method\":\"lms\"", "\"method\":\"magic\""),
        ("\"eta\":0.0", "\"eta\":-1.0"),
        ("\"latent\":{\"f32_bits\":\"", "\"latent\":{\"f32_bits\":\"00000000"),
        ("\"latent\":{\"f32_bits\":\"", "\"latent\":{\"f32_bits\":\"0"),
        ("\"sigmas\":{\"f32_bits\":\"", "\"sigmas\":{\"f32_bits\":\"00000000"),
        ("\"slopes\":[{\"f32_bits\":\"", "\"slopes\":[{\"f32_bits\":\"00000000"),
    ] {
        let damaged = stored.replacen(from, to, 1);
        assert_ne!(damaged, stored, "{from}");
        assert!(serde_json::from_str::<Sampler>(&damaged).is_err(), "{from} {to}");
    }
}
