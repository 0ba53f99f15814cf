//! Words that a driver may see: every module passes `spirv-val`.

use crate::support::{dense, valid};
use impasto_kernel::{Builder, Feature, Kernel, Target};
use impasto_spirv::{Words, compile, compile_for, compile_unoptimised};
use impasto_testkit::kernel::{programs, random};

fn check(kernel: &Kernel, what: &str) {
    let exact = compile_for(kernel, Target::ANY.with(Feature::SignedZerosF16).with(Feature::SignedZerosF32));
    for (module, how) in
        [(compile(kernel), "optimised"), (compile_unoptimised(kernel), "unoptimised"), (exact, "exact")]
    {
        let module = module.unwrap_or_else(|e| panic!("{what}, {how}: {e}"));
        dense(&module).unwrap_or_else(|e| panic!("{what}, {how}: {e}"));
        valid(&module.words()).unwrap_or_else(|e| panic!("{what}, {how}: {e}\n{kernel}"));
    }
}

#[test]
fn random_kernels_are_valid_modules_with_dense_ids() {
    for seed in programs(200) {
        check(&random::kernel(seed, 10 + (seed % 40) as usize), &format!("seed {seed}"));
    }
}

#[test]
fn real_kernels_are_valid_modules_with_dense_ids() {
    for case in impasto_testkit::kernel::kernels::all(0) {
        check(&case.kernel, &case.kernel.name);
    }
}

#[test]
fn every_type_and_op_is_a_valid_module() {
    use half::{bf16, f16};
    let kernel = Builder::kernel("all", [8, 2, 1], |k| {
        let (h, b) = (k.buffer_mut::<f16>("h"), k.buffer_mut::<bf16>("b"));
        let (f, u, i) = (k.buffer_mut::<f32>("f"), k.buffer_mut::<u32>("u"), k.buffer_mut::<i32>("i"));
        let (l, m) = (k.buffer_mut::<i64>("l"), k.buffer_mut::<u64>("m"));
        let v = k.buffer_mut::<impasto_kernel::Vector<f32, 4>>("v");
        let (p, s) = (k.private::<f32>("p", 3), k.shared::<i32>("s", 16));
        let n = k.param::<f16>("n");
        let at = k.global_id(0) + k.workgroup_id(1) * k.num_workgroups(2) + k.local_id(1);
        h.store(at, (h.load(at) * n - h.load(0)).exp().max(n));
        b.store(at, (b.load(at).to::<f32>() / 3.0f32).to::<bf16>());
        let x = f.load(at);
        let y = x.sqrt() + x.inverse_sqrt() + x.log().sin() * x.cos().tanh() - x.pow(x)
            + x.ceil()
            + x.trunc()
            + x.round_even().abs();
        p.store(at % 3u32, y.mul_add(x, x));
        f.store(at, p.load(u.load(at) % 3u32) + f.len().to::<f32>());
        l.store(at, l.load(at) / x.to::<i64>() + u.load(0).to::<i64>() % l.load(1));
        m.store(at, (l.load(at).to::<u64>() >> m.load(at)) + x.to::<u64>() + h.load(0).to::<u64>());
        i.store(
            at,
            i.load(at).reverse_bits().abs() + l.load(0).to::<i32>() + m.load(0).to::<i32>() + (x.bits_as::<i32>()),
        );
        v.store(at, (v.load(at) + v.load(0)).with(2, x) * k.vector([x, y, x, y]));
        s.store(k.local_index(), -i.load(at));
        k.barrier();
        i.atomic_min(at, s.load(0));
        i.atomic_max(at, s.atomic_exchange(1, 2));
        u.atomic_and(0, u.atomic_or(1, u.atomic_xor(2, u.atomic_min(3, u.atomic_max(4, 5)))));
        u.atomic_compare_exchange(0, 1, 2);
        let q = u.load(at).subgroup_add() + u.load(at).subgroup_exclusive_add() + k.subgroup_size() + k.subgroup_lane();
        k.subgroup_barrier();
        let q = q.subgroup_min()
            + q.subgroup_max()
            + k.subgroup_id()
            + q.subgroup_broadcast_first()
            + q.subgroup_shuffle_xor(1);
        f.store(0, x.subgroup_min() + x.subgroup_add());
        u.store(at, q.gt(3).subgroup_all().select(q, q.count_ones()));
        let pair = k.if_value(q.gt(3), || k.pair(x, q), || k.pair(y, q + 1u32));
        f.store(1, pair.first());
        u.store(1, pair.second().gt(7).subgroup_any().to::<u32>());
    })
    .unwrap();
    check(&kernel, "all");
}

#[test]
fn the_validator_really_looks() {
    let kernel = Builder::kernel("k", [1, 1, 1], |k| k.buffer_mut::<f32>("y").store(0, 1.0)).unwrap();
    let mut words = compile(&kernel).unwrap().words();
    valid(&words).unwrap();
    // Without the end of its function it is no module.
    words.pop();
    assert!(valid(&words).is_err());
}
