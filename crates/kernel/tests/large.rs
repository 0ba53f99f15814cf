//! Large kernels: compiled in time and memory that grow with their size, or refused at once.

mod common;

use std::time::Instant;

use common::{differentiable, places, programs, random, together};
use impasto_kernel::blowup::Case;
use impasto_kernel::{Builder, Compiler, Kernel, KernelError, Target, compile, execute, least_ids, optimise};

#[test]
fn joins_are_made_for_what_changes_and_not_for_what_lives() {
    for case in ["sparse 300 300 2", "loop 200 200 2", "sparse 1000 50 20"] {
        let case: Case = case.parse().unwrap();
        let Case { variables: v, joins: j, changes: k, .. } = case;
        let kernel = case.kernel().unwrap();
        let module = compile(&kernel).unwrap();
        // A handful of ids for each variable, join and change: far below variables x joins.
        let bound = 8 * v + 14 * j + 4 * j * k + 100;
        assert!(module.bound < bound, "{case}: {} ids, more than {bound}", module.bound);
        let (mut a, mut b) = (case.launch(), case.launch());
        execute(&kernel, &mut a).unwrap();
        execute(&optimise(&kernel).unwrap(), &mut b).unwrap();
        assert_eq!(a.buffers, b.buffers);
        assert_ne!(a.buffers, case.launch().buffers, "the kernel changes something");
    }
}

#[test]
fn time_grows_with_the_kernel_and_not_with_its_square() {
    let time = |n: u32| {
        let kernel = Case { repeats: false, variables: n, joins: n, changes: 2 }.kernel().unwrap();
        let run = || {
            let start = Instant::now();
            compile(&kernel).unwrap();
            start.elapsed()
        };
        (0..3).map(|_| run()).min().unwrap_or_default()
    };
    let (small, large) = (time(500), time(4000));
    // 8 times the kernel: a square would be 64 times the time. Machines are noisy, so the line is drawn between.
    assert!(large < small * 32, "500: {small:?}, 4000: {large:?}");
}

#[test]
fn kernels_that_need_too_many_ids_are_refused_at_once() {
    // Eight ids for each index of one kernel, and seven more in a second one.
    let (small, enormous) = (places("small", 3), places("enormous", 530_000));
    let two = vec![places("large", 250_000), small.clone(), places("larger", 310_000)];
    for (kernels, store) in [
        (vec![enormous.clone()], "store"),
        (vec![small, enormous], "store of 'enormous'"),
        // Each of them would do.
        (two, "store of 'larger'"),
    ] {
        let start = Instant::now();
        let error = Compiler::new(Target::ANY).compile(&kernels).map(|m| m.bound).unwrap_err();
        let took = start.elapsed();
        match &error {
            KernelError::TooManyIds { kernel, count, limit: 4_194_303, largest, stage } => {
                assert!(store.contains(kernel) || kernels.len() == 1, "{error}");
                assert!(*count > 4_194_303 && largest.0.iter().any(|l| l.0 == store), "{error}");
                assert_eq!(*stage, "any translation to SPIR-V");
            }
            other => panic!("{other}"),
        }
        // No pass has run; docs/kernel.md has the time.
        println!("refused in {took:?}");
    }
}

/// A kernel that is mostly of one kind, n times.
fn alike(kind: &str, n: u32) -> Kernel {
    let made = Builder::kernel("alike", [1, 1, 1], |k| {
        let (x, n_x, y) = (k.buffer::<f32>("x"), k.buffer::<u32>("n"), k.buffer_mut::<f32>("y"));
        let (i, a, b) = (k.global_id(0), x.load(0), n_x.load(0));
        match kind {
            "floats" => y.store(0, (0..n).fold(x.load(1), |v, _| v * a + 1.5f32)),
            "a variable" => {
                let v = k.var(x.load(1));
                (0..n).for_each(|_| v.set(v.get() * a));
                y.store(0, v.get());
            }
            "integers" => y.store((0..n).fold(n_x.load(1), |v, _| (v ^ b) * 3u32), a),
            "loads" => y.store(0, (0..n).fold(a, |v, j| v + x.load(i + j))),
            "stores" => (0..n).for_each(|j| y.store(i + j, a)),
            _ => (0..n).for_each(|j| k.if_(b.gt(j), || y.store(i, a))),
        }
    });
    made.unwrap()
}

#[test]
fn what_surely_needs_ids_is_counted_before_anything_is_done_with_it() {
    for (kind, each) in
        [("floats", 2), ("a variable", 1), ("integers", 2), ("loads", 5), ("stores", 3), ("branches", 4)]
    {
        let kernel = alike(kind, 1000);
        let (least, bound) = (least_ids(std::slice::from_ref(&kernel)), u64::from(compile(&kernel).unwrap().bound));
        assert!(least >= each * 995 && least <= bound, "{kind}: {least} of {bound}");
    }
    // Over the limit, and refused without a pass: nothing is written.
    for (kind, n) in [("floats", 2_150_000), ("branches", 1_080_000)] {
        let kernel = alike(kind, n);
        let start = Instant::now();
        match Compiler::new(Target::ANY).compile(std::slice::from_ref(&kernel)).map(|m| m.bound) {
            Err(KernelError::TooManyIds { stage: "any translation to SPIR-V", count, .. }) => {
                println!("{kind}: {count} ids, refused in {:?}", start.elapsed());
                assert!(count > 4_194_303);
            }
            other => panic!("{kind}: {other:?}"),
        }
    }
}

#[test]
fn no_kernel_needs_fewer_ids_than_are_counted_first() {
    for seed in programs(150) {
        let size = 6 + (seed % 24) as usize;
        let all = [random::kernel(seed, size), differentiable::kernel(seed, size), together::kernel(seed, size)];
        for kernel in all {
            let (least, bound) = (least_ids(std::slice::from_ref(&kernel)), compile(&kernel).unwrap().bound);
            assert!(least <= bound.into(), "seed {seed}: {least} of {bound}\n{kernel}");
        }
    }
}

#[test]
fn many_stores_to_one_place_need_few_ids() {
    let kernel = Builder::kernel("again", [1, 1, 1], |k| {
        let y = k.buffer_mut::<u32>("y");
        let i = k.global_id(0);
        (0..100_000).for_each(|_| y.store(i, i));
    });
    assert!(compile(&kernel.unwrap()).unwrap().bound < 100);
}

#[test]
fn an_op_costs_tens_of_bytes() {
    let kernel =
        optimise(&Case { repeats: false, variables: 4000, joins: 4000, changes: 4 }.kernel().unwrap()).unwrap();
    let each = kernel.bytes() as f64 / kernel.op_count() as f64;
    println!("{} ops, {each:.1} bytes each", kernel.op_count());
    // Tables grow by doubling, so up to half of them may be empty.
    assert!(kernel.op_count() > 40_000 && each < 110.0, "{} ops, {each} bytes each", kernel.op_count());
}
