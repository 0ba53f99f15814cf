//! Random kernels before and after each pass, judged by the executor. If one of these fails, a picture would be wrong on some device.
//!
//! `IMPASTO_KERNEL_PROGRAMS=10000 cargo test --release -p impasto-kernel --test differential` is the long run.

use impasto_kernel::{BufferData, Kernel, Launch, PASSES, Pass, construct, optimise, verify};
use impasto_testkit::kernel::{members, outputs_of, programs, random, same};

/// A kernel of each kind, with what it is run on and what it computes as it was written.
fn kernels(seed: u64, size: usize) -> Vec<(Kernel, Launch, Vec<BufferData>)> {
    let all =
        [(random::kernel(seed, size), random::launch(seed)), (members::kernel(seed, size), members::launch(seed))];
    let with_results = |(kernel, launch): (Kernel, Launch)| {
        let expected = outputs_of(&kernel, &launch).unwrap_or_else(|e| panic!("seed {seed}: {e}\n{kernel}"));
        (kernel, launch, expected)
    };
    all.into_iter().map(with_results).collect()
}

/// The kernel after a pass, valid and with the same results.
fn apply(pass: Pass, kernel: &Kernel, launch: &Launch, seed: u64, expected: &[BufferData], after: &str) -> Kernel {
    let fail = |e: String| -> ! { panic!("seed {seed}, '{}' after '{after}': {e}\n{kernel}", pass.name) };
    let made = pass.run(kernel).unwrap_or_else(|e| fail(e.to_string()));
    verify(&made).unwrap_or_else(|e| fail(e.to_string()));
    let got = outputs_of(&made, launch).unwrap_or_else(|e| fail(format!("{e}\n{made}")));
    same(expected, &got).unwrap_or_else(|e| fail(format!("{e}\n{made}")));
    made
}

#[test]
fn every_pass_keeps_the_results_of_random_kernels() {
    for seed in programs(300) {
        for (kernel, launch, expected) in kernels(seed, 10 + (seed % 40) as usize) {
            apply(PASSES[0], &kernel, &launch, seed, &expected, "nothing");
            let ssa = construct(&kernel).unwrap_or_else(|e| panic!("seed {seed}: {e}\n{kernel}"));
            let got = outputs_of(&ssa, &launch).unwrap_or_else(|e| panic!("seed {seed}: {e}\n{kernel}\n{ssa}"));
            same(&expected, &got).unwrap_or_else(|e| panic!("seed {seed}: {e}\n{kernel}\n{ssa}"));
            for &pass in &PASSES[1..] {
                apply(pass, &ssa, &launch, seed, &expected, "ssa");
            }
        }
    }
}

#[test]
fn passes_in_any_order_keep_the_results() {
    for seed in programs(300) {
        let mut rng = random::Rng::new(seed ^ 77);
        for (kernel, launch, expected) in kernels(seed, 10 + (seed % 40) as usize) {
            let mut now = construct(&kernel).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
            let mut after = "ssa".to_owned();
            for _ in 0..8 {
                let pass = PASSES[1 + rng.below(PASSES.len() - 1)];
                now = apply(pass, &now, &launch, seed, &expected, &after);
                after = format!("{after}, {}", pass.name);
            }
        }
    }
}

#[test]
fn the_pipeline_keeps_the_results_and_is_stable() {
    for seed in programs(300) {
        for (kernel, launch, expected) in kernels(seed, 10 + (seed % 60) as usize) {
            let best = optimise(&kernel).unwrap_or_else(|e| panic!("seed {seed}: {e}\n{kernel}"));
            let got = outputs_of(&best, &launch).unwrap_or_else(|e| panic!("seed {seed}: {e}\n{best}"));
            same(&expected, &got).unwrap_or_else(|e| panic!("seed {seed}: {e}\n{kernel}\n{best}"));
            assert_eq!(optimise(&kernel).unwrap().to_string(), best.to_string(), "seed {seed}: not the same twice");
        }
    }
}
