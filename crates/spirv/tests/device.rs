//! Kernels on a Vulkan device, compared with the executor. The device is lavapipe, which computes on the CPU and is the same everywhere.
//!
//! Each test runs in a child of its own: a driver may crash, lavapipe is told to compile fast, which it reads when it is loaded, and the
//! validation layer watches every call and every module.

use impasto_kernel::{BufferData, CompiledModule, Kernel, KernelError, Launch, execute, lower_matrices};
use impasto_spirv::compile_for;
use impasto_testkit::in_child;
use impasto_testkit::kernel::{edges, gemm, kernels, programs, random, same};
use impasto_testkit::vulkan::{open, run};
use impasto_vulkan::{Loader, VulkanDevice};

/// The module of a kernel for this device, optimised and not.
fn both(device: &VulkanDevice, kernel: &Kernel) -> [(Result<CompiledModule, KernelError>, &'static str); 2] {
    let (target, one) = (impasto_spirv::target(device.features()), std::slice::from_ref(kernel));
    [
        (impasto_spirv::compiler(target.clone()).compile(one), "optimised"),
        (impasto_spirv::compiler(target).unoptimised().compile(one), "unoptimised"),
    ]
}

fn compare(device: &VulkanDevice, kernel: &Kernel, launch: &Launch, what: &str) {
    let mut expected = launch.clone();
    execute(kernel, &mut expected).unwrap_or_else(|e| panic!("{what}: {e}"));
    for (module, how) in both(device, kernel) {
        let module = module.unwrap_or_else(|e| panic!("{what}, {how}: {e}"));
        let got = run(device, kernel, &module, launch);
        same(&unsigned(&expected.buffers), &unsigned(&got)).unwrap_or_else(|e| panic!("{what}, {how}: {e}\n{kernel}"));
    }
}

/// Zeros without their sign: lavapipe computes a product with the constant 0 as 0, also of negative numbers and in spite of the module's
/// wish. The random kernels do not divide, so nothing else depends on that sign.
fn unsigned(buffers: &[BufferData]) -> Vec<BufferData> {
    let plain = |d: &BufferData| {
        let sign = 1 << (d.ty.bits() - 1);
        let positive = |&b: &u64| if d.ty.is_float() && b == sign { 0 } else { b };
        BufferData { ty: d.ty, bits: d.bits.iter().map(positive).collect() }
    };
    buffers.iter().map(plain).collect()
}

#[test]
fn random_kernels_give_the_same_bits_on_a_device() {
    if !in_child!("random_kernels_give_the_same_bits_on_a_device") {
        return;
    }
    let device = open();
    for seed in programs(100) {
        let kernel = random::kernel_for_mesa(seed, 10 + (seed % 30) as usize);
        compare(&device, &kernel, &random::launch(seed), &format!("seed {seed}"));
    }
}

#[test]
fn what_others_leave_undefined_is_defined_on_a_device() {
    if !in_child!("what_others_leave_undefined_is_defined_on_a_device") {
        return;
    }
    let device = open();
    let (kernel, launch) = edges::undefined_elsewhere();
    compare(&device, &kernel, &launch, "edges");
}

#[test]
fn small_floats_round_and_lie_on_a_device_as_they_do_here() {
    if !in_child!("small_floats_round_and_lie_on_a_device_as_they_do_here") {
        return;
    }
    let device = open();
    let (kernel, launch, words) = edges::small_floats();
    let mut here = launch.clone();
    execute(&kernel, &mut here).unwrap();
    for (element, three) in words.chunks(3).enumerate() {
        for (i, &w) in three.iter().enumerate() {
            let want = half::bf16::from_f32(f32::from_bits(w));
            assert_eq!(here.buffers[1].bits[4 * element + i], u64::from(want.to_bits()), "{w:#x}");
            assert_eq!(f32::from_bits(w).is_nan(), want.is_nan(), "{w:#x}");
        }
        assert_eq!(here.buffers[4].bits[4 * element + 3], 9, "the gap is left alone");
    }
    for (module, how) in both(&device, &kernel) {
        let mut got = run(&device, &kernel, &module.unwrap(), &launch);
        edges::leave_out_nan(&words, &here.buffers, &mut got);
        same(&unsigned(&here.buffers), &unsigned(&got)).unwrap_or_else(|e| panic!("{how}: {e}"));
    }
}

#[test]
fn kernels_of_one_module_run_by_their_names() {
    if !in_child!("kernels_of_one_module_run_by_their_names") {
        return;
    }
    let device = open();
    let mut cases = kernels::all(0);
    for (i, case) in cases.iter_mut().enumerate() {
        // Some are one kernel, specialised in two ways.
        case.kernel.name = format!("{}_{i}", case.kernel.name);
    }
    let all: Vec<Kernel> = cases.iter().map(|c| c.kernel.clone()).collect();
    let target = impasto_spirv::target(device.features());
    for compiler in [impasto_spirv::compiler(target.clone()), impasto_spirv::compiler(target).unoptimised()] {
        let module = compiler.compile(&all).unwrap();
        for case in &cases {
            let got = run(&device, &case.kernel, &module, &case.launch);
            kernels::right(case, &got).unwrap_or_else(|e| panic!("{e}"));
        }
    }
}

#[test]
fn real_kernels_compute_what_plain_rust_computes_on_a_device() {
    if !in_child!("real_kernels_compute_what_plain_rust_computes_on_a_device") {
        return;
    }
    let device = open();
    for case in kernels::all(0) {
        for (module, how) in both(&device, &case.kernel) {
            let got = run(&device, &case.kernel, &module.unwrap(), &case.launch);
            kernels::right(&case, &got).unwrap_or_else(|e| panic!("{how}: {e}"));
        }
    }
}

#[test]
fn the_language_computes_what_the_same_rust_computes_on_a_device() {
    if !in_child!("the_language_computes_what_the_same_rust_computes_on_a_device") {
        return;
    }
    let device = open();
    for twin in impasto_testkit::kernel::twins::all() {
        let kernel = (twin.kernel)().unwrap();
        for (module, how) in both(&device, &kernel) {
            let module = module.unwrap();
            for seed in 0..3 {
                let (launch, want) = twin.launch(seed);
                let got = run(&device, &kernel, &module, &launch);
                assert_eq!(got[5].bits, want, "{}, {how}, seed {seed}", twin.name);
            }
        }
    }
}

#[test]
fn products_of_matrices_give_the_same_bits_on_a_device_without_them() {
    if !in_child!("products_of_matrices_give_the_same_bits_on_a_device_without_them") {
        return;
    }
    let device = open();
    let subgroup = device.features().subgroup_sizes.0;
    for seed in programs(10) {
        let case = gemm::case(seed, subgroup);
        let kernel = gemm::kernel(&case);
        let mut expected = gemm::launch(&case);
        execute(&kernel, &mut expected).unwrap_or_else(|e| panic!("{case:?}: {e}"));
        let error = compile_for(&kernel, impasto_spirv::target(device.features())).unwrap_err();
        assert!(matches!(error, KernelError::NoMatrix { .. }), "{error}");
        let lowered = lower_matrices(&kernel, subgroup).unwrap();
        for (module, how) in both(&device, &lowered) {
            let got = run(&device, &lowered, &module.unwrap(), &gemm::launch(&case));
            same(&unsigned(&expected.buffers), &unsigned(&got)).unwrap_or_else(|e| panic!("{case:?}, {how}: {e}"));
        }
    }
}

/// By hand, where there is such a device: `cargo test --release -p impasto-kernel --test device -- --ignored --nocapture`.
#[test]
#[ignore = "needs a device with matrix units"]
fn products_are_right_on_a_device_with_matrix_units() {
    let instance = Loader::open().unwrap().create_instance().unwrap();
    let all = instance.enumerate().unwrap();
    let physical = all.iter().find(|p| !p.features().products.is_empty()).expect("no device here has matrix units");
    let device = VulkanDevice::open(physical).unwrap();
    let target = impasto_spirv::target(device.features());
    println!("{}: {:?}", physical.describe().label, target.products);
    let (mut ran, mut worst) = (std::collections::BTreeMap::new(), 0f32);
    for seed in programs(100) {
        let case = gemm::case(seed, device.features().subgroup_sizes.0);
        let kernel = gemm::kernel(&case);
        let module = match compile_for(&kernel, target.clone()) {
            Err(KernelError::NoMatrix { .. }) => continue,
            module => module.unwrap_or_else(|e| panic!("{case:?}: {e}")),
        };
        let mut expected = gemm::launch(&case);
        execute(&kernel, &mut expected).unwrap();
        let got = run(&device, &kernel, &module, &gemm::launch(&case));
        let error = gemm::error(&case, &expected.buffers[2], &got[2]);
        assert!(error < 1.0, "{case:?}: {error} of what is allowed");
        worst = worst.max(error);
        *ran.entry(case.shape.to_string()).or_insert(0) += 1;
    }
    println!("{ran:?}, largest error {worst} of what is allowed");
    assert!(!ran.is_empty(), "the device has none of the shapes that are tried");
}
