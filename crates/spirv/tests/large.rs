//! Large kernels: compiled in time and memory that grow with their size. `refused.rs` has those that are too large.

use std::time::Instant;

use impasto_kernel::blowup::Case;
use impasto_kernel::{Builder, execute, optimise};
use impasto_spirv::{Words, compile};

#[test]
fn joins_are_made_for_what_changes_and_not_for_what_lives() {
    for case in ["sparse 300 300 2", "loop 200 200 2", "sparse 1000 50 20"] {
        let case: Case = case.parse().unwrap();
        let Case { variables: v, joins: j, changes: k, .. } = case;
        let kernel = case.kernel().unwrap();
        let module = compile(&kernel).unwrap();
        // A handful of ids for each variable, join and change: far below variables x joins.
        let bound = 8 * v + 14 * j + 4 * j * k + 100;
        assert!(module.bound() < bound, "{case}: {} ids, more than {bound}", module.bound());
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
fn many_stores_to_one_place_need_few_ids() {
    let kernel = Builder::kernel("again", [1, 1, 1], |k| {
        let y = k.buffer_mut::<u32>("y");
        let i = k.global_id(0);
        (0..100_000).for_each(|_| y.store(i, i));
    });
    assert!(compile(&kernel.unwrap()).unwrap().bound() < 100);
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
