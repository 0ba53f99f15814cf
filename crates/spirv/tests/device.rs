//! Kernels on a Vulkan device, compared with the executor. The device is lavapipe, which computes on the CPU and is the same everywhere.
//!
//! Each test runs in a child of its own: a driver may crash, lavapipe is told to compile fast, which it reads when it is loaded, and the
//! validation layer watches every call and every module.

#[path = "../../kernel/tests/common/mod.rs"]
mod common;
mod support;
#[path = "../../kernel/tests/language/twins.rs"]
mod twins;

use common::{gemm, kernels, programs, random, same};
use impasto_kernel::{BufferData, CompiledModule, Kernel, KernelError, Launch, Scalar, execute, lower_matrices};
use impasto_spirv::compile_for;
use impasto_vulkan::{Loader, VulkanDevice};
use support::on_device::{in_child, open, run};

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
    if !in_child("random_kernels_give_the_same_bits_on_a_device") {
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
    if !in_child("what_others_leave_undefined_is_defined_on_a_device") {
        return;
    }
    use impasto_kernel::Builder;
    let device = open();
    let ints = [0, 1, -1, 7, -7, 31, 32, 33, i32::MIN, i32::MAX, 12345, -99999];
    let floats = [
        0.0,
        -0.0,
        0.5,
        -0.5,
        1.5,
        2.5,
        -2.5,
        1e10,
        -1e10,
        3e38,
        -3e38,
        1e20,
        f32::NAN,
        f32::INFINITY,
        f32::NEG_INFINITY,
        2147483648.0,
    ];
    let kernel = Builder::kernel("edges", [1, 1, 1], |k| {
        let (x, y) = (k.buffer::<i32>("x"), k.buffer_mut::<i32>("y"));
        let (f, g) = (k.buffer::<f32>("f"), k.buffer_mut::<f32>("g"));
        let z = k.buffer_mut::<i64>("z");
        let at = k.var(0u32);
        k.for_(0u32, ints.len() as u32, |_, i| {
            k.for_(0u32, ints.len() as u32, |_, j| {
                let (a, b) = (x.load(i), x.load(j));
                let (c, d) = (a.to::<u32>(), b.to::<u32>());
                let (p, q) = (a.to::<i64>() << 31i64, b.to::<i64>());
                for (n, v) in [
                    a / b,
                    a % b,
                    a << b,
                    a >> b,
                    (c / d).to(),
                    (c % d).to(),
                    (c >> d).to(),
                    a.min(b),
                    c.max(d).to(),
                    a.abs(),
                    a.reverse_bits(),
                ]
                .into_iter()
                .enumerate()
                {
                    y.store(at.get() + n as u32, v);
                }
                for (n, v) in [p / q, p % q, p >> q, c.to::<i64>(), c.to::<u64>().to::<i64>() * q, p.to::<u32>().to()]
                    .into_iter()
                    .enumerate()
                {
                    z.store(at.get() + n as u32, v);
                }
                at.set(at.get() + 11u32);
            });
        });
        at.set(0u32);
        k.for_(0u32, floats.len() as u32, |_, i| {
            let a = f.load(i);
            for (n, v) in
                [a.to::<i32>(), a.to::<u32>().to(), a.to::<i64>().to::<i32>(), (a.to::<u64>() >> 32u64).to::<i32>()]
                    .into_iter()
                    .enumerate()
            {
                y.store(i * 4u32 + (2000 + n as u32), v);
            }
            k.for_(0u32, floats.len() as u32, |_, j| {
                let b = f.load(j);
                for (n, v) in
                    [a + b, a - b, a * b, a.min(b), b.max(a), a.round_even(), a.floor() - b.ceil(), a.trunc().abs(), -a]
                        .into_iter()
                        .enumerate()
                {
                    g.store(at.get() + n as u32, v);
                }
                for (n, v) in [a.lt(b), a.le(b), a.eq(b), a.ne(b), a.gt(b), a.ge(b)].into_iter().enumerate() {
                    g.store(at.get() + (9 + n as u32), v.select(1.0f32, 0.0f32));
                }
                at.set(at.get() + 15u32);
            });
        });
    })
    .unwrap();
    let buffers = vec![
        BufferData::from(&ints[..]),
        BufferData::zeros(Scalar::I32, 3000),
        BufferData::from(&floats[..]),
        BufferData::zeros(Scalar::F32, 15 * 256),
        BufferData::zeros(Scalar::I64, 2000),
    ];
    compare(&device, &kernel, &Launch::new([1, 1, 1], buffers), "edges");
}

