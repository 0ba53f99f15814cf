//! Every module is one that NVIDIA's assembler takes, for every target.

use impasto_kernel::{Kernel, KernelError};
use impasto_ptx::{PtxTarget, compiler};
use impasto_testkit::kernel::{edges, gemm, kernels, programs, random};
use impasto_testkit::ptx::{assemble, cases, targets};

/// Writes kernels as one module, optimised and not, and assembles it.
fn check(kernels: &[Kernel], target: PtxTarget) {
    for (compiler, how) in [(compiler(target), "optimised"), (compiler(target).unoptimised(), "unoptimised")] {
        let module = compiler.compile(kernels).unwrap_or_else(|e| panic!("{target}, {how}: {e}"));
        assemble(&module.bytes, target).unwrap_or_else(|e| panic!("{target}, {how}: {e}"));
    }
}

#[test]
fn random_kernels_are_assembled() {
    let all: Vec<Kernel> = programs(100).map(|seed| random::kernel(seed, 10 + (seed % 40) as usize)).collect();
    targets().into_iter().for_each(|target| check(&all, target));
}

#[test]
fn real_kernels_are_assembled() {
    let mut all: Vec<Kernel> = kernels::all(0).into_iter().map(|case| case.kernel).collect();
    for (i, kernel) in all.iter_mut().enumerate() {
        // Some are one kernel, specialised in two ways.
        kernel.name = format!("{}_{i}", kernel.name);
    }
    targets().into_iter().for_each(|target| check(&all, target));
}

#[test]
fn products_of_matrices_are_assembled_where_the_target_has_them() {
    for target in targets() {
        let (mut all, mut refused) = (Vec::new(), 0);
        for seed in programs(60) {
            let case = gemm::case(seed, 32);
            let mut kernel = gemm::kernel(&case);
            kernel.name = format!("gemm_{seed}");
            match compiler(target).compile(std::slice::from_ref(&kernel)) {
                Ok(_) => all.push(kernel),
                Err(KernelError::NoMatrix { .. }) => refused += 1,
                Err(e) => panic!("{target}, {case:?}: {e}"),
            }
        }
        assert!(all.len() >= 12 && refused >= 12, "{target}: {} taken, {refused} refused", all.len());
        check(&all, target);
    }
}

#[test]
fn corners_of_the_emitter_are_assembled() {
    for target in targets() {
        let mut all = vec![edges::undefined_elsewhere().0, edges::small_floats().0];
        all.extend(cases::all().into_iter().map(|case| case.kernel));
        all.retain(|k| target != PtxTarget::Sm75 || !k.name.starts_with("blocks_bf16"));
        check(&all, target);
    }
}

#[test]
fn the_assembler_really_looks() {
    let module = compiler(PtxTarget::Sm80).compile(&[random::kernel(1, 10)]).unwrap();
    let text = String::from_utf8(module.bytes).unwrap();
    assemble(text.as_bytes(), PtxTarget::Sm80).unwrap();
    let wrong = text.replacen("%tid.x", "%tid.q", 1);
    assert_ne!(wrong, text);
    assert!(assemble(wrong.as_bytes(), PtxTarget::Sm80).is_err());
}
