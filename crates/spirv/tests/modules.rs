//! Modules of others, optimised: valid, dense, short, and the same program.

use std::time::{Duration, Instant};

use crate::support::modules;
use crate::support::{dense_words, spirv_opt, valid_for};
use impasto_kernel::blowup::Case;
use impasto_spirv::{
    Comparison, Diff, DiffOptions, Environment, ImportError, ModuleOptions, Words, compile_unoptimised,
    count_instructions, optimise_words, reflect,
};

fn optimised(name: &str, words: &[u32]) -> Vec<u32> {
    let strict = ModuleOptions { strict: true, ..ModuleOptions::default() };
    optimise_words(words, strict).unwrap_or_else(|e| panic!("{name}: {e}")).words
}

/// Both modules compute the same on the executor, and something.
fn same(name: &str, a: &[u32], b: &[u32], options: DiffOptions) {
    let diff = Diff::new(a, b, options).unwrap_or_else(|e| panic!("{name}: {e}"));
    for entry in diff.entries() {
        let Comparison { changed, first, .. } = diff.on_cpu(entry).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(first.is_none(), "{name}: {}", first.unwrap());
        assert!(changed > 0, "{name}: nothing was computed, so nothing is compared");
    }
}

fn valid(name: &str, words: &[u32]) {
    valid_for("spirv-val", "vulkan1.3", words).unwrap_or_else(|e| panic!("{name}: {e}"));
    dense_words(words).unwrap_or_else(|e| panic!("{name}: {e}"));
}

#[test]
fn shaders_come_out_valid_equal_and_short() {
    let (mut ours, mut theirs, mut before) = (0, 0, 0);
    let (mut our_time, mut their_time) = (Duration::ZERO, Duration::ZERO);
    for (kind, shaders) in [("GLSL", modules::glsl(1)), ("WGSL", modules::wgsl(1))] {
        assert!(shaders.len() >= 60, "only {} shaders in {kind}", shaders.len());
        for (name, words) in &shaders {
            let begin = Instant::now();
            let made = optimised(name, words);
            our_time += begin.elapsed();
            assert_eq!(made, optimised(name, words), "{name}: another time, other words");
            valid(name, &made);
            let (a, b) = (reflect(words).unwrap(), reflect(&made).unwrap());
            let seen = |i: &impasto_spirv::ModuleInterface| {
                let buffers = i.buffers.iter().map(|b| (b.set, b.binding, b.name.clone(), b.uniform, b.layout.clone()));
                (i.entries.clone(), i.constants.clone(), buffers.collect::<Vec<_>>())
            };
            assert_eq!(seen(&a), seen(&b), "{name}");
            for seed in impasto_testkit::kernel::programs(2) {
                same(name, words, &made, DiffOptions { seed, ..DiffOptions::default() });
            }
            // What was optimised is understood as well (joins that choose values, functions in place of their calls), and cannot be better.
            let twice = optimised(name, &made);
            assert_eq!(twice, made, "{name}: a second run changes it");
            let (other, time) = spirv_opt(words);
            their_time += time;
            let both = optimised(name, &other);
            valid(name, &both);
            assert_eq!(optimised(name, &both), both, "{name} by spirv-opt: a second run changes it");
            // The other optimiser rounds floats otherwise, so each is compared with what it was made of.
            same(name, &other, &both, DiffOptions::default());
            let counts = [words, &made, &other, &both].map(|w| count_instructions(w));
            assert!(counts[1] <= counts[0] && counts[3] <= counts[2], "{name}: more instructions: {counts:?}");
            println!("{name:26} {:4} instructions of {:4}, spirv-opt -O {:4}", counts[1], counts[0], counts[2]);
            before += counts[0];
            ours += counts[1];
            theirs += counts[2];
        }
    }
    println!("{ours} instructions of {before}, spirv-opt -O {theirs}: {:.3}", ours as f64 / theirs as f64);
    println!("in {our_time:.1?}; spirv-opt -O takes {their_time:.1?}");
    assert!(theirs < before, "spirv-opt did nothing, so nothing is compared");
    assert!(ours as f64 <= 1.10 * theirs as f64, "{ours} instructions, spirv-opt -O leaves {theirs}");
}

