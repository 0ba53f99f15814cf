//! The one way in. Whoever ships kernels relies on it: all of a module or nothing, and no word but those that were compiled for this device.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::support::{dense, valid};
use impasto_kernel::{Builder, CompiledModule, Compiler, Feature, Kernel, Messages, Target};
use impasto_spirv::Words;
use impasto_testkit::kernel::{programs, random};

fn scaled(name: &str, factor: f32) -> Kernel {
    let made = Builder::kernel(name, [8, 1, 1], |k| {
        let x = k.buffer_mut::<f32>("x");
        let i = k.global_id(0);
        let sum = k.var(x.load(i));
        k.for_(0u32, i, |_, j| sum.set(sum.get() * factor + x.load(j)));
        x.store(i, sum.get());
    });
    made.unwrap()
}

/// A kernel that the least device cannot run.
fn wide(name: &str) -> Kernel {
    let made = Builder::kernel(name, [1, 1, 1], |k| {
        let x = k.buffer_mut::<u64>("x");
        x.store(0, x.load(1) * x.load(2));
    });
    made.unwrap()
}

fn names(folder: &Path) -> Vec<String> {
    let found = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = found.map(|e| e.file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn modules_of_several_random_kernels_are_valid_with_dense_ids() {
    for seed in programs(60).step_by(3) {
        let kernels: Vec<Kernel> = (seed..seed + 3).map(|s| random::kernel(s, 10 + (s % 30) as usize)).collect();
        for compiler in [impasto_spirv::compiler(Target::ANY), impasto_spirv::compiler(Target::ANY).unoptimised()] {
            let module = compiler.compile(&kernels).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
            dense(&module).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
            valid(&module.words()).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
            let alone: u32 = kernels.iter().map(|k| compiler.compile(std::slice::from_ref(k)).unwrap().bound()).sum();
            assert!(module.bound() < alone, "seed {seed}: nothing is shared");
            let found: Vec<&str> = module.entries.iter().map(|e| e.name.as_str()).collect();
            assert_eq!(found, kernels.iter().map(|k| k.name.as_str()).collect::<Vec<_>>());
        }
    }
}

#[test]
fn a_module_fails_as_one_and_the_error_names_the_kernel() {
    let folder = tempfile::tempdir().unwrap();
    let (cache, dump) = (folder.path().join("cache"), folder.path().join("dump"));
    let compiler = impasto_spirv::compiler(Target::LEAST).cache_in(&cache).dump_to(&dump);
    let bad: Kernel = "kernel bad(1, 1, 1) {\n  %0 = const 1 : u32\n  %1 = neg %0 : f32\n  return\n}".parse().unwrap();
    let (good, twin) = (scaled("good", 2.0), scaled("good", 3.0));
    for (kernels, want) in [
        (vec![], "a module has at least one kernel"),
        (vec![good.clone(), twin], "kernel 'good': two kernels of the module have this name"),
        (vec![good.clone(), bad], "kernel 'bad': `%1 = neg %0 : f32`"),
        (vec![good.clone(), wide("large")], "kernel 'large': `%1 = load x[%0] : u64` needs 64-bit integers"),
    ] {
        let error = compiler.compile(&kernels).map(|m| m.bound()).unwrap_err().to_string();
        assert!(error.contains(want), "{error}: not '{want}'");
    }
    assert!(names(&cache).is_empty(), "nothing of a failed module is kept");
    let dumps = names(&dump);
    assert_eq!(dumps, ["good-and-1", "good-and-1-2", "good-and-1-3", "nothing"]);
    for one in dumps {
        let files = names(&dump.join(&one));
        assert!(!files.contains(&"shipped.spv".to_owned()) && files.contains(&"FAILED".to_owned()), "{one}: {files:?}");
    }
    // What there was until it failed is there.
    let said = fs::read_to_string(dump.join("good-and-1-3").join("FAILED")).unwrap();
    assert!(said.contains("kernel 'large'") && names(&dump.join("good-and-1-3")).len() > 30, "{said}");
}

#[test]
fn a_dump_is_every_stage_and_the_words_that_are_shipped() {
    let folder = tempfile::tempdir().unwrap();
    let kernels = [scaled("first", 2.0), scaled("second", 3.0)];
    let module = impasto_spirv::compiler(Target::ANY).dump_to(folder.path()).compile(&kernels).unwrap();
    let own = folder.path().join("first-and-1");
    assert_eq!(fs::read(own.join("shipped.spv")).unwrap(), module.bytes);
    let stages: Vec<String> = names(&own).into_iter().filter(|n| n.ends_with(".txt")).collect();
    assert_eq!(stages[..3], ["000-first-built.txt", "001-first-sroa.txt", "002-first-ssa.txt"]);
    assert_eq!(stages.last().unwrap(), &format!("{:03}-second-multi_level_exits.txt", stages.len() - 1));
    assert_eq!(names(&own).len(), stages.len() + 1, "nothing else is there");
    for stage in &stages {
        let text = fs::read_to_string(own.join(stage)).unwrap();
        let kernel: Kernel = text.parse().unwrap_or_else(|e| panic!("{stage}: {e}"));
        impasto_kernel::verify(&kernel).unwrap_or_else(|e| panic!("{stage}: {e}"));
    }
    // Without optimisation there are two stages, and other words.
    let plain =
        impasto_spirv::compiler(Target::ANY).unoptimised().dump_to(folder.path()).compile(&kernels[..1]).unwrap();
    let own = folder.path().join("first");
    assert_eq!(names(&own), ["000-first-built.txt", "001-first-multi_level_exits.txt", "shipped.spv"]);
    assert_eq!(fs::read(own.join("shipped.spv")).unwrap(), plain.bytes);
}

#[test]
fn the_variable_names_a_folder_for_dumps() {
    if std::env::var_os("IMPASTO_DUMP_KERNELS").is_some() {
        impasto_spirv::compiler(Target::ANY).compile(&[scaled("by_variable", 2.0)]).unwrap();
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let done = Command::new(std::env::current_exe().unwrap())
        .args(["compiler::the_variable_names_a_folder_for_dumps", "--exact"])
        .env("IMPASTO_DUMP_KERNELS", folder.path())
        .output()
        .unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stdout));
    assert!(folder.path().join("by_variable").join("shipped.spv").is_file());
}

#[test]
fn messages_that_repeat_are_said_once_with_their_count() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "not a folder").unwrap();
    let messages = Arc::new(Messages::default());
    let compiler = impasto_spirv::compiler(Target::ANY).unoptimised().messages_to(messages.clone());
    // Neither can be written to, and that is no reason to fail.
    let compiler = compiler.dump_to(file.join("dump")).cache_in(file.join("cache"));
    for _ in 0..3 {
        compiler.compile(&[scaled("plain", 2.0)]).unwrap();
    }
    let said = messages.to_string();
    let lines: Vec<&str> = said.lines().collect();
    assert!(lines.len() == 3 && lines.iter().all(|l| l.ends_with("(3 times)")), "{said}");
    assert!(
        said.contains("kernel 'plain' is shipped unoptimised") && said.contains("the dump is not complete"),
        "{said}"
    );
    assert!(said.contains("kernels are compiled in every run"), "{said}");
    assert_eq!(messages.take().len(), 3);
    assert!(messages.take().is_empty());
}

