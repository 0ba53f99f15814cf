//! Modules with matrices of a subgroup are well-formed, and what a device lacks is refused. `kernel/tests/matrix.rs` holds them to what they compute.

use crate::support::{dense, valid_by};
use impasto_kernel::{
    Accumulator, BufferData, Builder, CompiledModule, Feature, Kernel, KernelError, Launch, MatrixA, MatrixB,
    MatrixLayout, MatrixShape, Scalar, Target, execute, lower_matrices, optimise,
};
use impasto_spirv::{ModuleOptions, Words, compile, compile_for, optimise_words};
use impasto_testkit::kernel::{gemm, programs, same};

fn unoptimised(kernel: &Kernel, target: Target) -> Result<CompiledModule, KernelError> {
    impasto_spirv::compiler(target).unoptimised().compile(std::slice::from_ref(kernel))
}

/// Modules with matrices are younger than the `spirv-val` of Debian. `IMPASTO_SPIRV_VAL` names one that knows them; without it, the words
/// are still read by `rspirv`, ids counted and capabilities compared.
#[test]
fn words_are_well_formed_and_ask_for_what_they_use() {
    use rspirv::spirv::Capability as C;
    for seed in programs(40) {
        let case = gemm::case(seed, 32);
        let kernel = gemm::kernel(&case);
        for (how, module) in [
            ("optimised", compile_for(&kernel, gemm::target())),
            ("unoptimised", unoptimised(&kernel, gemm::target())),
            ("exact", compile_for(&kernel, gemm::target().with(Feature::SignedZerosF16).with(Feature::SignedZerosF32))),
        ] {
            let module = module.unwrap_or_else(|e| panic!("{case:?}, {how}: {e}"));
            dense(&module).unwrap_or_else(|e| panic!("{case:?}, {how}: {e}"));
            if let Ok(validator) = std::env::var("IMPASTO_SPIRV_VAL") {
                valid_by(&validator, &module.words()).unwrap_or_else(|e| panic!("{case:?}, {how}: {e}"));
            }
            let read = rspirv::dr::load_words(module.words()).unwrap_or_else(|e| panic!("{case:?}, {how}: {e}"));
            let has = |c: C| read.capabilities.iter().any(|i| i.operands[0] == rspirv::dr::Operand::Capability(c));
            let bf16 = case.shape.factor == Scalar::Bf16;
            assert!(has(C::CooperativeMatrixKHR) && has(C::VulkanMemoryModel), "{case:?}, {how}");
            // The type comes with the matrices of it.
            assert_eq!(has(C::BFloat16CooperativeMatrixKHR), bf16, "{case:?}, {how}");
            // As a module of somebody else it is understood, and what is made of it has the same matrices.
            let strict = ModuleOptions { strict: true, ..ModuleOptions::default() };
            let made = optimise_words(&module.words(), strict).unwrap_or_else(|e| panic!("{case:?}, {how}: {e}"));
            if let Ok(validator) = std::env::var("IMPASTO_SPIRV_VAL") {
                valid_by(&validator, &made.words).unwrap_or_else(|e| panic!("{case:?}, {how}, optimised: {e}"));
            }
            let again = rspirv::dr::load_words(&made.words).unwrap_or_else(|e| panic!("{case:?}, {how}: {e}"));
            let matrices = |module: &rspirv::dr::Module| {
                let name = |i: &rspirv::dr::Instruction| i.class.opname;
                let mut all: Vec<&str> = module.all_inst_iter().map(name).filter(|n| n.contains("Matrix")).collect();
                all.sort_unstable();
                all
            };
            if how != "unoptimised" {
                assert_eq!(matrices(&read), matrices(&again), "{case:?}, {how}");
            }
            let products = read.all_inst_iter().filter(|i| i.class.opname == "CooperativeMatrixMulAddKHR").count();
            assert!(products > 0, "{case:?}, {how}");
        }
    }
}

