//! What modules ask of a device: no more than their kernels use, and no less. A user of a small device would lose kernels that could run there, or
//! be told by a driver instead of by us.

use crate::support::valid;
use half::{bf16, f16};
use impasto_kernel::{Array, Builder, CompiledModule, Compiler, Feature, Kernel, KernelError, Target, Vector};
use impasto_spirv::{SpirV, Words, compile_for};

/// A kernel that needs a feature, by the way in which it does, and what else it needs.
struct Case {
    feature: Feature,
    others: &'static [Feature],
    op: &'static str,
    kernel: Kernel,
}

fn kernel(body: impl FnOnce(&Builder)) -> Kernel {
    Builder::kernel("needy", [4, 1, 1], body).unwrap()
}

fn cases() -> Vec<Case> {
    use Feature as F;
    let case = |feature, others, op, kernel| Case { feature, others, op, kernel };
    let out = |k: &Builder, x: impasto_kernel::Val<'_, u32>| k.buffer_mut::<u32>("y").store(0, x);
    vec![
        case(
            F::F16,
            &[F::Storage16],
            "add",
            kernel(|k| {
                let x = k.buffer_mut::<f16>("x");
                x.store(0, x.load(0) + x.load(1));
            }),
        ),
        case(
            F::F16,
            &[],
            "convert",
            kernel(|k| {
                let x = k.buffer_mut::<f32>("x");
                x.store(0, x.load(0).to::<f16>().to::<f32>());
            }),
        ),
        case(
            F::F16,
            &[F::Storage16],
            "if",
            kernel(|k| {
                let x = k.buffer_mut::<f16>("x");
                let v = k.if_value(k.local_index().gt(2), || x.load(1), || x.load(k.local_index() + 7u32));
                x.store(0, v);
            }),
        ),
        case(
            F::F16,
            &[F::Storage16],
            "load",
            kernel(|k| {
                let x = k.buffer_mut::<Array<f16, 3>>("x");
                x.store(0, x.load(1));
            }),
        ),
        case(
            F::F16,
            &[F::Storage16],
            "store",
            kernel(|k| {
                let (x, s) = (k.buffer_mut::<f16>("x"), k.shared::<f16>("s", 4));
                s.store(k.local_index(), x.load(k.local_index()));
                k.barrier();
                x.store(k.local_index(), s.load(0));
            }),
        ),
        case(
            F::I16,
            &[F::Storage16],
            "store",
            kernel(|k| {
                let (x, s) = (k.buffer_mut::<bf16>("x"), k.shared::<bf16>("s", 4));
                s.store(k.local_index(), x.load(k.local_index()));
                k.barrier();
                x.store(k.local_index(), s.load(0));
            }),
        ),
        case(
            F::I16,
            &[F::Storage16, F::F16],
            "bitcast",
            kernel(|k| {
                let (x, y) = (k.buffer_mut::<bf16>("x"), k.buffer_mut::<f16>("y"));
                y.store(0, x.load(0).bits_as::<f16>());
                x.store(0, y.load(1).bits_as::<bf16>());
            }),
        ),
        case(
            F::I64,
            &[],
            "load",
            kernel(|k| {
                let x = k.buffer_mut::<u64>("x");
                x.store(0, x.load(1));
            }),
        ),
        case(
            F::I64,
            &[],
            "convert",
            kernel(|k| {
                let x = k.buffer_mut::<u32>("x");
                let wide = x.load(0).to::<u64>() * x.load(1).to::<u64>();
                x.store(0, (wide >> 32u64).to());
            }),
        ),
        case(
            F::I64,
            &[],
            "param",
            kernel(|k| {
                let (_, n) = (k.param::<i64>("wide"), k.param::<u32>("n"));
                out(k, n);
            }),
        ),
        case(
            F::Storage16,
            &[],
            "load",
            kernel(|k| {
                let (x, y) = (k.buffer::<f16>("x"), k.buffer_mut::<f32>("y"));
                y.store(0, x.load(0).to::<f32>());
            }),
        ),
        case(
            F::Storage16,
            &[],
            "store",
            kernel(|k| {
                let (x, y) = (k.buffer::<f32>("x"), k.buffer_mut::<f16>("y"));
                y.store(0, x.load(0).to::<f16>());
            }),
        ),
        case(
            F::Storage16,
            &[],
            "load",
            kernel(|k| {
                let (x, y) = (k.buffer::<Vector<f16, 3>>("x"), k.buffer_mut::<Vector<f16, 3>>("y"));
                y.store(0, x.load(1));
            }),
        ),
        case(
            F::Storage16,
            &[],
            "load",
            kernel(|k| {
                let x = k.buffer_mut::<bf16>("x");
                x.store(0, (x.load(0).to::<f32>() + x.load(1).to::<f32>()).to::<bf16>());
            }),
        ),
        case(
            F::Storage16,
            &[],
            "load",
            kernel(|k| {
                let x = k.buffer_mut::<(bf16, u32)>("x");
                x.store(0, x.load(1));
            }),
        ),
        case(F::Storage16, &[], "len", kernel(|k| out(k, k.buffer::<f16>("x").len()))),
        case(
            F::Constants16,
            &[],
            "param",
            kernel(|k| {
                let n = k.param::<f16>("n");
                k.buffer_mut::<f32>("y").store(0, n.to::<f32>());
            }),
        ),
        case(
            F::Constants16,
            &[],
            "param",
            kernel(|k| {
                let n = k.param::<bf16>("n");
                k.buffer_mut::<f32>("y").store(0, n.to::<f32>());
            }),
        ),
        case(
            F::SubgroupVote,
            &[],
            "subgroup_any",
            kernel(|k| {
                out(k, k.local_index().gt(2).subgroup_any().to::<u32>());
            }),
        ),
        case(F::SubgroupArithmetic, &[], "subgroup_add", kernel(|k| out(k, k.local_index().subgroup_add()))),
        case(F::SubgroupArithmetic, &[], "subgroup_max", kernel(|k| out(k, k.local_index().subgroup_max()))),
        case(
            F::SubgroupBallot,
            &[],
            "subgroup_broadcast_first",
            kernel(|k| {
                out(k, k.local_index().subgroup_broadcast_first());
            }),
        ),
        case(
            F::SubgroupShuffle,
            &[],
            "subgroup_shuffle_xor",
            kernel(|k| {
                out(k, k.local_index().subgroup_shuffle_xor(1));
            }),
        ),
        case(F::Subgroup, &[], "subgroup_lane", kernel(|k| out(k, k.subgroup_lane() + k.subgroup_size()))),
    ]
}

