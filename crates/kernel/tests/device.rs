//! Kernels on a Vulkan device, compared with the executor. The device is lavapipe, which computes on the CPU and is the same everywhere.
//!
//! Each test runs in a child of its own: a driver may crash, and lavapipe is told to compile fast, which it reads when it is loaded.

mod common;
#[path = "language/twins.rs"]
mod twins;

use common::{kernels, programs, random, same};
use impasto_kernel::{
    Data, Kernel, Launch, Scalar, Target, compile, compile_for, compile_unoptimised, emit_for, execute, specialise,
};
use impasto_vulkan::{Device, Kind, Loader};

/// Runs the rest of a test in a child, and says whether this is it.
fn in_child(test: &str) -> bool {
    if std::env::var_os("IMPASTO_IN_CHILD").is_some() {
        return true;
    }
    let done = std::process::Command::new(std::env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture"])
        .env("IMPASTO_IN_CHILD", "1")
        .env("GALLIVM_PERF", "nopt")
        .output()
        .unwrap();
    let text = format!("{}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success() && text.contains("1 passed"), "{}: {text}", done.status);
    false
}

fn open() -> Device {
    let missing =
        "there is no software Vulkan device: install mesa-vulkan-drivers and libvulkan1, as tools/test.sh does";
    let instance = Loader::open().expect(missing).create_instance().expect(missing);
    let all = instance.enumerate().expect(missing);
    let physical = all.iter().find(|p| p.describe().kind == Kind::Software).expect(missing);
    Device::open(physical).expect(missing)
}

fn bytes(data: &Data) -> Vec<u8> {
    let n = data.ty.bytes() as usize;
    data.bits.iter().flat_map(|b| b.to_le_bytes()[..n].to_vec()).collect()
}

fn run(device: &Device, words: &[u32], launch: &Launch) -> Vec<Data> {
    let mut buffers = Vec::new();
    for data in &launch.buffers {
        let bytes = bytes(data);
        let mut buffer = device.buffer(bytes.len() as u64).unwrap();
        buffer.write(&bytes).unwrap();
        buffers.push(buffer);
    }
    // SAFETY: spirv-val accepts what the compiler writes, which tests/spirv.rs sees to on the same kernels; the executor ran the
    // kernel on the same buffers, and would have refused an access outside of them.
    let pipeline = unsafe { device.pipeline(words, buffers.len() as u32) }.unwrap();
    device.run(&pipeline, &buffers.iter().collect::<Vec<_>>(), launch.groups).unwrap();
    let read = |(data, buffer): (&Data, &impasto_vulkan::Buffer)| {
        let n = data.ty.bytes() as usize;
        let mut all = vec![0; data.bits.len() * n];
        buffer.read(&mut all).unwrap();
        let number = |c: &[u8]| c.iter().rev().fold(0u64, |a, &b| a << 8 | u64::from(b));
        Data { ty: data.ty, bits: all.chunks_exact(n).map(number).collect() }
    };
    launch.buffers.iter().zip(&buffers).map(read).collect()
}

fn compare(device: &Device, kernel: &Kernel, launch: &Launch, what: &str) {
    let mut expected = launch.clone();
    execute(kernel, &mut expected).unwrap_or_else(|e| panic!("{what}: {e}"));
    let kernel = specialise(kernel, &launch.scalars).unwrap();
    // Without this a driver may take infinities and NaN for impossible.
    let target = Target { signed_zeros: true };
    for (module, how) in [(compile_for(&kernel, target), "optimised"), (emit_for(&kernel, target), "unoptimised")] {
        let module = module.unwrap_or_else(|e| panic!("{what}, {how}: {e}"));
        let got = run(device, &module.words, launch);
        same(&unsigned(&expected.buffers), &unsigned(&got)).unwrap_or_else(|e| panic!("{what}, {how}: {e}\n{kernel}"));
    }
}

/// Zeros without their sign: lavapipe computes a product with the constant 0 as 0, also of negative numbers and in spite of the module's
/// wish. The random kernels do not divide, so nothing else depends on that sign.
fn unsigned(buffers: &[Data]) -> Vec<Data> {
    let plain = |d: &Data| match d.ty {
        Scalar::F32 => Data { ty: d.ty, bits: d.bits.iter().map(|&b| if b == 1 << 31 { 0 } else { b }).collect() },
        _ => d.clone(),
    };
    buffers.iter().map(plain).collect()
}

#[test]
fn random_kernels_give_the_same_bits_on_a_device() {
    if !in_child("random_kernels_give_the_same_bits_on_a_device") {
        return;
    }
    let device = open();
    for seed in 0..programs(100) {
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
        Data::from(&ints[..]),
        Data::zeros(Scalar::I32, 3000),
        Data::from(&floats[..]),
        Data::zeros(Scalar::F32, 15 * 256),
        Data::zeros(Scalar::I64, 2000),
    ];
    compare(&device, &kernel, &Launch::new([1, 1, 1], buffers), "edges");
}

#[test]
fn real_kernels_compute_what_plain_rust_computes_on_a_device() {
    if !in_child("real_kernels_compute_what_plain_rust_computes_on_a_device") {
        return;
    }
    let device = open();
    for case in kernels::all(0) {
        let kernel = specialise(&case.kernel, &case.launch.scalars).unwrap();
        for module in [compile(&kernel).unwrap(), compile_unoptimised(&kernel).unwrap()] {
            let got = run(&device, &module.words, &case.launch);
            kernels::right(&case, &got).unwrap_or_else(|e| panic!("{e}"));
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
        for module in [compile(&kernel).unwrap(), compile_unoptimised(&kernel).unwrap()] {
            for seed in 0..3 {
                let (launch, want) = twin.launch(seed);
                let got = run(&device, &module.words, &launch);
                assert_eq!(got[5].bits, want, "{}, seed {seed}", twin.name);
            }
        }
    }
}