#[test]
fn every_op_on_bf16_and_f32_matrices_is_a_module_and_can_be_lowered() {
    use half::bf16;
    let kernel = Builder::kernel("all", [32, 1, 1], |k| {
        let (x, y) = (k.buffer::<bf16>("x"), k.buffer_mut::<f32>("y"));
        let counts = k.buffer_mut::<u32>("counts");
        let tile = k.shared::<bf16>("tile", 256);
        let half = k.matrix_fill::<MatrixB<bf16, 16, 16>>(bf16::from_f32(0.5));
        let a = k.matrix_load::<MatrixA<bf16, 16, 16>>(x, 0, 16, MatrixLayout::Row);
        k.matrix_store(tile, 0, 16, MatrixLayout::Column, a);
        k.barrier();
        let b = k.matrix_load::<MatrixA<bf16, 16, 16>>(tile, 0, 16, MatrixLayout::Row);
        let zero = k.matrix_fill::<Accumulator<f32, 16, 16>>(0.0);
        let c = k.matrix_mul_add(b, half, zero);
        let c = k.if_value(k.workgroup_id(0).eq(0), || c.elements_as::<bf16>().elements_as::<f32>(), || c.plus(c));
        counts.atomic_add(0, 1);
        k.matrix_store(y, 0, 16, MatrixLayout::Row, c.minus(zero).times(c).scaled(3.0));
    })
    .unwrap();
    let shape = MatrixShape { factor: Scalar::Bf16, result: Scalar::F32, m: 16, n: 16, k: 16 };
    let rounded = MatrixShape { factor: Scalar::Bf16, result: Scalar::Bf16, ..shape };
    let target = Target::ANY.with_products(vec![shape, rounded]);
    for module in [compile_for(&kernel, target.clone()).unwrap(), unoptimised(&kernel, target).unwrap()] {
        dense(&module).unwrap();
        if let Ok(validator) = std::env::var("IMPASTO_SPIRV_VAL") {
            valid_by(&validator, &module.words()).unwrap();
        }
    }
    let mut input = BufferData::zeros(Scalar::Bf16, 256);
    input.bits.iter_mut().enumerate().for_each(|(i, b)| *b = bf16::from_f32(i as f32 / 37.0 - 3.0).to_bits().into());
    let buffers = vec![input, BufferData::zeros(Scalar::F32, 256), BufferData::zeros(Scalar::U32, 1)];
    let mut runs = [kernel.clone(), optimise(&lower_matrices(&kernel, 32).unwrap()).unwrap()].map(|k| {
        let mut launch = Launch::new([1, 1, 1], buffers.clone());
        execute(&k, &mut launch).unwrap();
        launch.buffers
    });
    same(&runs[0], &runs[1]).unwrap();
    // Row 1 of the transpose is column 1: its sum halved, rounded to bf16, squared and tripled.
    let sum: f32 = (0..16).map(|i| bf16::from_f32((i * 16 + 1) as f32 / 37.0 - 3.0).to_f32() * 0.5).sum();
    let c = bf16::from_f32(sum).to_f32();
    assert_eq!(runs[0].remove(1).to_f32().unwrap()[16], c * c * 3.0);
}

#[test]
fn a_target_without_the_shape_is_refused_with_what_is_missing() {
    let case = gemm::case(0, 32);
    let kernel = gemm::kernel(&case);
    let text = compile_for(&kernel, Target::LEAST).unwrap_err().to_string();
    assert!(text.contains("products 16x16x16 of f16 into f32") || text.contains("(f16, 16, 16)"), "{text}");
    assert!(text.contains("offers none") && text.contains("lower_matrices"), "{text}");
    let other = MatrixShape { k: 8, ..case.shape };
    let target = Target::ANY.with_products(vec![other]);
    let text = compile_for(&kernel, target).unwrap_err().to_string();
    assert!(text.contains("offers 16x16x8 of f16 into f32"), "{text}");
    // Products alone are not enough.
    for (seed, feature) in [(0, Feature::Matrix), (0, Feature::MemoryModel), (2, Feature::MatrixBf16)] {
        let kernel = gemm::kernel(&gemm::case(seed, 32));
        match compile_for(&kernel, gemm::target().without(feature)) {
            Err(KernelError::Lacks { feature: lacks, .. }) => assert_eq!(lacks, feature),
            other => panic!("{feature}: {other:?}"),
        }
    }
    compile(&kernel).unwrap();
    let lowered = lower_matrices(&kernel, 32).unwrap();
    compile_for(&lowered, Target::LEAST.with(Feature::F16).with(Feature::Storage16)).unwrap();
    for wrong in [0, 3, 256] {
        assert!(lower_matrices(&kernel, wrong).unwrap_err().to_string().contains("power of two"));
    }
}