#[test]
fn small_floats_round_and_lie_on_a_device_as_they_do_here() {
    if !in_child("small_floats_round_and_lie_on_a_device_as_they_do_here") {
        return;
    }
    let device = open();
    // Ties and what lies beside them, the largest and what is above it, the smallest, infinities and NaN, one with only low bits set.
    let mut words: Vec<u32> =
        vec![0, 1 << 31, 0x7F80_0000, 0xFF80_0000, 0x7F80_0001, 0xFFC0_0000, 0x7F7F_FFFF, 0x7F7F_7FFF];
    words.extend([0x3F80_8000, 0x3F81_8000, 0x3F80_7FFF, 0x3F80_8001, 0xBF81_8000, 0x0080_8000, 0x7F7F_8000]);
    let floats = [2049.0, 2051.0, 65504.0, 65519.0, 65520.0, -65520.0, 1e-4, 6.1e-5, 1.0 / 3.0, -1e5, 0.1];
    words.extend(floats.map(f32::to_bits));
    words.resize(words.len().next_multiple_of(3), 7);
    let n = words.len() / 3;
    let kernel: Kernel = format!(
        "kernel small(1, 1, 1) {{
  buffer x: f32 read
  buffer b: bf16x3 write
  buffer h: f16x3 write
  buffer m: [{{bf16x2, f16x2, u64x3, bf16, i64}}; 2] write
  buffer y: f32x3 write
  %0 = const 0 : u32
  %1 = const 1 : u32
  %2 = const {n} : u32
  %3 = const 3 : u32
  %4 = const 2 : u32
  for @0 %5: u32 = %0 to %2 step 1 () {{
    %6 = mul %5, %3 : u32
    %7 = add %6, %1 : u32
    %8 = add %6, %4 : u32
    %9 = load x[%6] : f32
    %10 = load x[%7] : f32
    %11 = load x[%8] : f32
    %12 = make %9, %10, %11 : f32x3
    %13 = convert %12 : bf16x3
    %14 = convert %12 : f16x3
    store b[%5], %13
    store h[%5], %14
    %15 = convert %13 : f32x3
    store y[%5], %15
    %16 = load m[%5] : [{{bf16x2, f16x2, u64x3, bf16, i64}}; 2]
    %17 = extract %16[1] : {{bf16x2, f16x2, u64x3, bf16, i64}}
    %18 = extract %13[0] : bf16
    %19 = insert %17[3], %18 : {{bf16x2, f16x2, u64x3, bf16, i64}}
    %20 = extract %14[1] : f16
    %21 = extract %14[2] : f16
    %22 = make %20, %21 : f16x2
    %23 = insert %19[1], %22 : {{bf16x2, f16x2, u64x3, bf16, i64}}
    %24 = insert %16[0], %23 : [{{bf16x2, f16x2, u64x3, bf16, i64}}; 2]
    store m[%5], %24
    continue @0
  }}
  return
}}"
    )
    .parse()
    .unwrap();
    let layout = kernel.layout(kernel.memories()[3].ty).unwrap();
    // 4 + 4 bytes and a gap up to 32, three numbers of 8 bytes, 2 bytes and a gap, 8 bytes, and a gap up to 96.
    assert_eq!((layout.align, layout.stride()), (32, 192));
    let mut rng = random::Rng::new(1);
    // Numbers of 16 bits that are no NaN, so that they come back bit by bit.
    let word = |rng: &mut random::Rng| rng.bits() & 0x3FFF_3FFF;
    let launch = Launch::new(
        [1, 1, 1],
        vec![
            BufferData { ty: Scalar::F32, bits: words.iter().map(|&w| w.into()).collect() },
            BufferData::zeros(Scalar::Bf16, 4 * n),
            BufferData::zeros(Scalar::F16, 4 * n),
            BufferData { ty: Scalar::U32, bits: (0..48 * n).map(|_| word(&mut rng)).collect() },
            BufferData { ty: Scalar::F32, bits: vec![9; 4 * n] },
        ],
    );
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
    // A NaN of 16 bits lies inside of words there, so those elements are left out.
    let nan = |e: usize| words[3 * e..3 * e + 3].iter().any(|&w| f32::from_bits(w).is_nan());
    for (module, how) in both(&device, &kernel) {
        let mut got = run(&device, &kernel, &module.unwrap(), &launch);
        for e in (0..n).filter(|&e| nan(e)) {
            got[3].bits[48 * e..48 * (e + 1)].copy_from_slice(&here.buffers[3].bits[48 * e..48 * (e + 1)]);
        }
        same(&unsigned(&here.buffers), &unsigned(&got)).unwrap_or_else(|e| panic!("{how}: {e}"));
    }
}

#[test]
fn kernels_of_one_module_run_by_their_names() {
    if !in_child("kernels_of_one_module_run_by_their_names") {
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
    if !in_child("real_kernels_compute_what_plain_rust_computes_on_a_device") {
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
    if !in_child("the_language_computes_what_the_same_rust_computes_on_a_device") {
        return;
    }
    let device = open();
    for twin in twins::all() {
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
    if !in_child("products_of_matrices_give_the_same_bits_on_a_device_without_them") {
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
