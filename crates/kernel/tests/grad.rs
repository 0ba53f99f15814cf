//! Derivatives of kernels, each held to differences in f64, to forward mode, and to the closed form where there is one.

mod common;

use common::gradients::{adjoints, hold, nothing_changes};
use common::random::Rng;
use common::{cases, differentiable, programs};
use impasto_kernel::{Data, Grad, Launch, Role};

/// The adjoint of random adjoints: its kernel and a launch of it.
fn adjoint_launch(grad: &Grad, launch: &Launch, seed: u64) -> Launch {
    let mut rng = Rng::new(seed ^ 0xABCD);
    let mut given = Vec::new();
    for role in &grad.roles {
        if let Role::Derivative { of, .. } = *role {
            let n = launch.buffers[of].bits.len();
            let w: Vec<f64> = (0..n).map(|_| (rng.below(2001) as f64 - 1000.0) / 900.0).collect();
            given.push((of, Data::wide(&w)));
        }
    }
    let slots = grad.slots(launch).unwrap();
    grad.launch(launch, &given, slots).unwrap()
}

#[test]
fn every_kind_of_case_has_the_derivatives_that_differences_and_closed_forms_say() {
    let cases = cases::all();
    assert!(cases.len() >= 80, "{}", cases.len());
    for case in &cases {
        let grad = hold(&case.kernel, &case.launch, 3).unwrap_or_else(|e| panic!("{}: {e}", case.name));
        let Some(closed) = &case.closed else { continue };
        let last = case.launch.buffers.len() - 1;
        let ones = vec![1.0; case.launch.buffers[last].bits.len()];
        let got = adjoints(&grad, &case.launch, &[(last, ones)]).unwrap_or_else(|e| panic!("{}: {e}", case.name));
        let got = got[0].as_ref().unwrap_or_else(|| panic!("{}: no adjoint", case.name));
        for (i, (a, b)) in got.iter().zip(closed).enumerate() {
            assert!((a - b).abs() <= 1e-6 * (1.0 + b.abs()), "{}, element {i}: {a} and {b}", case.name);
        }
    }
}

#[test]
fn random_programs_have_the_derivatives_that_differences_say() {
    for seed in 0..programs(100) {
        let kernel = differentiable::kernel(seed, 6 + (seed % 24) as usize);
        let launch = differentiable::launch(seed);
        match hold(&kernel, &launch, seed) {
            Err(e) if e.contains("no buffer that it writes depends") => {
                assert_eq!(nothing_changes(&kernel, &launch), Ok(true), "seed {seed}");
            }
            result => {
                result.unwrap_or_else(|e| panic!("seed {seed}: {e}\n{kernel}"));
            }
        }
    }
}

#[test]
fn adjoints_of_adjoints_of_random_programs_have_the_derivatives_that_differences_say() {
    for seed in 0..programs(60) {
        let kernel = differentiable::kernel_that_writes_once(seed, 4 + (seed % 12) as usize);
        let launch = differentiable::launch(seed);
        let Ok(grad) = kernel.grad() else {
            assert_eq!(nothing_changes(&kernel, &launch), Ok(true), "seed {seed}");
            continue;
        };
        hold(&grad.kernel, &adjoint_launch(&grad, &launch, seed), seed)
            .unwrap_or_else(|e| panic!("seed {seed}: {e}\n{kernel}\n{}", grad.kernel));
    }
}