#[test]
fn loops_keep_their_hints() {
    let shaders = modules::glsl(1);
    let (name, words) = shaders.iter().find(|s| s.0 == "loop_hints.comp").unwrap();
    let controls = |words: &[u32]| {
        let (mut at, mut found) = (5, Vec::new());
        while at < words.len() {
            if words[at] & 0xFFFF == 246 {
                found.push(words[at + 3]);
            }
            at += (words[at] >> 16) as usize;
        }
        found
    };
    // Unroll, DontUnroll, and one that says nothing.
    assert_eq!(controls(words), [1, 2, 0], "{name}");
    assert_eq!(controls(&optimised(name, words)), [1, 2, 0], "{name}");
}

#[test]
fn a_large_bound_in_the_header_changes_nothing() {
    // The optimiser of SPIRV-Tools miscompiles such modules and says that all is well.
    for (name, words) in &modules::glsl(9) {
        let mut large = words.clone();
        for bound in [words[3] + 1000, 0x3F_FFFF, 0x3FF_FFFF] {
            large[3] = bound;
            let (a, b) = (optimised(name, &large), optimised(name, words));
            assert_eq!(a.len(), b.len(), "{name}, {bound}");
            assert_eq!(a[3], b[3], "{name}, {bound}");
            same(name, &large, &a, DiffOptions::default());
        }
    }
}

#[test]
fn variables_that_live_across_joins_cost_no_ids() {
    for case in ["sparse 300 300 2", "sparse 400 50 20", "loop 120 120 2"] {
        let case: Case = case.parse().unwrap();
        let words = compile_unoptimised(&case.kernel().unwrap()).unwrap().words();
        let made = optimised(&case.to_string(), &words);
        valid(&case.to_string(), &made);
        let Case { variables: v, joins: j, changes: k, .. } = case;
        assert!(made[3] < 8 * v + 14 * j + 4 * j * k + 100, "{case}: {} ids", made[3]);
        let elements = 64 * v.max(j);
        same(
            &case.to_string(),
            &words,
            &made,
            DiffOptions { groups: Some([1; 3]), elements, ..DiffOptions::default() },
        );
    }
}

