//! Matrices of a subgroup: a product must be right with them, without them, and after every pass. If one of these fails, a picture would be
//! wrong on devices with matrix units, or on those without.

use half::f16;
use impasto_kernel::{
    BufferData, Builder, Kernel, KernelError, Launch, MatrixA, MatrixLayout, PASSES, Scalar, Val, construct, execute,
    lower_matrices, optimise, verify,
};
use impasto_testkit::kernel::{gemm, programs, random::Rng, same};

fn run(kernel: &Kernel, case: &gemm::Case) -> Result<Vec<BufferData>, String> {
    let mut launch = gemm::launch(case);
    execute(kernel, &mut launch).map_err(|e| e.to_string())?;
    Ok(launch.buffers)
}

#[test]
fn products_are_those_of_plain_rust_with_and_without_matrices() {
    for seed in programs(60) {
        let case = gemm::case(seed, [4, 8, 16, 32][seed as usize / 3 % 4]);
        let fail = |what: &str, e: String| -> ! { panic!("{case:?}, {what}: {e}") };
        let kernel = gemm::kernel(&case);
        let expected = run(&kernel, &case).unwrap_or_else(|e| fail("as built", e));
        same(&[gemm::expected(&case)], &expected[2..]).unwrap_or_else(|e| fail("plain Rust", e));
        let check = |what: &str, made: Result<Kernel, KernelError>| {
            let made = made.unwrap_or_else(|e| fail(what, e.to_string()));
            let got = run(&made, &case).unwrap_or_else(|e| fail(what, e));
            same(&expected, &got).unwrap_or_else(|e| fail(what, e));
            made
        };
        check("read from its text", kernel.to_string().parse());
        check("optimised", optimise(&kernel));
        check("lowered without optimising", lower_matrices(&kernel, 4));
        let smallest = [2, 4, case.subgroup, case.subgroup][seed as usize % 4];
        let lowered = check("optimised and lowered", lower_matrices(&optimise(&kernel).unwrap(), smallest));
        let best = check("lowered and optimised", optimise(&lowered));
        assert!(!best.to_string().contains("matrix"), "{best}");
        check("lowered, read from its text", best.to_string().parse());
    }
}

#[test]
fn passes_in_any_order_keep_products() {
    for seed in programs(60) {
        let case = gemm::case(seed, 8);
        let mut rng = Rng::new(seed ^ 5);
        let kernel = gemm::kernel(&case);
        let expected = run(&kernel, &case).unwrap();
        let mut now = construct(&kernel).unwrap();
        if seed % 2 == 0 {
            now = lower_matrices(&now, 8).unwrap();
        }
        let mut after = String::new();
        for _ in 0..6 {
            let pass = PASSES[1 + rng.below(PASSES.len() - 1)];
            after = format!("{after} {}", pass.name);
            now = pass.run(&now).unwrap();
            verify(&now).unwrap_or_else(|e| panic!("{case:?}, after{after}: {e}\n{now}"));
            let got = run(&now, &case).unwrap_or_else(|e| panic!("{case:?}, after{after}: {e}\n{now}"));
            same(&expected, &got).unwrap_or_else(|e| panic!("{case:?}, after{after}: {e}\n{now}"));
        }
    }
}

fn with(body: impl FnOnce(&Builder)) -> Result<Kernel, String> {
    Builder::kernel("k", [32, 1, 1], body).map_err(|e| e.to_string())
}

#[test]
fn matrix_ops_that_a_lane_decides_about_are_refused() {
    type A = MatrixA<f16, 16, 16>;
    let load = |k: &Builder, at: u32| {
        k.matrix_store(k.buffer_mut::<f16>("y"), at, 16, MatrixLayout::Row, k.matrix_fill::<A>(f16::ONE));
    };
    let refused = [
        with(|k| k.if_(k.subgroup_lane().eq(0), || load(k, 0))),
        // By way of a variable, of memory, of a loop, of an early end.
        with(|k| {
            let v = k.var(0u32);
            k.if_(k.subgroup_lane().lt(3), || v.set(1u32));
            k.if_(v.get().eq(0), || load(k, 0));
        }),
        with(|k| {
            let p = k.private::<u32>("p", 2);
            p.store(0, k.subgroup_lane());
            k.if_(p.load(0).eq(0), || load(k, 0));
        }),
        with(|k| k.for_(0u32, k.subgroup_lane(), |_, _| load(k, 0))),
        with(|k| {
            k.loop_(|l| {
                load(k, 0);
                k.if_(k.subgroup_lane().eq(1), || l.break_());
            });
        }),
        with(|k| {
            k.if_(k.subgroup_lane().eq(1), || k.return_());
            load(k, 0);
        }),
        with(|k| {
            let c = k.buffer_mut::<u32>("c");
            k.if_(c.atomic_add(0, 1).lt(7), || load(k, 0));
        }),
    ];
    for (i, made) in refused.into_iter().enumerate() {
        let text = made.unwrap_err();
        assert!(text.contains("the lane decides whether this runs"), "{i}: {text}");
    }
    let operand = with(|k| {
        let x = k.buffer::<f16>("x");
        k.matrix_load::<A>(x, k.subgroup_lane() * 16u32, 16, MatrixLayout::Row);
    });
    assert!(operand.unwrap_err().contains("an operand depends on the lane"));
    // What all lanes agree on may decide, and so may what only the programmer knows to be the same.
    with(|k| k.if_(k.subgroup_lane().eq(0).subgroup_any(), || load(k, 0))).unwrap();
    with(|k| k.if_((k.local_index() / 32u32).eq(0), || load(k, 0))).unwrap();
}