/// A cache with one entry: the compiler, the entry, its kernel and words.
fn cached(folder: &Path) -> (Compiler, PathBuf, Kernel, CompiledModule) {
    let (compiler, kernel) = (impasto_spirv::compiler(Target::LEAST).cache_in(folder), scaled("kept", 2.0));
    let module = compiler.compile(std::slice::from_ref(&kernel)).unwrap();
    let entry = folder.join(&names(folder)[0]);
    (compiler, entry, kernel, module)
}

/// Whether a compilation took its words from an entry: then the entry is new again.
fn is_hit(compiler: &Compiler, entry: &Path, kernel: &Kernel, want: &CompiledModule) -> bool {
    let old = SystemTime::now() - Duration::from_secs(100_000);
    let file = fs::File::options().append(true).open(entry).unwrap();
    file.set_modified(old).unwrap();
    let before = fs::read(entry).unwrap();
    assert_eq!(compiler.compile(std::slice::from_ref(kernel)).unwrap(), *want);
    assert!(fs::metadata(entry).unwrap().modified().unwrap() > old + Duration::from_secs(1000));
    fs::read(entry).unwrap() == before
}

#[test]
fn an_entry_that_is_damaged_anywhere_is_compiled_again_and_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let (compiler, entry, kernel, module) = cached(folder.path());
    let whole = fs::read(&entry).unwrap();
    assert!(is_hit(&compiler, &entry, &kernel, &module));
    let mut damages: Vec<Vec<u8>> = (0..whole.len()).map(|n| whole[..n].to_vec()).collect();
    for at in 0..whole.len() {
        let mut damaged = whole.clone();
        damaged[at] ^= 1 << (at % 8);
        damages.push(damaged);
    }
    damages.push([&whole[..], &[0]].concat());
    for (i, damaged) in damages.iter().enumerate() {
        fs::write(&entry, damaged).unwrap();
        assert!(!is_hit(&compiler, &entry, &kernel, &module), "damage {i} was not seen");
        assert_eq!(fs::read(&entry).unwrap(), whole, "damage {i}");
    }
    // The words of another kernel, whole in themselves.
    let other = impasto_spirv::compiler(Target::LEAST).cache_in(folder.path().join("other"));
    other.compile(&[scaled("other", 3.0)]).unwrap();
    let theirs = folder.path().join("other").join(&names(&folder.path().join("other"))[0]);
    fs::copy(theirs, &entry).unwrap();
    assert!(!is_hit(&compiler, &entry, &kernel, &module));
    assert_eq!(names(folder.path()).len(), 2);
}

