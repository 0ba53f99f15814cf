//! What modules compute, on an interpreter of PTX, against the executor: so that a wrong register or branch is found where there is no GPU. The example
//! `on_device` does the same on one.

use impasto_kernel::blowup::Case;
use impasto_kernel::{BufferData, CompiledModule, Kernel, KernelError, Launch, execute, lower_matrices};
use impasto_ptx::{PtxTarget, compiler};
use impasto_testkit::kernel::{edges, gemm, kernels, programs, random, same};
use impasto_testkit::ptx::cases;
use impasto_testkit::ptx::interpreter::run;

/// Before Ampere, and with what it brought: the others have the same instructions.
const TARGETS: [PtxTarget; 2] = [PtxTarget::Sm75, PtxTarget::Sm80];

/// The module of a kernel, optimised and not.
fn both(kernel: &Kernel, target: PtxTarget) -> [(CompiledModule, &'static str); 2] {
    let one = std::slice::from_ref(kernel);
    let made = |m: Result<CompiledModule, KernelError>| m.unwrap_or_else(|e| panic!("{target}: {e}"));
    [
        (made(compiler(target).compile(one)), "optimised"),
        (made(compiler(target).unoptimised().compile(one)), "unoptimised"),
    ]
}

fn compare(kernel: &Kernel, launch: &Launch, what: &str) {
    let mut expected = launch.clone();
    execute(kernel, &mut expected).unwrap_or_else(|e| panic!("{what}: {e}"));
    for target in TARGETS {
        for (module, how) in both(kernel, target) {
            let got: Result<Vec<BufferData>, String> = run(&module, kernel, launch);
            let equal = got.and_then(|got| same(&expected.buffers, &got));
            equal.unwrap_or_else(|e| panic!("{what}, {target}, {how}: {e}\n{kernel}"));
        }
    }
}

#[test]
fn random_kernels_give_the_bits_of_the_executor() {
    for seed in programs(200) {
        let kernel = random::kernel(seed, 10 + (seed % 40) as usize);
        compare(&kernel, &random::launch(seed), &format!("seed {seed}"));
    }
}

#[test]
fn real_kernels_compute_what_plain_rust_computes() {
    for case in kernels::all(0) {
        for target in TARGETS {
            for (module, how) in both(&case.kernel, target) {
                let right = run(&module, &case.kernel, &case.launch).and_then(|got| kernels::right(&case, &got));
                right.unwrap_or_else(|e| panic!("{}, {target}, {how}: {e}", case.kernel.name));
            }
        }
    }
}

#[test]
fn the_language_computes_what_the_same_rust_computes() {
    for twin in impasto_testkit::kernel::twins::all() {
        let kernel = (twin.kernel)().unwrap();
        for (module, how) in both(&kernel, PtxTarget::Sm80) {
            for seed in 0..3 {
                let (launch, want) = twin.launch(seed);
                let got = run(&module, &kernel, &launch).unwrap_or_else(|e| panic!("{}, {how}: {e}", twin.name));
                assert_eq!(got[5].bits, want, "{}, {how}, seed {seed}", twin.name);
            }
        }
    }
}

#[test]
fn products_of_matrices_are_right_or_taken_apart() {
    for target in TARGETS {
        let (mut taken, mut refused) = (0, 0);
        for seed in programs(60) {
            let case = gemm::case(seed, 32);
            let kernel = gemm::kernel(&case);
            let mut expected = gemm::launch(&case);
            execute(&kernel, &mut expected).unwrap_or_else(|e| panic!("{case:?}: {e}"));
            match compiler(target).compile(std::slice::from_ref(&kernel)) {
                Ok(_) => {
                    taken += 1;
                    for (module, how) in both(&kernel, target) {
                        let got = run(&module, &kernel, &gemm::launch(&case));
                        let got = got.unwrap_or_else(|e| panic!("{case:?}, {target}, {how}: {e}"));
                        let error = gemm::error(&case, &expected.buffers[2], &got[2]);
                        assert!(error < 1.0, "{case:?}, {target}, {how}: {error} of what is allowed");
                    }
                }
                Err(KernelError::NoMatrix { .. }) => {
                    refused += 1;
                    let lowered = lower_matrices(&kernel, 32).unwrap();
                    let module = compiler(target).compile(std::slice::from_ref(&lowered)).unwrap();
                    let got = run(&module, &lowered, &gemm::launch(&case)).unwrap_or_else(|e| panic!("{case:?}: {e}"));
                    same(&expected.buffers, &got).unwrap_or_else(|e| panic!("{case:?}, {target}: {e}"));
                }
                Err(e) => panic!("{case:?}: {e}"),
            }
        }
        assert!(taken >= 12 && refused >= 12, "{target}: {taken} taken, {refused} refused");
    }
}

#[test]
fn corners_of_the_emitter_give_the_results_of_the_executor() {
    for case in cases::all() {
        let mut expected = case.launch.clone();
        execute(&case.kernel, &mut expected).unwrap_or_else(|e| panic!("{e}"));
        for target in TARGETS {
            if target == PtxTarget::Sm75 && case.kernel.name.starts_with("blocks_bf16") {
                continue;
            }
            for (module, how) in both(&case.kernel, target) {
                let got = run(&module, &case.kernel, &case.launch);
                let right = got.and_then(|got| cases::right(&case, &expected.buffers, &got));
                right.unwrap_or_else(|e| panic!("{}, {target}, {how}: {e}", case.kernel.name));
            }
        }
    }
}

#[test]
fn what_others_leave_undefined_is_defined() {
    let (kernel, launch) = edges::undefined_elsewhere();
    compare(&kernel, &launch, "edges");
    let (kernel, launch, words) = edges::small_floats();
    let mut expected = launch.clone();
    execute(&kernel, &mut expected).unwrap();
    for target in TARGETS {
        for (module, how) in both(&kernel, target) {
            let mut got = run(&module, &kernel, &launch).unwrap_or_else(|e| panic!("{target}, {how}: {e}"));
            edges::leave_out_nan(&words, &expected.buffers, &mut got);
            same(&expected.buffers, &got).unwrap_or_else(|e| panic!("{target}, {how}: {e}"));
        }
    }
}

#[test]
fn large_kernels_are_as_long_as_what_they_do() {
    for case in ["sparse 300 300 2", "loop 200 200 2", "sparse 1000 50 20"] {
        let case: Case = case.parse().unwrap();
        let Case { variables: v, joins: j, changes: k, .. } = case;
        let kernel = case.kernel().unwrap();
        compare(&kernel, &case.launch(), &case.to_string());
        let module = compiler(PtxTarget::Sm80).compile(&[kernel]).unwrap();
        // A handful of lines for each variable, join and change: far below variables x joins.
        let (lines, most) =
            (module.bytes.iter().filter(|b| **b == b'\n').count() as u32, 8 * v + 20 * j + 8 * j * k + 100);
        assert!(lines < most, "{case}: {lines} lines, more than {most}");
    }
}