#[test]
fn the_executor_stops_at_what_cannot_be_seen_before() {
    type A = MatrixA<f16, 16, 16>;
    let stops = |body: &dyn Fn(&Builder), subgroup: u32| {
        let kernel = with(body).unwrap();
        let mut launch = Launch::new([1, 1, 1], vec![BufferData::zeros(Scalar::F16, 4096)]);
        launch.subgroup = subgroup;
        execute(&kernel, &mut launch).unwrap_err().to_string()
    };
    fn fill(k: &Builder) -> Val<'_, A> {
        k.matrix_fill(f16::ONE)
    }
    let y = |k: &Builder, index: u32, stride: u32| {
        k.matrix_store(k.buffer_mut::<f16>("y"), index, stride, MatrixLayout::Row, fill(k));
    };
    let text = stops(&|k| k.if_(k.local_index().lt(5), || y(k, 0, 16)), 32);
    assert!(text.contains("not all 32 invocations of the subgroup reach this"), "{text}");
    let text = stops(&|k| y(k, 0, 16), 64);
    assert!(text.contains("not all 64 invocations"), "{text}");
    let sum = |k: &Builder| {
        let x = k.matrix_load::<A>(k.buffer::<f16>("x"), 0, 16, MatrixLayout::Row);
        k.if_(k.local_index().lt(5), || _ = x.plus(x));
    };
    let text = stops(&sum, 32);
    assert!(text.contains("add") && text.contains("not all 32 invocations"), "{text}");
    let waits = |k: &Builder| {
        k.buffer::<f16>("x");
        k.if_(k.local_index().lt(5), || k.subgroup_barrier());
    };
    let text = stops(&waits, 32);
    assert!(text.contains("not all 32 invocations"), "{text}");
    let text = stops(
        &|k| k.matrix_store(k.buffer_mut::<f16>("y"), k.local_index() * 16u32, 16, MatrixLayout::Row, fill(k)),
        32,
    );
    assert!(text.contains("not the same in the whole subgroup"), "{text}");
    let text = stops(&|k| y(k, 4, 16), 32);
    assert!(text.contains("index 4 and stride 16 must be multiples of 8"), "{text}");
    let text = stops(&|k| y(k, 0, 8), 32);
    assert!(text.contains("overwrite each other"), "{text}");
    let text = stops(&|k| y(k, 4000, 16), 32);
    assert!(text.contains("outside of 'y'"), "{text}");
}

mod written {
    use impasto_kernel::prelude::*;

    /// A row of tiles of `x * y`, two accumulators in registers.
    #[kernel(workgroup = 32)]
    pub fn product(n: u32, x: &[f16], y: &[f16], z: &mut [f32]) {
        let row = workgroup_id(0) * 16;
        let mut left = matrix_fill::<Accumulator<f32, 16, 16>>(0.0);
        let mut right = matrix_fill::<Accumulator<f32, 16, 16>>(0.0);
        for i in (0..n).step_by(16) {
            let a = matrix_load::<MatrixA<f16, 16, 16>>(x, row * n + i, n, MatrixLayout::Row);
            let b = matrix_load::<MatrixB<f16, 16, 16>>(y, i, n, MatrixLayout::Column);
            left = matrix_mul_add(a, b, left);
            right = matrix_mul_add(a, b, right.scaled(0.5));
        }
        matrix_store(z, row * 32, 32, MatrixLayout::Row, left);
        matrix_store(z, row * 32 + 16, 32, MatrixLayout::Row, right);
    }
}

#[test]
fn matrices_can_be_written_in_the_language() {
    let kernel = written::product().unwrap();
    let n = 48usize;
    let data = |seed: usize| {
        let number = |i: usize| f16::from_f32(((i * 37 + seed) % 101) as f32 / 25.0 - 2.0);
        (0..32 * n).map(number).collect::<Vec<f16>>()
    };
    let (x, y) = (data(5), data(11));
    let bits = |v: &[f16]| BufferData { ty: Scalar::F16, bits: v.iter().map(|h| h.to_bits().into()).collect() };
    let mut expected = vec![0f32; 32 * 32];
    for row in 0..32 {
        for column in 0..16 {
            let (mut left, mut right) = (0f32, 0f32);
            for i in 0..n {
                right = if i % 16 == 0 { right * 0.5 } else { right };
                let product = x[row * n + i].to_f32() * y[column * n + i].to_f32();
                (left, right) = (left + product, right + product);
            }
            expected[row * 32 + column] = left;
            expected[row * 32 + 16 + column] = right;
        }
    }
    for kernel in [optimise(&kernel).unwrap(), optimise(&lower_matrices(&kernel, 16).unwrap()).unwrap(), kernel] {
        let mut launch = Launch::new([2, 1, 1], vec![bits(&x), bits(&y), BufferData::zeros(Scalar::F32, 32 * 32)]);
        launch.scalars = vec![n as u64];
        execute(&kernel, &mut launch).unwrap_or_else(|e| panic!("{e}\n{kernel}"));
        assert_eq!(launch.buffers[2].to_f32().unwrap(), expected);
    }
}