/// The words that an error names, and its text.
fn refusal(words: &[u32]) -> (usize, String) {
    match optimise_words(words, ModuleOptions::default()) {
        Err(e @ ImportError::Words { word, .. } | e @ ImportError::Graphics { word, .. }) => (word, e.to_string()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_is_no_module_is_refused_with_the_word() {
    let (_, good) = &modules::glsl(1000)[0];
    let with = |at: usize, word: u32| {
        let mut words = good.clone();
        words[at] = word;
        words
    };
    assert_eq!(refusal(&[]).0, 0);
    assert_eq!(refusal(b"This is not SPIR-V.."[..].chunks(4).map(|_| 0x7369_6854).collect::<Vec<_>>().as_slice()).0, 0);
    let swapped: Vec<u32> = good.iter().map(|w| w.swap_bytes()).collect();
    let (word, text) = refusal(&swapped);
    assert!(word == 0 && text.contains("byte order"), "{text}");
    assert_eq!(refusal(&with(1, 0x0001_0700)).0, 1);
    assert_eq!(refusal(&with(3, 0)).0, 3);
    let (word, text) = refusal(&with(3, u32::MAX));
    assert!(word == 3 && text.contains("4294967295"), "{text}");
    // A bound that is below the ids.
    let (word, text) = refusal(&with(3, 7));
    assert!(word >= 5 && text.contains("not below the bound 7"), "{text}");
    for cut in 0..good.len() {
        let (word, _) = refusal(&good[..cut]);
        assert!(word <= cut, "cut at {cut}: word {word}");
    }
}

/// An instruction.
fn i(op: u32, operands: &[u32]) -> Vec<u32> {
    std::iter::once(((operands.len() as u32 + 1) << 16) | op).chain(operands.iter().copied()).collect()
}

/// A module with one entry point `m`, of these types and of this body; ids 1 (void), 2 (function type), 3 (function) are taken.
fn module(model: u32, bound: u32, types: &[Vec<u32>], body: &[Vec<u32>]) -> Vec<u32> {
    let mut words = vec![0x0723_0203, 0x0001_0300, 0, bound, 0];
    words.extend(i(17, &[1]));
    words.extend(i(14, &[0, 1]));
    words.extend(i(15, &[model, 3, u32::from(b'm')]));
    words.extend(i(16, &[3, 17, 1, 1, 1]));
    words.extend(i(19, &[1]));
    words.extend(i(33, &[2, 1]));
    words.extend(types.concat());
    words.extend(i(54, &[1, 3, 0, 2]));
    words.extend(body.concat());
    words.extend(i(56, &[]));
    words
}

#[test]
fn modules_that_break_the_rules_are_refused_or_passed_through() {
    let entry = || i(248, &[4]);
    let end = || i(253, &[]);
    let fine = module(5, 5, &[], &[entry(), end()]);
    assert!(optimise_words(&fine, ModuleOptions::default()).unwrap().passed.is_empty());
    // Another stage, by name.
    let (_, text) = refusal(&module(4, 5, &[], &[entry(), end()]));
    assert!(text.contains("'m' is a Fragment shader"), "{text}");
    // Types that contain themselves: an array of a struct of that array.
    let cyclic = [i(30, &[6, 7]), i(21, &[8, 32, 0]), i(43, &[8, 9, 4]), i(28, &[7, 6, 9])];
    let (_, text) = refusal(&module(5, 10, &cyclic, &[entry(), end()]));
    assert!(text.contains("no type contains itself"), "{text}");
    // Ids that are defined twice, or nowhere.
    assert!(refusal(&module(5, 5, &[i(20, &[1])], &[entry(), end()])).1.contains("twice"));
    assert!(refusal(&module(5, 9, &[], &[entry(), i(249, &[8])])).1.contains("nowhere defined"));
    // What belongs into a function outside of one, and the other way round.
    assert!(refusal(&module(5, 5, &[i(253, &[])], &[entry(), end()])).1.contains("outside of a function"));
    assert!(refusal(&module(5, 9, &[], &[entry(), i(20, &[8]), end()])).1.contains("belongs before all of them"));
    assert!(refusal(&module(5, 5, &[i(17, &[1])], &[entry(), end()])).1.contains("after what it belongs before"));
    // A type that is none, a block as a value, a value as a block, a set of instructions that is none.
    let number = [i(21, &[6, 32, 0]), i(43, &[6, 7, 4])];
    let copies = |of: u32, as_type: u32| module(5, 10, &number, &[entry(), i(83, &[as_type, 8, of]), end()]);
    assert!(optimise_words(&copies(7, 6), ModuleOptions::default()).unwrap().passed.is_empty());
    assert!(refusal(&copies(7, 7)).1.contains("id 7 is no type"));
    assert!(refusal(&copies(4, 6)).1.contains("no value"));
    assert!(refusal(&copies(3, 6)).1.contains("no value"));
    assert!(refusal(&module(5, 10, &number, &[entry(), i(249, &[7])])).1.contains("no block of this function"));
    let extended = module(5, 10, &number, &[entry(), i(12, &[6, 8, 7, 1, 7]), end()]);
    assert!(refusal(&extended).1.contains("no set of instructions"));
    // A call of the entry point itself.
    assert!(refusal(&module(5, 9, &[], &[entry(), i(57, &[1, 8, 3]), end()])).1.contains("which nothing calls"));
    // A value of another function, and a binding of what is no variable.
    let other = [entry(), i(83, &[6, 8, 7]), end(), i(56, &[]), i(54, &[1, 9, 0, 2]), i(248, &[10])];
    let other = [&other[..], &[i(83, &[6, 11, 8]), end()]].concat();
    assert!(refusal(&module(5, 12, &number, &other)).1.contains("of another function"));
    let mut bound = module(5, 10, &[], &[entry(), end()]);
    let types = bound.iter().position(|&w| w == 2 << 16 | 19).unwrap();
    bound.splice(types..types, i(71, &[1, 33, 0]));
    assert!(refusal(&bound).1.contains("cannot have this decoration"));
    // What is stored is of another type than what the pointer leads to: not understood.
    let pointer = [i(21, &[6, 32, 0]), i(43, &[6, 7, 4]), i(22, &[8, 32]), i(32, &[9, 6, 8]), i(59, &[9, 10, 6])];
    let stored = module(5, 12, &pointer, &[entry(), i(62, &[10, 7]), i(61, &[8, 11, 10]), end()]);
    assert_eq!(optimise_words(&stored, ModuleOptions::default()).unwrap().passed.len(), 1);
    // Two ways into a block that no merge joins.
    let types = [i(20, &[6]), i(41, &[6, 7])];
    let unstructured =
        [entry(), i(250, &[7, 8, 9]), i(248, &[8]), i(249, &[10]), i(248, &[9]), i(249, &[10]), i(248, &[10]), end()];
    let words = module(5, 11, &types, &unstructured);
    let passed = optimise_words(&words, ModuleOptions::default()).unwrap();
    assert_eq!(passed.passed.len(), 1, "{:?}", passed.passed);
    assert_eq!(count_instructions(&passed.words), count_instructions(&words));
    let strict = ModuleOptions { strict: true, ..ModuleOptions::default() };
    match optimise_words(&words, strict) {
        Err(ImportError::NotUnderstood { function, word, .. }) => {
            assert!(function == "%3" && word > 5, "{function} {word}")
        }
        other => panic!("{other:?}"),
    }
    // An environment that is older than the module.
    let old = ModuleOptions { environment: Some(Environment::ALL[0]), ..ModuleOptions::default() };
    assert!(matches!(optimise_words(&fine, old), Err(ImportError::Environment { version: (1, 3), .. })));
}

#[test]
fn a_million_nested_blocks_are_passed_through() {
    // if (c) { if (c) { .. } }, a million deep; every block has a label and a merge.
    let n = 1_000_000u32;
    let types = [i(20, &[6]), i(41, &[6, 7])];
    let (mut body, mut merges) = (vec![i(248, &[4])], Vec::new());
    for k in 0..n {
        let (inner, merge) = (8 + 2 * k, 9 + 2 * k);
        body.extend([i(247, &[merge, 0]), i(250, &[7, inner, merge]), i(248, &[inner])]);
        merges.push(merge);
    }
    for &merge in merges.iter().rev() {
        body.extend([i(249, &[merge]), i(248, &[merge])]);
    }
    body.push(i(253, &[]));
    let words = module(5, 8 + 2 * n, &types, &body);
    let made = optimise_words(&words, ModuleOptions::default()).unwrap();
    assert!(made.passed[0].reason.contains("nest deeper"), "{:?}", made.passed);
    assert_eq!(count_instructions(&made.words), count_instructions(&words));
}

#[test]
fn functions_that_call_more_and_more_do_not_run_away() {
    // Each of forty functions calls the next one twice: put in their places these would be 2^40 calls.
    let n = 40u32;
    let mut body = vec![i(248, &[4]), i(57, &[1, 5, 100]), i(253, &[]), i(56, &[])];
    for k in 0..n {
        let f = 100 + 10 * k;
        body.extend([i(54, &[1, f, 0, 2]), i(248, &[f + 1])]);
        if k + 1 < n {
            body.extend([i(57, &[1, f + 2, f + 10]), i(57, &[1, f + 3, f + 10])]);
        }
        body.push(i(253, &[]));
        if k + 1 < n {
            body.push(i(56, &[]));
        }
    }
    let words = module(5, 600, &[], &body);
    let made = optimise_words(&words, ModuleOptions::default()).unwrap();
    assert!(!made.passed.is_empty());
}
