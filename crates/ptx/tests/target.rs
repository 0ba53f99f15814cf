//! What targets have, and what is refused on them by its name.

use half::bf16;
use impasto_kernel::{Builder, Compiler, Emitter, Feature, Kernel, KernelError, ModuleKind};
use impasto_ptx::{Ptx, PtxTarget, compile_for, compiler, dynamic_shared};
use impasto_testkit::kernel::{kernels, random};

fn empty(name: &str) -> Kernel {
    Builder::kernel(name, [32, 1, 1], |k| k.buffer_mut::<u32>("y").store(k.global_id(0), 1)).unwrap()
}

#[test]
fn a_device_gets_the_newest_code_that_it_runs() {
    let found = [(7, 0), (7, 5), (8, 0), (8, 6), (8, 7), (8, 9), (9, 0), (10, 0), (10, 3), (12, 0), (12, 1), (13, 0)]
        .map(|(major, minor)| PtxTarget::for_device(major, minor).map(PtxTarget::name));
    let want =
        ["sm_75", "sm_80", "sm_86", "sm_86", "sm_89", "sm_90a", "sm_100", "sm_100", "sm_120", "sm_120", "sm_120"];
    assert_eq!(found[0], None);
    assert_eq!(found[1..].iter().map(|t| t.unwrap()).collect::<Vec<_>>(), want);
}

#[test]
fn a_module_says_what_it_is_for() {
    for target in PtxTarget::ALL {
        let module = compile_for(&empty("k"), target).unwrap();
        assert_eq!((module.kind, module.kind.extension()), (ModuleKind::Ptx, "ptx"));
        let text = String::from_utf8(module.bytes).unwrap();
        let (major, minor) = target.isa();
        assert!(text.starts_with(&format!(".version {major}.{minor}\n.target {target}\n")), "{text}");
    }
}

#[test]
fn an_old_driver_is_told_which_version_it_needs() {
    let old = Ptx { target: PtxTarget::Sm90a, driver: (7, 8) };
    let error = Compiler::new(old, old.target.target()).compile(&[empty("k")]).unwrap_err();
    assert_eq!(error, KernelError::OldDriver { kernel: "k".into(), api: "PTX", needs: (8, 0), have: (7, 8) });
    let new = Ptx { target: PtxTarget::Sm90a, driver: (8, 0) };
    assert!(Compiler::new(new, new.target.target()).compile(&[empty("k")]).is_ok());
}

#[test]
fn what_ampere_brought_is_refused_or_lowered_before_it() {
    assert!(!PtxTarget::Sm75.target().has(Feature::MatrixBf16) && PtxTarget::Sm80.target().has(Feature::MatrixBf16));
    let narrow = Builder::kernel("narrow", [32, 1, 1], |k| {
        let (x, y) = (k.buffer_mut::<f32>("x"), k.buffer_mut::<bf16>("y"));
        let v = x.load(k.global_id(0));
        y.store(k.global_id(0), v.to::<bf16>());
        k.buffer_mut::<u32>("z").store(k.global_id(0), v.bits_as::<u32>().subgroup_add());
    })
    .unwrap();
    let text = |target| String::from_utf8(compile_for(&narrow, target).unwrap().bytes).unwrap();
    let (old, new) = (text(PtxTarget::Sm75), text(PtxTarget::Sm80));
    for word in ["cvt.rn.bf16.f32", "redux.sync"] {
        assert!(!old.contains(word) && new.contains(word), "{word}");
    }
}

#[test]
fn names_that_ptx_does_not_take_are_refused() {
    let error = compile_for(&empty("2d"), PtxTarget::Sm80).unwrap_err().to_string();
    assert!(error.contains("kernel '2d'") && error.contains("rename it"), "{error}");
}

#[test]
fn a_launch_gives_shared_memory_that_a_module_cannot_declare() {
    let kernel = |n: u32| {
        Builder::kernel("k", [32, 1, 1], |k| {
            let (s, y) = (k.shared::<u32>("s", n), k.buffer_mut::<u32>("y"));
            s.store(k.local_index(), 1);
            y.store(k.local_index(), s.load(k.local_index()));
        })
        .unwrap()
    };
    for (n, want) in [(64, 0), (12 * 1024, 0), (12 * 1024 + 1, 4 * (12 * 1024 + 1))] {
        let module = compile_for(&kernel(n), PtxTarget::Sm80).unwrap();
        assert_eq!(module.entries[0].shared, u64::from(4 * n));
        assert_eq!(dynamic_shared(&module.entries[0]), want);
        assert_eq!(String::from_utf8(module.bytes).unwrap().contains(".extern .shared"), want > 0);
    }
}

#[test]
fn what_was_written_passes_its_own_check_and_what_was_damaged_does_not() {
    let emitter = Ptx::new(PtxTarget::Sm80);
    let mut all: Vec<Kernel> = (0..10).map(|seed| random::kernel(seed, 20)).collect();
    all.extend(kernels::all(0).into_iter().take(1).map(|c| c.kernel));
    let module = compiler(PtxTarget::Sm80).compile(&all).unwrap();
    assert_eq!(emitter.check(&module.bytes), Ok(()));
    assert_eq!(module.entries.len(), all.len());
    let text = String::from_utf8(module.bytes).unwrap();
    // A line less is a register that nobody writes, or a label that nothing leads to; but without a store, a branch past a label, or what nobody
    // reads, it is another good module.
    let mut rng = random::Rng::new(1);
    let lines: Vec<&str> = text.lines().collect();
    let (mut tried, mut found) = (0, 0);
    while tried < 200 {
        let at = rng.below(lines.len());
        let line = lines[at].trim();
        let effect = ["st.", "bar.", "atom.", "@"].iter().any(|op| line.starts_with(op)) || line.starts_with("mov.");
        if effect || line.is_empty() {
            continue;
        }
        tried += 1;
        let without = [&lines[..at], &lines[at + 1..]].concat().join("\n") + "\n";
        found += u32::from(emitter.check(without.as_bytes()).is_err());
    }
    assert!(found >= 150, "{found} of {tried} missing lines were found");
}

#[test]
fn a_module_is_cached_by_its_target() {
    let folder = tempfile::tempdir().unwrap();
    let of = |target| compiler(target).cache_in(folder.path()).compile(&[empty("k")]).unwrap();
    let (a, b) = (of(PtxTarget::Sm80), of(PtxTarget::Sm86));
    assert_ne!(a, b);
    assert_eq!((of(PtxTarget::Sm80), of(PtxTarget::Sm86)), (a, b));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
}
