//! One arithmetic instruction of a module is another one: the comparison of both modules finds it, or says that it did not get there.

use crate::support::modules;
use impasto_spirv::{Comparison, Diff, DiffError, DiffOptions, DiffVerdict, ModuleOptions, optimise_words};

/// Arithmetic instructions of SPIR-V by number, each with the one that stands in its place.
const SWAPS: [(u32, u32); 8] = [
    (128, 130), // IAdd, ISub
    (130, 128),
    (132, 128), // IMul, IAdd
    (129, 131), // FAdd, FSub
    (131, 129),
    (133, 129), // FMul, FAdd
    (136, 133), // FDiv, FMul
    (199, 197), // BitwiseAnd, BitwiseOr
];

/// Where the arithmetic instructions of the functions stand.
fn arithmetic(words: &[u32]) -> Vec<usize> {
    let (mut at, mut found, mut inside) = (5, Vec::new(), false);
    while at < words.len() {
        let op = words[at] & 0xFFFF;
        inside |= op == 54;
        if inside && SWAPS.iter().any(|s| s.0 == op) {
            found.push(at);
        }
        at += (words[at] >> 16).max(1) as usize;
    }
    found
}

fn planted(words: &[u32], at: usize) -> Vec<u32> {
    let mut other = words.to_vec();
    let op = words[at] & 0xFFFF;
    other[at] = words[at] & !0xFFFF | SWAPS.iter().find(|s| s.0 == op).map_or(op, |s| s.1);
    other
}

#[derive(Default)]
struct Totals {
    found: usize,
    not_reached: Vec<String>,
    missed: Vec<String>,
}

/// Plants a fault in each of `n` modules, spread evenly, and compares those whose names contain `only`.
fn trial(shaders: &[(String, Vec<u32>)], n: usize, seed: usize, only: &str) -> Totals {
    let candidates: Vec<_> = shaders.iter().filter(|s| !arithmetic(&s.1).is_empty()).collect();
    let mut totals = Totals::default();
    for i in 0..n {
        let (name, words) = candidates[i * candidates.len() / n];
        if !name.contains(only) {
            continue;
        }
        let places = arithmetic(words);
        let at = places[(i * 7919 + seed * 104_729) % places.len()];
        let other = planted(words, at);
        let name = format!("{name}, word {at}, instruction {}", words[at] & 0xFFFF);
        let diff = Diff::new(words, &other, DiffOptions::default()).unwrap_or_else(|e| panic!("{name}: {e}"));
        let mut verdict = DiffVerdict::Equal;
        let mut said = String::new();
        let begin = std::time::Instant::now();
        for entry in diff.entries() {
            match diff.on_cpu(entry) {
                Ok(c) => {
                    said += &format!("; {} changed, reached {}; {}", c.changed, c.reach.unwrap(), c.differing);
                    verdict = match (verdict, c.verdict()) {
                        (DiffVerdict::Different, _) | (_, DiffVerdict::Different) => DiffVerdict::Different,
                        (DiffVerdict::NotReached, _) | (_, DiffVerdict::NotReached) => DiffVerdict::NotReached,
                        _ => DiffVerdict::Equal,
                    };
                }
                Err(DiffError::Endless { .. }) => verdict = DiffVerdict::Different,
                Err(e) => {
                    said += &format!("; {e}");
                    verdict = DiffVerdict::NotReached;
                }
            }
        }
        println!("{name}: {verdict:?} in {:.1?}{said}", begin.elapsed());
        match verdict {
            DiffVerdict::Different => totals.found += 1,
            DiffVerdict::NotReached => totals.not_reached.push(name + &said),
            DiffVerdict::Equal => totals.missed.push(name + &said),
        }
    }
    totals
}

#[test]
fn planted_faults_are_found_or_not_reached() {
    // naga guards loops by counters whose faults change nothing, so WGSL has no part in this.
    let totals = trial(&modules::glsl(1), 65, 3, "");
    println!("{} found, not reached: {:#?}, missed: {:#?}", totals.found, totals.not_reached, totals.missed);
    assert!(totals.missed.is_empty(), "called equal: {:#?}", totals.missed);
    assert!(totals.found >= 60, "only {} of 65 found; not reached: {:#?}", totals.found, totals.not_reached);
}

fn comparison(a: &[u32], b: &[u32]) -> Comparison {
    Diff::new(a, b, DiffOptions::default()).unwrap().on_cpu("main").unwrap()
}

/// A shader that writes what `expression` says of `x[i]` and `i`, of which the first sum is planted as a difference.
fn sum_as_difference(expression: &str) -> Comparison {
    let words = modules::compile(&format!(
        "#version 450\nlayout(local_size_x = 64) in;
         layout(binding = 0) readonly buffer X {{ uint x[]; }}; layout(binding = 1) buffer Y {{ uint y[]; }};
         void main() {{ uint i = gl_GlobalInvocationID.x; y[i] = {expression}; }}"
    ));
    let at = arithmetic(&words).into_iter().find(|&at| words[at] & 0xFFFF == 128).unwrap();
    comparison(&words, &planted(&words, at))
}

