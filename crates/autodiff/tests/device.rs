//! Derivatives on a Vulkan device, compared with the executor in f64. The device is lavapipe.
//!
//! `IMPASTO_GRAD_DEVICE=any` takes the first device that is no software, and a chain of eight bodies instead of two.
//!
//! Each test runs in a child of its own: a driver may crash, and lavapipe is told to compile fast, which it reads when it is loaded.

use crate::derivatives::gradients::{narrow, wide};
use crate::derivatives::{articulated, cases, differentiable, poses, together};
use impasto_autodiff::{Differentiate, Purpose};
use impasto_kernel::{BufferData, Builder, Kernel, Launch, Scalar, execute};
use impasto_testkit::in_child;
use impasto_testkit::kernel::programs;
use impasto_vulkan::{PhysicalDeviceType, VulkanDevice};

fn open() -> VulkanDevice {
    impasto_testkit::vulkan::open_that(|kind| (kind == PhysicalDeviceType::Software) != on_any_device())
}

fn on_any_device() -> bool {
    std::env::var_os("IMPASTO_GRAD_DEVICE").is_some()
}

/// Runs a kernel, optimised or not, on the device.
fn run(device: &VulkanDevice, kernel: &Kernel, launch: &mut Launch, optimised: bool) {
    let compiler = impasto_spirv::compiler_for(device.features());
    let compiler = if optimised { compiler } else { compiler.unoptimised() };
    let module = compiler.compile(std::slice::from_ref(kernel)).unwrap_or_else(|e| panic!("{e}"));
    launch.buffers = impasto_testkit::vulkan::run(device, kernel, &module, launch);
}

fn subgroup_size(device: &VulkanDevice) -> u32 {
    let kernel = Builder::kernel("size", [1, 1, 1], |k| k.buffer_mut::<u32>("y").store(0, k.subgroup_size())).unwrap();
    let mut launch = Launch::new([1, 1, 1], vec![BufferData::zeros(Scalar::U32, 1)]);
    run(device, &kernel, &mut launch, true);
    launch.buffers[0].bits[0] as u32
}

/// The adjoint on the device, its tape sized there, against the executor in f64; with these adjoints of what is written.
fn compare(device: &VulkanDevice, what: &str, kernel: &Kernel, wide: &Launch, error: f64) {
    let grad = kernel.grad().unwrap_or_else(|e| panic!("{what}: {e}"));
    let weights = |n: usize| (0..n).map(|i| (i * 7 % 11) as f64 / 8.0 - 0.6).collect::<Vec<_>>();
    let given: Vec<(usize, BufferData)> = grad
        .purposes
        .iter()
        .filter_map(|r| match *r {
            Purpose::Derivative { of, .. } => Some((of, BufferData::wide(&weights(wide.buffers[of].bits.len())))),
            _ => None,
        })
        .collect();
    let expected = grad.execute(wide, &given).unwrap_or_else(|e| panic!("{what}: {e}"));
    let launch = narrow(wide, kernel);
    let mut slots = [0; 2];
    if let Some((size, purposes)) = &grad.size {
        let pick = |r: &Purpose| match *r {
            Purpose::Primal(n) => launch.buffers[n].clone(),
            _ => BufferData::zeros(Scalar::U32, 2),
        };
        let mut sizing = Launch { buffers: purposes.iter().map(pick).collect(), ..launch.clone() };
        run(device, size, &mut sizing, true);
        let out = &sizing.buffers[sizing.buffers.len() - 1].bits;
        slots = [out[0] as u32, out[1] as u32];
        assert_eq!(slots, grad.slots(wide).unwrap(), "{what}: slots");
    }
    let given: Vec<(usize, BufferData)> = given
        .iter()
        .map(|(b, d)| (*b, BufferData::from(&d.to_f64().unwrap().iter().map(|&x| x as f32).collect::<Vec<_>>()[..])))
        .collect();
    for optimised in [true, false] {
        let mut now = grad.launch(&launch, &given, slots).unwrap();
        let bytes: usize = grad
            .purposes
            .iter()
            .zip(&now.buffers)
            .filter(|(r, _)| matches!(r, Purpose::Floats | Purpose::Numbers))
            .map(|(_, d)| d.bits.len() * 4)
            .sum();
        assert_eq!(bytes as u64, grad.tape_bytes(launch.groups, slots), "{what}: bytes of the tape");
        run(device, &grad.kernel, &mut now, optimised);
        grad.check(&now, slots).unwrap_or_else(|e| panic!("{what}: {e}"));
        for (i, (purpose, data)) in grad.purposes.iter().zip(&now.buffers).enumerate() {
            if !matches!(purpose, Purpose::Derivative { .. } | Purpose::Params) {
                continue;
            }
            let (a, b) = (data.to_f32().unwrap(), expected.launch.buffers[i].to_f64().unwrap());
            for (j, (a, b)) in a.iter().zip(b).enumerate() {
                let near = (f64::from(*a) - b).abs() <= error * (1.0 + b.abs());
                assert!(near, "{what}, optimised {optimised}, buffer {i}, element {j}: {a} and {b}\n{}", grad.kernel);
            }
        }
    }
}

