//! Derivatives of kernels, each held to differences in f64, to forward mode, and to the closed form where there is one.

use crate::derivatives::gradients::{adjoints, hold, kernel, nothing_changes, wide};
use crate::derivatives::{cases, differentiable, together};
use impasto_autodiff::{Differentiate, Grad, Purpose};
use impasto_kernel::{BufferData, Builder, Kernel, KernelError, Launch, Val, execute};
use impasto_testkit::kernel::programs;
use impasto_testkit::kernel::random::Rng;

/// The adjoint of random adjoints: its kernel and a launch of it.
fn adjoint_launch(grad: &Grad, launch: &Launch, seed: u64) -> Launch {
    let mut rng = Rng::new(seed ^ 0xABCD);
    let mut given = Vec::new();
    for purpose in &grad.purposes {
        if let Purpose::Derivative { of, .. } = *purpose {
            let n = launch.buffers[of].bits.len();
            let w: Vec<f64> = (0..n).map(|_| (rng.below(2001) as f64 - 1000.0) / 900.0).collect();
            given.push((of, BufferData::wide(&w)));
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
    for seed in programs(100) {
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
    for seed in programs(60) {
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

#[test]
fn random_kernels_that_work_together_have_the_derivatives_that_differences_say() {
    let mut logged = 0;
    for seed in programs(60) {
        let (kernel, launch) = (together::kernel(seed, 3 + (seed % 8) as usize), together::launch(seed));
        let grad = hold(&kernel, &launch, seed).unwrap_or_else(|e| panic!("seed {seed}: {e}\n{kernel}"));
        logged += usize::from(!grad.report.logged.is_empty());
        // A tape that is too small is an error, not a wrong number.
        let slots = grad.slots(&launch).unwrap();
        for t in (0..2).filter(|&t| slots[t] > 0) {
            let mut less = slots;
            less[t] -= 1;
            let mut small = grad.launch(&launch, &[(2, BufferData::wide(&[1.0; 8]))], less).unwrap();
            execute(&grad.kernel, &mut small).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
            let error = grad.check(&small, less).unwrap_err().to_string();
            assert!(error.contains(&format!("{} are needed", slots[t])), "seed {seed}: {error}");
        }
    }
    assert!(logged > 0);
}

#[test]
fn adjoints_of_adjoints_of_kernels_that_work_together_are_right() {
    for seed in programs(25) {
        let (kernel, launch) = (together::kernel(seed, 2 + (seed % 4) as usize), together::launch(seed));
        let grad = kernel.grad().unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        hold(&grad.kernel, &adjoint_launch(&grad, &launch, seed), seed)
            .unwrap_or_else(|e| panic!("seed {seed}: {e}\n{kernel}\n{}", grad.kernel));
    }
}

#[test]
fn third_derivatives_are_right_or_refused() {
    let (mut right, mut refused) = (0, 0);
    for seed in programs(40) {
        let kernel = differentiable::kernel_that_writes_once(seed, 3 + (seed % 5) as usize);
        let launch = differentiable::launch(seed);
        let Ok(first) = kernel.grad() else { continue };
        let second = first.kernel.grad().unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        let launch = adjoint_launch(&second, &adjoint_launch(&first, &launch, seed), seed);
        match hold(&second.kernel, &launch, seed) {
            Ok(_) => right += 1,
            Err(e) if e.contains("cannot be differentiated") => refused += 1,
            Err(e) => panic!("seed {seed}: {e}"),
        }
    }
    assert!(right > refused, "{right} right, {refused} refused");
}

/// The refusal of a kernel.
fn refusal(name: &str, workgroup: u32, body: impl FnOnce(&Builder)) -> String {
    match kernel(name, workgroup, body).grad() {
        Err(e @ KernelError::Gradient { .. }) => e.to_string(),
        Err(e) => panic!("{name}: another error: {e}"),
        Ok(g) => panic!("{name}: not refused\n{}", g.kernel),
    }
}

#[test]
fn what_would_be_wrong_is_refused_with_the_op_and_the_reason() {
    let read = refusal("read_then_overwrite", 4, |k| {
        let y = k.buffer_mut::<f32>("y");
        let i = k.global_id(0);
        y.store(i, y.load(i) * y.load(i));
    });
    assert!(read.contains("load y[") && read.contains("this launch also writes 'y'"), "{read}");
    let atomic = refusal("atomic_max", 4, |k| {
        let (x, y) = (k.buffer::<f32>("x"), k.buffer_mut::<u32>("y"));
        y.atomic_max(0, x.load(k.global_id(0)).bits_as::<u32>());
        k.buffer_mut::<f32>("z").store(k.global_id(0), x.load(0));
    });
    assert!(atomic.contains("bitcast") && atomic.contains("stop_gradient"), "{atomic}");
    let exchange: Kernel = "kernel k(4, 1, 1) {
      buffer x: f32 read
      buffer y: f32 write
      %0 = global_id.x : u32
      %1 = load x[%0] : f32
      %2 = const 0 : u32
      %3 = atomic_exchange y[%2], %1 : f32
      return
    }"
    .parse()
    .unwrap();
    let exchange = exchange.grad().unwrap_err().to_string();
    assert!(exchange.contains("atomic_exchange y["), "{exchange}");
    let cast = refusal("cast", 4, |k| {
        let (x, y) = (k.buffer::<f32>("x"), k.buffer_mut::<f32>("y"));
        let a = x.load(k.global_id(0));
        y.store(k.global_id(0), a * a.to::<i32>().to::<f32>());
    });
    assert!(cast.contains("convert") && cast.contains("integer"), "{cast}");
    let written = refusal("written_cast", 4, |k| {
        let (x, y, z) = (k.buffer::<f32>("x"), k.buffer_mut::<f32>("y"), k.buffer_mut::<i32>("z"));
        let a = x.load(k.global_id(0));
        y.store(k.global_id(0), a);
        z.store(k.global_id(0), a.to::<i32>());
    });
    assert!(written.contains("convert"), "{written}");
    let unbounded = refusal("unbounded", 1, |k| {
        let (x, y) = (k.buffer::<f32>("x"), k.buffer_mut::<f32>("y"));
        let s = k.var(x.load(0));
        k.while_(|| s.get().lt(10.0), |_| s.set(s.get() * s.get()));
        y.store(0, s.get());
    });
    assert!(unbounded.contains("loop @") && unbounded.contains("while_bounded"), "{unbounded}");
    let left = refusal("left_unbounded", 1, |k| {
        let (x, y) = (k.buffer::<f32>("x"), k.buffer_mut::<f32>("y"));
        k.loop_(|_| k.if_(x.load(0).gt(1.0), || k.return_()));
        y.store(0, x.load(0));
    });
    assert!(left.contains("no bound"), "{left}");
    let race = refusal("race", 4, |k| {
        let (x, y) = (k.buffer::<f32>("x"), k.buffer_mut::<f32>("y"));
        y.store(0, x.load(0) * x.load(1));
    });
    assert!(race.contains("store y[") && race.contains("data race"), "{race}");
    let half = refusal("half", 4, |k| {
        let (x, y) = (k.buffer::<half::f16>("x"), k.buffer_mut::<f32>("y"));
        y.store(k.global_id(0), x.load(k.global_id(0)).to::<f32>());
    });
    assert!(half.contains("load x[") && half.contains("16 bits"), "{half}");
    let brain = refusal("brain", 4, |k| {
        let (x, y) = (k.buffer::<half::bf16>("x"), k.buffer_mut::<f32>("y"));
        y.store(k.global_id(0), x.load(k.global_id(0)).to::<f32>());
    });
    assert!(brain.contains("16 bits"), "{brain}");
    let ticket = refusal("ticket", 4, |k| {
        let (x, n, y) = (k.buffer::<f32>("x"), k.buffer_mut::<u32>("n"), k.buffer_mut::<f32>("y"));
        let at = n.atomic_add(0, 1u32);
        y.store(at, x.load(at));
    });
    assert!(ticket.contains("atomic_add n["), "{ticket}");
    let array = refusal("private", 1, |k| {
        let (x, y) = (k.buffer::<f32>("x"), k.buffer_mut::<f32>("y"));
        let a = k.private::<f32>("a", 65);
        k.for_(0u32, 65u32, |_, i| a.store(i, x.load(i)));
        y.store(0, a.load(3) * a.load(4));
    });
    assert!(array.contains("private array 'a'"), "{array}");
    let shared = refusal("shared", 4, |k| {
        let (x, y) = (k.buffer::<f32>("x"), k.buffer_mut::<f32>("y"));
        let (s, l) = (k.shared::<u32>("s", 4), k.local_index());
        s.store(l, l + 1u32);
        k.barrier();
        let at = k.var(l);
        k.while_(|| at.get().lt(3), |_| at.set(s.load(at.get())));
        y.store(l, x.load(at.get()) * x.load(l));
    });
    assert!(shared.contains("load s[") && shared.contains("memory of the workgroup"), "{shared}");
    let nothing = refusal("nothing", 1, |k| {
        let (x, y) = (k.buffer::<f32>("x"), k.buffer_mut::<f32>("y"));
        y.store(0, x.load(0).stop_gradient() * 2.0f32);
    });
    assert!(nothing.contains("no buffer that it writes depends"), "{nothing}");
    let unknown = kernel("k", 1, |k| k.buffer_mut::<f32>("y").store(0, 1.0)).grad_of(&["z"]).unwrap_err().to_string();
    assert!(unknown.contains("'z' is none of its buffers"), "{unknown}");
}

#[test]
fn a_stopped_gradient_and_a_constant_buffer_have_no_derivative() {
    let k = kernel("k", 1, |k| {
        let (x, c, y) = (k.buffer::<f32>("x"), k.buffer::<f32>("c"), k.buffer_mut::<f32>("y"));
        let a = x.load(0);
        y.store(0, a * a.stop_gradient() * c.load(0) + c.load(0).sin());
    });
    let launch = wide(1, vec![BufferData::wide(&[3.0]), BufferData::wide(&[2.0]), BufferData::wide(&[0.0])]);
    let grad = k.grad_of(&["x"]).unwrap();
    let got = grad.execute(&launch, &[(2, BufferData::wide(&[1.0]))]).unwrap();
    assert_eq!(got.of(0).and_then(BufferData::to_f64), Some(vec![6.0]));
    assert!(got.of(1).is_none());
    let along = k.jvp_of(&["x"]).unwrap().execute(&launch, &[(0, BufferData::wide(&[1.0]))]).unwrap();
    assert_eq!(along.of(2).and_then(BufferData::to_f64), Some(vec![6.0]));
}

#[test]
fn a_nan_comes_through_where_the_value_was_used_and_nowhere_else() {
    let k = kernel("k", 3, |k| {
        let (x, y) = (k.buffer::<f32>("x"), k.buffer_mut::<f32>("y"));
        let i = k.global_id(0);
        let a = x.load(i);
        let s = k.var(a);
        k.for_(0u32, 3u32, |_, _| k.if_(a.gt(-0.5), || s.set(s.get().sqrt() * a)));
        y.store(i, s.get());
    });
    let grad = k.grad().unwrap();
    let launch = wide(1, vec![BufferData::wide(&[0.7, -2.0, -0.3]), BufferData::wide(&[0.0; 3])]);
    let got =
        grad.execute(&launch, &[(1, BufferData::wide(&[1.0; 3]))]).unwrap().of(0).and_then(BufferData::to_f64).unwrap();
    assert!(got[0].is_finite() && got[1] == 1.0 && got[2].is_nan(), "{got:?}");
}

/// The case with this name.
fn case(name: &str) -> cases::Case {
    cases::all().into_iter().find(|c| c.name == name).unwrap()
}

#[test]
fn loops_keep_what_they_must_and_no_more() {
    // Name, bytes of each loop for a turn, and slots of the launch.
    let expected: &[(&str, &[u32], [u32; 2])] = &[
        ("sum", &[0], [0, 0]),
        ("sum_of_squares", &[0], [0, 0]),
        ("counter_in_a_loop", &[4], [6, 0]),
        ("fibonacci", &[0], [0, 0]),
        ("warp_product", &[4], [3, 0]),
        ("large_loop", &[4], [1000, 0]),
        ("nested", &[4, 4], [7, 0]),
        ("triple", &[4, 4, 4], [7, 0]),
        ("triangular_bounds", &[4, 4], [10, 0]),
        ("bounds_from_a_buffer", &[4, 4], [7, 0]),
        ("while_bounded", &[4], [8, 0]),
        ("carried_struct", &[8], [5, 5]),
        ("carried_long", &[12], [5, 10]),
        ("matmul", &[0], [0, 0]),
    ];
    for (name, bytes, slots) in expected {
        let case = case(name);
        let grad = case.kernel.grad().unwrap();
        let got: Vec<u32> = grad.report.loops.iter().map(|l| l.bytes).collect();
        assert_eq!(&got, bytes, "{name}: {}", grad.report);
        assert_eq!(grad.slots(&case.launch).unwrap(), *slots, "{name}");
        assert_eq!(grad.report.to_string().contains("no tape"), slots == &[0, 0], "{name}");
    }
    let counted = &case("counter_in_a_loop").kernel.grad().unwrap().report.loops[0];
    assert_eq!((counted.counted, counted.taped.len()), (1, 1));
}

#[test]
fn a_tape_that_is_too_small_is_an_error_and_the_next_launch_is_right() {
    for name in ["nested", "triangular_bounds", "while_bounded", "carried_long", "break_of_the_outer_loop"] {
        let case = case(name);
        let grad = case.kernel.grad().unwrap();
        let slots = grad.slots(&case.launch).unwrap();
        let given = [(2, BufferData::wide(&[1.0]))];
        for tape in (0..2).filter(|&t| slots[t] > 0) {
            for lack in [1, slots[tape]] {
                let mut less = slots;
                less[tape] -= lack;
                let mut launch = grad.launch(&case.launch, &given, less).unwrap();
                execute(&grad.kernel, &mut launch).unwrap_or_else(|e| panic!("{name}: {e}"));
                match grad.check(&launch, less) {
                    Err(KernelError::Tape { have, needed, .. }) => {
                        assert_eq!(have, less[tape], "{name}");
                        assert!(needed > have && needed <= slots[tape], "{name}: {needed} and {slots:?}");
                    }
                    other => panic!("{name}: {other:?}"),
                }
            }
        }
        let again = grad.execute(&case.launch, &given).unwrap();
        assert!(again.of(0).and_then(BufferData::to_f64).unwrap().iter().any(|&d| d != 0.0), "{name}");
    }
}

mod written_as_rust {
    //! The same through the language: functions that return early, loops that are left, structs.

    use impasto_kernel::prelude::*;

    #[kernel_fn]
    fn soft(x: f32, edge: f32) -> f32 {
        if x > edge {
            return edge + (x - edge).tanh();
        }
        if x < -edge {
            return -edge;
        }
        x * x * 0.5
    }

    #[kernel(workgroup = 4)]
    pub fn chain(n: &[u32], x: &[f32], y: &mut [f32]) {
        let i = global_id(0);
        let mut s = x[i];
        for j in 0..n[0] {
            if j > 3 && s > 2.0 {
                break;
            }
            s = soft(s, 0.8) + x[(i + j) % 4];
        }
        y[i] = s * soft(x[i] + 1.0, 0.5);
    }
}

#[test]
fn kernels_written_as_rust_have_derivatives() {
    let kernel = written_as_rust::chain().unwrap_or_else(|e| panic!("{e}"));
    let x = BufferData::wide(&[0.3, -1.1, 0.9, 1.7]);
    let launch = wide(1, vec![BufferData::from(&[7u32][..]), x, BufferData::wide(&[0.0; 4])]);
    hold(&kernel, &launch, 5).unwrap_or_else(|e| panic!("{e}\n{kernel}"));
}

#[test]
fn forward_mode_follows_what_only_a_break_makes_vary() {
    let k = kernel("k", 1, |k| {
        let (x, y) = (k.buffer::<f32>("x"), k.buffer_mut::<f32>("y"));
        let (given, other) = (k.var(0.5f32), k.var(x.load(0)));
        k.for_(0u32, 3u32, |l, i| {
            k.if_(i.eq(1), || {
                given.set(x.load(1) * x.load(1));
                l.break_();
            });
            other.set(other.get() * x.load(0));
            given.set(0.25);
        });
        y.store(0, given.get());
        y.store(1, other.get());
    });
    let launch = wide(1, vec![BufferData::wide(&[3.0, 2.0]), BufferData::wide(&[0.0; 2])]);
    let along = k.jvp().unwrap().execute(&launch, &[(0, BufferData::wide(&[0.0, 1.0]))]).unwrap();
    assert_eq!(along.of(1).and_then(BufferData::to_f64), Some(vec![4.0, 0.0]));
    hold(&k, &launch, 1).unwrap_or_else(|e| panic!("{e}"));
}

/// The derivative at 0 of what a branch sees to: 0, and not NaN.
#[test]
fn what_was_optimised_is_differentiated_as_it_was_written() {
    type Guarded = fn(Val<'_, f32>) -> Val<'_, f32>;
    let guarded: [(&str, Guarded); 3] =
        [("quotient", |x| 1f32 / x), ("root", |x| x.sqrt()), ("power", |x| x.pow(-0.5f32))];
    for (name, f) in guarded {
        let kernel = Builder::kernel(name, [1, 1, 1], |k| {
            let (x, y, v) = (k.buffer::<f32>("x"), k.buffer_mut::<f32>("y"), k.var(0f32));
            let x = x.load(0);
            k.if_(x.gt(0f32), || v.set(f(x)));
            y.store(0, v.get());
        });
        let kernel = kernel.unwrap();
        let optimised = impasto_kernel::optimise(&kernel).unwrap();
        assert!(optimised.to_string().contains("select"), "{name}: nothing is speculated:\n{optimised}");
        for at in [0f32, -1.0, 2.0] {
            let launch = Launch::new([1, 1, 1], vec![[at][..].into(), [0f32][..].into()]);
            let adjoint = |k: &Kernel| {
                let done = k.grad().unwrap().execute(&launch, &[(1, [1f32][..].into())]).unwrap();
                done.of(0).and_then(BufferData::to_f32).unwrap()
            };
            let tangent = |k: &Kernel| {
                let done = k.jvp().unwrap().execute(&launch, &[(0, [1f32][..].into())]).unwrap();
                done.of(1).and_then(BufferData::to_f32).unwrap()
            };
            assert!(adjoint(&kernel)[0].is_finite(), "{name} at {at}");
            assert_eq!(adjoint(&optimised), adjoint(&kernel), "{name} at {at}");
            assert_eq!(tangent(&optimised), tangent(&kernel), "{name} at {at}");
        }
        // What another pass made of the optimised kernel has no original, and is refused.
        let passed = impasto_kernel::Pass::named("cse").unwrap().run(&optimised).unwrap();
        let refused = passed.grad().unwrap_err().to_string();
        assert!(refused.contains("differentiate first, and optimise the derivative"), "{refused}");
        assert!(passed.jvp().is_err());
    }
}