#[test]
fn a_fault_that_nothing_comes_of_is_not_called_equal() {
    assert_eq!(sum_as_difference("x[i] + i").verdict(), DiffVerdict::Different);
    // The sums differ, and what is made of them does not; one of the operands is always 0.
    for (expression, differed) in [("i | (0u & (x[i] + i))", 1), ("x[i] + (i ^ i)", 0), ("x[i] + (i & 0u)", 0)] {
        let c = sum_as_difference(expression);
        assert_eq!(c.verdict(), DiffVerdict::NotReached, "{expression}: {c:?}");
        assert!(c.reach.unwrap().is_whole() && c.changed > 0, "{expression}: {c:?}");
        assert_eq!((c.differing.all, c.differing.differed, c.differing.agreed), (1, differed, 0), "{expression}");
    }
}

/// The shader with the sum in the line that is marked planted as a difference.
fn marked_sum_as_difference(source: &str) -> Comparison {
    let before = &source[..source.find("/*here*/").unwrap()];
    let words = modules::compile(source);
    let sums: Vec<usize> = arithmetic(&words).into_iter().filter(|&at| words[at] & 0xFFFF == 128).collect();
    comparison(&words, &planted(&words, sums[before.matches('+').count()]))
}

#[test]
fn an_array_that_is_not_cleared_shows() {
    let c = marked_sum_as_difference(
        "#version 450\nlayout(local_size_x = 8) in;
         layout(binding = 0) readonly buffer X { uint x[]; }; layout(binding = 1) buffer Y { uint y[]; };
         void main() {
             uint own[4];
             for (uint i = 0; i < 4; i = i /*here*/ + 1) own[i] = 0;
             for (uint i = 0; i < 4; i = i + 1) own[x[i] & 3] |= i;
             y[gl_GlobalInvocationID.x] = own[x[gl_GlobalInvocationID.x] & 3];
         }",
    );
    assert_eq!(c.verdict(), DiffVerdict::Different, "{c:?}");
}

#[test]
fn sizes_that_must_fit_each_other_are_found() {
    // The sum counts in the second row of workgroups only, which sizes must allow, among many that nothing depends on.
    let others: String = (0..24).map(|i| format!("uint other{i}; ")).collect();
    let c = marked_sum_as_difference(&format!(
        "#version 450\nlayout(local_size_x = 64) in;
         layout(push_constant) uniform P {{ {others} uint rows; uint stride; uint columns; }};
         layout(binding = 0) readonly buffer X {{ uint x[]; }}; layout(binding = 1) buffer Y {{ uint y[]; }};
         void main() {{
             uint row = gl_WorkGroupID.y * 64, i = gl_LocalInvocationIndex;
             if (row >= rows || i >= columns) return;
             y[i] = x[i * stride /*here*/ + row * stride * columns] ^ other3;
         }}"
    ));
    assert_eq!(c.verdict(), DiffVerdict::Different, "{c:?}");
}

#[test]
fn an_instruction_that_is_not_known_is_named_and_nothing_is_written() {
    let mut words = modules::compile("#version 450\nlayout(local_size_x = 1) in; void main() {}");
    // Some of ggml's shaders have this one, a dot product that adds.
    words.extend([1 << 16 | 6916]);
    let refused = optimise_words(&words, ModuleOptions::default()).unwrap_err().to_string();
    assert!(refused.contains("6916") && refused.contains("not known"), "{refused}");
}

#[test]
fn an_optimised_module_is_called_equal_wherever_it_is_reached() {
    for (name, words) in modules::glsl(4) {
        let made = optimise_words(&words, ModuleOptions::default()).unwrap_or_else(|e| panic!("{name}: {e}")).words;
        // Twice one float is its sum with itself, whatever it is: so instructions that differ may agree.
        let (c, own) = (comparison(&words, &made), comparison(&words, &words));
        assert_eq!(c.differing.agreed, c.differing.all, "{name}: {c:?}");
        assert_ne!(c.verdict(), DiffVerdict::Different, "{name}: {c:?}");
        if own.verdict() == DiffVerdict::Equal {
            assert_eq!(c.verdict(), DiffVerdict::Equal, "{name}: {c:?}");
        }
    }
}

/// The same with the modules of a folder: `IMPASTO_MODULES=DIR cargo test .. --test planted_faults -- --ignored --nocapture`, and
/// `IMPASTO_FAULTS=N` for another number of faults, `IMPASTO_SEED=N` for others, `IMPASTO_ONLY=NAME` for
/// some of them.
#[test]
#[ignore = "takes a folder of modules"]
fn planted_faults_in_a_folder() {
    let number = |name: &str, or: usize| std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(or);
    let only = std::env::var("IMPASTO_ONLY").unwrap_or_default();
    let folder = std::env::var("IMPASTO_MODULES").expect("IMPASTO_MODULES names a folder of modules");
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|f| f.unwrap().path()).collect();
    files.sort();
    let read = |f: &std::path::PathBuf| (f.display().to_string(), modules::words(&std::fs::read(f).unwrap()));
    let mut shaders: Vec<(String, Vec<u32>)> = files.iter().map(read).collect();
    shaders.retain(|s| impasto_spirv::reflect(&s.1).is_ok());
    let totals = trial(&shaders, number("IMPASTO_FAULTS", 65), number("IMPASTO_SEED", 1), &only);
    println!("not reached: {:#?}\nmissed: {:#?}", totals.not_reached, totals.missed);
    println!("{} found, {} not reached, {} missed", totals.found, totals.not_reached.len(), totals.missed.len());
}