/// The capabilities and extensions of a module: the number of the instruction, and all of its words.
fn asks(module: &CompiledModule) -> Vec<Vec<u32>> {
    let words = module.words();
    let mut found = Vec::new();
    let mut at = 5;
    while let 17 | 10 = words[at] & 0xFFFF {
        let end = at + (words[at] >> 16) as usize;
        found.push(words[at..end].to_vec());
        at = end;
    }
    found
}

/// Without any of what it asks for, a module is not valid any more.
fn asks_no_more_than_it_needs(module: &CompiledModule) -> Result<(), String> {
    let words = module.words();
    valid(&words)?;
    // The validator looks for this one only in modules that do not compute with 16 bits; drivers look always.
    let storage16 = [2 << 16 | 17, 4433];
    let computes = asks(module).iter().any(|a| matches!(a[..], [_, 9 | 22]));
    for ask in asks(module).into_iter().filter(|a| !(computes && *a == storage16)) {
        let at = words.windows(ask.len()).position(|w| w == ask).ok_or("it is there")?;
        let mut less = words.clone();
        less.drain(at..at + ask.len());
        if valid(&less).is_ok() {
            return Err(format!("it is valid without {ask:?}"));
        }
    }
    Ok(())
}

#[test]
fn a_kernel_is_refused_without_what_it_needs_and_asks_for_nothing_else() {
    let cases = cases();
    // The installed validator does not know matrices: tests/matrix.rs tries these.
    let matrices = [Feature::MemoryModel, Feature::Matrix, Feature::MatrixBf16];
    // These no target of SPIR-V has.
    let others = [Feature::AsyncCopy, Feature::Warpgroup];
    let untried = |f: &Feature| f.is_optional() || matrices.contains(f) || others.contains(f);
    let tried = |f: &Feature| untried(f) || cases.iter().any(|c| c.feature == *f);
    assert!(Feature::ALL.iter().all(tried), "there is a kernel for each feature");
    for (i, Case { feature, others, op, kernel }) in cases.iter().enumerate() {
        let with = others.iter().fold(Target::LEAST.with(*feature), |t, &f| t.with(f));
        let module = compile_for(kernel, with).unwrap_or_else(|e| panic!("case {i}: {e}"));
        // Shader, and one for each feature.
        assert_eq!(asks(&module).len(), 2 + others.len(), "case {i}: {:?}", asks(&module));
        asks_no_more_than_it_needs(&module).unwrap_or_else(|e| panic!("case {i}: {e}\n{kernel}"));
        let all = Feature::ALL.iter().fold(Target::LEAST, |t, &f| t.with(f));
        match compile_for(kernel, all.without(*feature)) {
            Err(KernelError::Lacks { kernel, op: at, feature: lacks, .. }) => {
                assert_eq!((kernel.as_str(), lacks), ("needy", *feature), "case {i}");
                assert!(at.contains(op), "case {i}: `{at}` is not {op}");
            }
            other => panic!("case {i}: {:?}", other.map(|m| m.bound())),
        }
    }
}

