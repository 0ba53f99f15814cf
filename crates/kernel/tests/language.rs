//! The language of `#[kernel]`: the same tokens as kernel and as plain Rust compute the same; mistakes are told where they were made.

use impasto_kernel::prelude::*;
use impasto_kernel::{BufferData, Launch, Scalar, execute, optimise};

#[test]
fn a_kernel_computes_what_the_same_rust_computes() {
    for twin in impasto_testkit::kernel::twins::all() {
        let kernel = (twin.kernel)().unwrap_or_else(|e| panic!("{e}"));
        let optimised = optimise(&kernel).unwrap();
        for seed in impasto_testkit::kernel::programs(20) {
            let (launch, want) = twin.launch(seed);
            for kernel in [&kernel, &optimised] {
                let mut launch = launch.clone();
                execute(kernel, &mut launch).unwrap_or_else(|e| panic!("{e}"));
                assert_eq!(launch.buffers[5].bits, want, "{}, seed {seed}\n{kernel}", twin.name);
            }
        }
    }
}

/// Runs a kernel as it was written and optimised, both of which must give these `u32`s in the last buffer.
fn gives(kernel: Result<Kernel, KernelError>, launch: Launch, want: &[u32]) -> Kernel {
    let kernel = kernel.unwrap_or_else(|e| panic!("{e}"));
    for kernel in [&kernel, &optimise(&kernel).unwrap()] {
        let mut launch = launch.clone();
        execute(kernel, &mut launch).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(launch.buffers.last().unwrap().to_u32().unwrap(), want, "{kernel}");
    }
    kernel
}

fn zeros(n: usize) -> Launch {
    Launch::new([1, 1, 1], vec![BufferData::zeros(Scalar::U32, n)])
}

#[derive(Clone, Copy, PartialEq)]
enum Mode {
    Add(u32),
    Skip,
}

struct Plan {
    steps: Vec<u32>,
    mode: Option<Mode>,
}

#[kernel_fn]
fn power(#[comptime] n: u32, x: u32) -> u32 {
    if n == 0 {
        return 1;
    }
    x * power(n - 1, x)
}

fn doubled(n: u32) -> u32 {
    n * 2
}

#[kernel(workgroup = comptime_size)]
fn comptime(#[comptime] comptime_size: u32, #[comptime] plan: &Plan, y: &mut [u32]) {
    let i = global_id(0);
    #[comptime]
    let mut written = 0;
    // Neither the arm that is not taken nor what follows a `return` is written.
    if comptime_size == 99 {
        y[i] = comptime!(plan.steps[1000]);
    }
    let mut sum = 0;
    #[comptime]
    for (n, &step) in plan.steps.iter().enumerate() {
        sum += step * 10 + comptime!(n as u32);
        written += 1;
    }
    #[comptime]
    for n in 0..10u32 {
        if n == 2 {
            continue;
        }
        if i + n > 4 {
            break;
        }
        if n == 5 {
            break;
        }
        sum += n;
        written += 1;
    }
    #[comptime]
    let mut left = comptime_size;
    #[comptime]
    loop {
        left /= 2;
        if left < 2 {
            break;
        }
        sum += left;
    }
    #[comptime]
    match plan.mode {
        Some(Mode::Add(by)) => sum += by,
        Some(Mode::Skip) => {}
        None => sum = 0,
    }
    #[comptime]
    if let Some(Mode::Add(by)) = plan.mode {
        sum += by;
    } else {
        sum += 1;
    }
    let width = match comptime_size {
        0..=3 => 1,
        4 => 2,
        _ => 3,
    };
    let mut s = shared::<u32>(width * 4);
    s[i] = power(3, i) + comptime!(doubled(width));
    barrier();
    y[i] = sum + s[3 - i] + written * 1000;
}

#[test]
fn what_rust_knows_is_decided_while_the_kernel_is_written() {
    for (mode, added) in [(Mode::Add(30), 60), (Mode::Skip, 1)] {
        let want = |i: u32| {
            // Of 0, 1, 3, 4, those before i + n > 4.
            let turns: u32 = [0, 1, 3, 4].into_iter().take_while(|n| i + n <= 4).sum();
            70 + 51 + turns + 2 + added + (3 - i).pow(3) + 4 + 6000
        };
        let plan = Plan { steps: vec![7, 5], mode: Some(mode) };
        let kernel = gives(comptime(4, &plan), zeros(4), &(0..4).map(want).collect::<Vec<_>>());
        assert_eq!(kernel.to_string().matches("for @").count(), 0, "{kernel}");
    }
}

#[kernel(workgroup = 1)]
fn optional(#[comptime] has_bias: bool, #[comptime] mode: u32, bias: &[u32], y: &mut [u32]) {
    // A literal is what the other arm is.
    let b = if has_bias { bias[0] } else { 0 };
    let scale = match mode {
        0 => 1,
        1 => b + 2,
        _ => bias[1],
    };
    let step = if has_bias { mode } else { 5 };
    let mut s = shared::<u32>(step + 1);
    s[step] = scale * 10 + b;
    y[0] = s[step] + if has_bias && bias[1] > 0 { 100 } else { 200 };
}

#[test]
fn literals_are_of_the_stage_of_the_other_arm() {
    for (has_bias, mode, want) in [(true, 0, 117), (true, 1, 197), (true, 2, 137), (false, 0, 210), (false, 1, 220)] {
        let launch = Launch::new([1, 1, 1], vec![BufferData::from(&[7u32, 3][..]), BufferData::zeros(Scalar::U32, 1)]);
        gives(optional(has_bias, mode), launch, &[want]);
    }
}