#[test]
fn whatever_words_depend_on_is_in_the_name_of_an_entry() {
    let folder = tempfile::tempdir().unwrap();
    let compiler = |target: Target| impasto_spirv::compiler(target).cache_in(folder.path());
    let (one, two) = (scaled("one", 2.0), scaled("two", 2.0));
    let mut wider = one.clone();
    wider.workgroup = [4, 1, 1];
    let signed = Target::LEAST.with(Feature::SignedZerosF32);
    let mut larger = Target::LEAST;
    larger.limits.shared *= 2;
    let all: [(Compiler, &[Kernel]); 8] = [
        (compiler(Target::LEAST), std::slice::from_ref(&one)),
        (compiler(Target::LEAST), std::slice::from_ref(&two)),
        (compiler(Target::LEAST), &[scaled("one", 2.5)]),
        (compiler(Target::LEAST), std::slice::from_ref(&wider)),
        (compiler(Target::LEAST), &[one.clone(), two.clone()]),
        (compiler(signed), std::slice::from_ref(&one)),
        (compiler(larger), std::slice::from_ref(&one)),
        (compiler(Target::LEAST).unoptimised(), std::slice::from_ref(&one)),
    ];
    for round in 0..2 {
        for (i, (compiler, kernels)) in all.iter().enumerate() {
            let fresh = impasto_spirv::compiler(Target::ANY);
            let module = compiler.compile(kernels).unwrap();
            assert_eq!(module.entries, fresh.compile(kernels).unwrap().entries);
            assert_eq!(names(folder.path()).len(), if round == 0 { i + 1 } else { all.len() });
        }
    }
}

#[test]
fn writers_at_the_same_time_do_not_disturb_each_other() {
    let kernels: Vec<Kernel> = (0..6).map(|i| scaled(&format!("k{i}"), i as f32)).collect();
    let want: Vec<CompiledModule> = kernels.iter().map(|k| compile_in(None, k)).collect();
    if let Some(folder) = std::env::var_os("IMPASTO_CACHE_TEST") {
        for _ in 0..10 {
            kernels.iter().zip(&want).for_each(|(k, w)| assert_eq!(compile_in(Some(Path::new(&folder)), k), *w));
        }
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let child = || {
        Command::new(std::env::current_exe().unwrap())
            .args(["compiler::writers_at_the_same_time_do_not_disturb_each_other", "--exact"])
            .env("IMPASTO_CACHE_TEST", folder.path())
            .spawn()
            .unwrap()
    };
    let children = [child(), child(), child()];
    std::thread::scope(|scope| {
        for t in 0..4 {
            let (kernels, want, folder) = (&kernels, &want, folder.path());
            scope.spawn(move || {
                for i in 0..60 {
                    let n = (i * 5 + t) % kernels.len();
                    assert_eq!(compile_in(Some(folder), &kernels[n]), want[n]);
                    // Someone damages what the others read.
                    if let Some(name) = names(folder).first().filter(|_| i % 7 == t) {
                        let _ = fs::write(folder.join(name), b"damaged");
                    }
                }
            });
        }
    });
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    kernels.iter().zip(&want).for_each(|(k, w)| assert_eq!(compile_in(Some(folder.path()), k), *w));
    let left = names(folder.path());
    assert!(left.len() == kernels.len() && left.iter().all(|n| n.starts_with("kernel-")), "{left:?}");
}

fn compile_in(folder: Option<&Path>, kernel: &Kernel) -> CompiledModule {
    let compiler = impasto_spirv::compiler(Target::LEAST);
    let compiler = folder.map_or(compiler.clone(), |f| compiler.cache_in(f));
    compiler.compile(std::slice::from_ref(kernel)).unwrap()
}