#[test]
fn signed_zeros_are_asked_for_where_floats_are_computed_with() {
    let floats = kernel(|k| k.buffer_mut::<f32>("y").store(0, 1.0));
    let ints = kernel(|k| k.buffer_mut::<u32>("y").store(0, 1));
    let halves = kernel(|k| {
        let x = k.buffer_mut::<f16>("x");
        x.store(0, x.load(0) + x.load(1));
    });
    let target = Target::LEAST.with(Feature::F16).with(Feature::Storage16);
    let (wide, small) = (Feature::SignedZerosF32, Feature::SignedZerosF16);
    for (kernel, target, n) in [
        (&floats, target.clone(), 1),
        // The capability, and the extension.
        (&floats, target.with(wide), 3),
        (&floats, target.with(small), 1),
        (&ints, target.with(wide).with(small), 1),
        (&halves, target.with(wide), 3),
        (&halves, target.with(wide).with(small), 5),
    ] {
        let module = compile_for(kernel, target).unwrap();
        assert_eq!(asks(&module).len(), n, "{kernel}");
        asks_no_more_than_it_needs(&module).unwrap_or_else(|e| panic!("{e}\n{kernel}"));
    }
}

#[test]
fn modules_are_for_the_lowest_version_and_refuse_an_older_one() {
    let plain = kernel(|k| k.buffer_mut::<f32>("y").store(0, 1.0));
    // SPIR-V 1.3 is that of Vulkan 1.1.
    assert_eq!(compile_for(&plain, Target::LEAST).unwrap().words()[1], 0x0001_0300);
    let error = Compiler::new(SpirV { vulkan: (1, 0) }, Target::LEAST).compile(&[plain]).unwrap_err();
    assert_eq!(error, KernelError::OldDriver { kernel: "needy".into(), api: "Vulkan", needs: (1, 1), have: (1, 0) });
    let text = "kernel 'needy': it needs Vulkan 1.1, and the device has 1.0; update its driver";
    assert_eq!(error.to_string(), text);
}

#[test]
fn a_kernel_that_is_too_large_for_a_device_is_refused() {
    let sized = |workgroup, body: &dyn Fn(&Builder)| Builder::kernel("large", workgroup, |k| body(k)).unwrap();
    let nothing = |_: &Builder| ();
    for (kernel, what, needs, limit) in [
        (sized([1, 1, 128], &nothing), "invocations in a workgroup along z", 128, 64),
        (sized([32, 32, 1], &nothing), "invocations in a workgroup", 1024, 128),
        (sized([1, 1, 1], &|k| _ = k.shared::<Vector<f32, 3>>("s", 1025)), "bytes shared by a workgroup", 16400, 16384),
        (
            sized([1, 1, 1], &|k| (0..17).for_each(|i| _ = k.param::<u64>(&format!("p{i}")))),
            "bytes of scalar parameters",
            136,
            128,
        ),
        (sized([1, 1, 1], &|k| (0..5).for_each(|i| _ = k.buffer::<u32>(&format!("b{i}")))), "buffers", 5, 4),
    ] {
        let refused = KernelError::TooLarge { kernel: "large".into(), what: what.into(), needs, limit };
        assert_eq!(compile_for(&kernel, Target::LEAST).unwrap_err(), refused);
        assert!(compile_for(&kernel, Target::ANY).is_ok());
    }
}