#[kernel_fn]
fn endless(x: u32) -> u32 {
    if x > 3 { endless(x - 1) + endless(x - 2) } else { x }
}

#[kernel]
fn calls_endless(n: u32, y: &mut [u32]) {
    y[0] = endless(n);
}

#[test]
fn recursion_without_end_is_an_error() {
    let error = calls_endless().unwrap_err().to_string();
    assert!(error.contains("kernel 'calls_endless': calls of kernel functions nest deeper than 64"), "{error}");
    assert!(error.contains("'endless'") && error.contains("or become a loop"), "{error}");
}

#[kernel(workgroup = 32)]
fn together(x: &[u32], y: &mut [u32]) {
    let i = local_index();
    let mut count = shared::<u32>(2);
    if i < 2 {
        count[i] = 0;
    }
    barrier();
    let v = x[global_id(0)];
    count.atomic_add(v % 2, 1);
    let before = count.atomic_max(1, 0);
    barrier();
    let sum = v.subgroup_add() + v.subgroup_exclusive_add();
    let other = v.subgroup_shuffle_xor(1);
    let all = (v < 100).subgroup_all();
    y[global_id(0)] =
        if all { sum + other + count[0] * 1000 + before / 100 } else { subgroup_lane() / subgroup_size() };
}

#[test]
fn invocations_work_together() {
    let x: Vec<u32> = (0..32).map(|i| i * 7 % 50).collect();
    let (sum, even) = (x.iter().sum::<u32>(), x.iter().filter(|x| *x % 2 == 0).count() as u32);
    let want: Vec<u32> = (0..32).map(|i| sum + x[..i].iter().sum::<u32>() + x[i ^ 1] + even * 1000).collect();
    let launch = Launch::new([1, 1, 1], vec![BufferData::from(&x[..]), BufferData::zeros(Scalar::U32, 32)]);
    gives(together(), launch, &want);
}

#[kernel_fn]
fn mean<T: Float + Lit>(#[comptime] n: u32, x: &[T]) -> T {
    let mut sum = lit::<T>(0.0);
    for i in 0..n {
        sum += x[i];
    }
    sum / lit::<T>(n as f64)
}

#[kernel]
fn types<T: Float + Lit>(x: &[T], b: &mut [bf16], v: &mut [Vec2<u32>], y: &mut [u32]) {
    let m = mean(4, x);
    let half = m * (0.5 as T);
    b[0] = (half as f32) as bf16;
    v[0].y = (b[0] as f32) as u32;
    v[1] = v[0] + vec2(1, 2);
    y[0] = v[1].x * 100 + v[1].y;
    y[1] = (m > lit(3.0)) as u32;
}

#[test]
fn kernels_are_generic_over_types() {
    let data = |ty, bits: [u64; 4]| BufferData { ty, bits: bits.to_vec() };
    let halves = data(Scalar::F16, [1.0, 2.0, 8.0, 33.0].map(|x| f16::from_f64(x).to_bits().into()));
    let floats = data(Scalar::F32, [1.0f32, 2.0, 8.0, 33.0].map(|x| x.to_bits().into()));
    let rest =
        [BufferData::zeros(Scalar::Bf16, 1), BufferData::zeros(Scalar::U32, 4), BufferData::zeros(Scalar::U32, 2)];
    for (kernel, x) in [(types::<f16>(), halves), (types::<f32>(), floats)] {
        let launch = Launch::new([1, 1, 1], [x].into_iter().chain(rest.clone()).collect());
        gives(kernel, launch, &[107, 1]);
    }
}

#[kernel(workgroup = 3)]
fn added_twice(#[comptime] types: [Scalar; 2], #[stored(types[0])] x: &[f32], #[stored(types[1])] y: &mut [f32]) {
    let i = global_id(0);
    y[i] = y[i] + x[i] * 2.0;
}

#[test]
fn a_buffer_may_be_stored_as_a_type_that_is_chosen_when_the_kernel_is_written() {
    // Numbers that every type holds.
    fn data(ty: Scalar, x: [f32; 3]) -> BufferData {
        let bits = |x: f32| match ty {
            Scalar::F16 => Lit::bits(f16::from_f32(x)),
            Scalar::Bf16 => Lit::bits(bf16::from_f32(x)),
            Scalar::I32 => Lit::bits(x as i32),
            _ => Lit::bits(x),
        };
        BufferData { ty, bits: x.map(bits).to_vec() }
    }
    for from in [Scalar::F32, Scalar::F16, Scalar::Bf16, Scalar::I32] {
        for to in [Scalar::F32, Scalar::F16, Scalar::Bf16, Scalar::I32] {
            let kernel = added_twice([from, to]).unwrap_or_else(|e| panic!("{e}"));
            for kernel in [&kernel, &optimise(&kernel).unwrap()] {
                let buffers = vec![data(from, [1.0, -3.0, 8.0]), data(to, [2.0, 5.0, -16.0])];
                let mut launch = Launch::new([1, 1, 1], buffers);
                execute(kernel, &mut launch).unwrap_or_else(|e| panic!("{e}"));
                assert_eq!(launch.buffers[1].bits, data(to, [4.0, -1.0, 0.0]).bits, "{kernel}");
            }
        }
    }
}
