//! The reference executor. If it is wrong, every differential test judges wrongly.

use impasto_kernel::{BufferData, Builder, Kernel, Launch, Scalar, execute};

fn run(kernel: &Kernel, groups: u32, buffers: Vec<BufferData>) -> Result<Vec<BufferData>, String> {
    let mut launch = Launch::new([groups, 1, 1], buffers);
    launch.subgroup = 4;
    launch.max_ops = 1_000_000;
    execute(kernel, &mut launch).map_err(|e| e.to_string())?;
    Ok(launch.buffers)
}

#[test]
fn a_workgroup_reduces_through_shared_memory() {
    let kernel = Builder::kernel("sum", [8, 1, 1], |k| {
        let (x, y) = (k.buffer::<f32>("x"), k.buffer_mut::<f32>("y"));
        let s = k.shared::<f32>("s", 8);
        let l = k.local_index();
        s.store(l, x.load(k.global_id(0)));
        k.barrier();
        let width = k.var(4u32);
        k.while_(
            || width.get().gt(0),
            |_| {
                k.if_(l.lt(width.get()), || s.store(l, s.load(l) + s.load(l + width.get())));
                k.barrier();
                width.set(width.get() >> 1u32);
            },
        );
        k.if_(l.eq(0), || y.store(k.workgroup_id(0), s.load(0)));
    })
    .unwrap();
    let x: Vec<f32> = (0..16).map(|i| i as f32).collect();
    let out = run(&kernel, 2, vec![BufferData::from(&x[..]), BufferData::zeros(Scalar::F32, 2)]).unwrap();
    assert_eq!(out[1].to_f32().unwrap(), [28.0, 92.0]);
}

#[test]
fn subgroups_see_their_active_invocations_only() {
    let kernel = Builder::kernel("sub", [8, 1, 1], |k| {
        let y = k.buffer_mut::<u32>("y");
        let l = k.local_index();
        k.if_else(
            (l & 1u32).eq(0),
            || {
                y.store(l, l.subgroup_add());
                y.store(l + 8u32, l.subgroup_exclusive_add());
            },
            || {
                y.store(l, l.subgroup_broadcast_first() + l.subgroup_shuffle_xor(2));
                y.store(
                    l + 8u32,
                    l.gt(2).subgroup_all().select(1u32, 0u32) + l.gt(5).subgroup_any().select(2u32, 0u32),
                );
            },
        );
    })
    .unwrap();
    let out = run(&kernel, 1, vec![BufferData::zeros(Scalar::U32, 16)]).unwrap();
    // Subgroups of 4: even lanes (0 2) (4 6), odd lanes (1 3) (5 7).
    assert_eq!(out[0].to_u32().unwrap(), [2, 1 + 3, 2, 1 + 1, 10, 5 + 7, 10, 5 + 5, 0, 0, 0, 0, 0, 3, 4, 3]);
}

#[test]
fn loops_leave_at_any_depth_and_atomics_return_what_was() {
    let kernel = Builder::kernel("exits", [4, 1, 1], |k| {
        let y = k.buffer_mut::<u32>("y");
        let l = k.local_index();
        let sum = k.var(0u32);
        k.for_(0u32, 10u32, |outer, i| {
            k.for_step(0u32, 100u32, 10, |inner, j| {
                k.if_(j.gt(30), || inner.break_());
                k.if_((i + l).eq(3), || outer.continue_());
                k.if_(i.gt(4), || outer.break_());
                sum.set(sum.get() + 1u32);
            });
        });
        y.store(l, sum.get());
        k.if_(l.eq(2), || k.return_());
        y.atomic_add(4, 1);
        y.store(l + 5u32, y.atomic_max(9, l));
    })
    .unwrap();
    let out = run(&kernel, 1, vec![BufferData::zeros(Scalar::U32, 10)]).unwrap();
    assert_eq!(out[0].to_u32().unwrap(), [16, 16, 16, 16, 3, 0, 0, 0, 1, 3]);
}

#[test]
fn what_a_program_must_not_do_is_an_error_that_names_the_op() {
    let kernel = |body: &dyn Fn(&Builder)| Builder::kernel("bad", [4, 1, 1], |k| body(k)).unwrap();
    let y = || vec![BufferData::zeros(Scalar::U32, 4)];
    let outside = kernel(&|k| k.buffer_mut::<u32>("y").store(k.local_index() + 1u32, 0));
    let e = run(&outside, 1, y()).unwrap_err();
    assert!(e.contains("invocation 3: index 4 is outside of 'y', which has 4 elements"), "{e}");
    let empty = kernel(&|k| {
        let (y, s) = (k.buffer_mut::<u32>("y"), k.shared::<u32>("s", 4));
        y.store(0, s.load(1));
    });
    assert!(run(&empty, 1, y()).unwrap_err().contains("nobody has written this element of 's'"));
    let apart = kernel(&|k| {
        k.buffer_mut::<u32>("y");
        k.if_(k.local_index().lt(2), || k.barrier());
    });
    assert!(run(&apart, 1, y()).unwrap_err().contains("invocation 2: this invocation does not reach the barrier"));
    let endless = kernel(&|k| {
        k.buffer_mut::<u32>("y");
        k.loop_(|_| ());
    });
    assert!(run(&endless, 1, y()).unwrap_err().contains("a loop may not end"));
    assert!(run(&outside, 1, vec![]).unwrap_err().contains("it takes 1 buffers, 0 were given"));
}

#[test]
fn small_floats_round_as_they_are_stored() {
    use half::{bf16, f16};
    let kernel = Builder::kernel("halves", [1, 1, 1], |k| {
        let (h, b) = (k.buffer_mut::<f16>("h"), k.buffer_mut::<bf16>("b"));
        h.store(0, h.load(0) * h.load(1) + f16::ONE);
        b.store(0, (b.load(0).to::<f32>() * 3.0f32).to::<bf16>());
    })
    .unwrap();
    let (x, y, z) = (f16::from_f32(1.2345), f16::from_f32(7.0), bf16::from_f32(0.1));
    let h = BufferData { ty: Scalar::F16, bits: vec![x.to_bits().into(), y.to_bits().into()] };
    let b = BufferData { ty: Scalar::Bf16, bits: vec![z.to_bits().into()] };
    let out = run(&kernel, 1, vec![h, b]).unwrap();
    assert_eq!(out[0].bits[0], u64::from((x * y + f16::ONE).to_bits()));
    assert_eq!(out[1].bits[0], u64::from(bf16::from_f32(z.to_f32() * 3.0).to_bits()));
}