#[test]
fn every_kind_of_case_has_the_same_derivatives_on_a_device() {
    if !in_child!("every_kind_of_case_has_the_same_derivatives_on_a_device") {
        return;
    }
    let device = open();
    let subgroup = subgroup_size(&device);
    for mut case in cases::all() {
        case.launch.subgroup = subgroup;
        compare(&device, &case.name, &case.kernel, &case.launch, 1e-3);
    }
}

#[test]
fn buffers_of_structs_have_the_same_derivatives_on_a_device() {
    if !in_child!("buffers_of_structs_have_the_same_derivatives_on_a_device") {
        return;
    }
    let (at, turn) = ([0.7, -0.3, 1.1, 0.0].repeat(4), [0.4, -0.9, 1.2, 0.6].repeat(2));
    let buffers = vec![poses::words(&at, &[2, 0, 3, 1], &turn), poses::words(&[0.0; 16], &[0; 4], &[0.0; 8])];
    let launch = Launch::new([1, 1, 1], buffers);
    let given: Vec<f32> = (0..32).map(|i| (i * 7 % 11) as f32 / 8.0 - 0.6).collect();
    let grad = poses::whole().unwrap().grad().unwrap();
    let slots = grad.slots(&launch).unwrap();
    let mut expected = grad.launch(&launch, &[(1, BufferData::from(&given[..]))], slots).unwrap();
    let mut now = expected.clone();
    execute(&grad.kernel, &mut expected).unwrap();
    run(&open(), &grad.kernel, &mut now, true);
    for (a, b) in now.buffers.iter().zip(&expected.buffers).filter(|(a, _)| a.ty == Scalar::F32) {
        let (a, b) = (a.to_f32().unwrap(), b.to_f32().unwrap());
        assert!(a.iter().zip(&b).all(|(a, b)| (a - b).abs() < 1e-3 * (1.0 + b.abs())), "{a:?} and {b:?}");
    }
}

#[test]
fn a_chain_of_bodies_has_the_same_gradient_on_a_device() {
    if !in_child!("a_chain_of_bodies_has_the_same_gradient_on_a_device") {
        return;
    }
    // Lavapipe takes minutes to compile more.
    let bodies = if on_any_device() { 8 } else { 2 };
    let (kernel, start) = (articulated::kernel(bodies).unwrap(), articulated::start(bodies));
    let steps = BufferData::from(&[30u32][..]);
    let launch = wide(1, vec![BufferData::wide(&start), steps, BufferData::wide(&vec![0.0; 3 * bodies + 3])]);
    compare(&open(), "the chain", &kernel, &launch, 1e-3);
}

#[test]
fn random_programs_have_the_same_derivatives_on_a_device() {
    if !in_child!("random_programs_have_the_same_derivatives_on_a_device") {
        return;
    }
    let device = open();
    for seed in programs(40) {
        let kernel = differentiable::kernel(seed, 6 + (seed % 12) as usize);
        if kernel.grad().is_ok() {
            compare(&device, &format!("seed {seed}"), &kernel, &differentiable::launch(seed), 2e-3);
        }
    }
}

#[test]
fn random_kernels_that_work_together_have_the_same_derivatives_on_a_device() {
    if !in_child!("random_kernels_that_work_together_have_the_same_derivatives_on_a_device") {
        return;
    }
    let device = open();
    for seed in programs(12) {
        let kernel = together::kernel(seed, 3 + (seed % 8) as usize);
        compare(&device, &format!("seed {seed}"), &kernel, &together::launch(seed), 2e-3);
    }
}

#[test]
fn a_tape_that_is_too_small_is_an_error_on_a_device_and_the_next_launch_is_right() {
    if !in_child!("a_tape_that_is_too_small_is_an_error_on_a_device_and_the_next_launch_is_right") {
        return;
    }
    let device = open();
    let case = cases::all().into_iter().find(|c| c.name == "triangular_bounds").unwrap();
    let grad = case.kernel.grad().unwrap();
    let launch = narrow(&case.launch, &case.kernel);
    let slots = grad.slots(&launch).unwrap();
    let given = [(2, BufferData::from(&[1f32][..]))];
    let mut enough = grad.launch(&launch, &given, slots).unwrap();
    let mut small = grad.launch(&launch, &given, [slots[0] - 1, slots[1]]).unwrap();
    run(&device, &grad.kernel, &mut small, true);
    let error = grad.check(&small, [slots[0] - 1, slots[1]]).unwrap_err().to_string();
    assert!(error.contains(&format!("{} are needed", slots[0])), "{error}");
    run(&device, &grad.kernel, &mut enough, true);
    grad.check(&enough, slots).unwrap();
    let mut expected = grad.launch(&launch, &given, slots).unwrap();
    execute(&grad.kernel, &mut expected).unwrap();
    let (a, b) = (enough.buffers[2].to_f32().unwrap(), expected.buffers[2].to_f32().unwrap());
    assert!(a.iter().zip(&b).all(|(a, b)| (a - b).abs() < 1e-3 * (1.0 + b.abs())), "{a:?} and {b:?}");
}
