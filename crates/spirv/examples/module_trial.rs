//! Optimises every SPIR-V module of some folders and counts what must not happen: a larger module, one that a second run changes, an invalid one, a
//! loop hint that is lost.
//!
//! `cargo run --release -p impasto-spirv --example module_trial -- FOLDER..`

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use impasto_spirv::{ModuleOptions, count_instructions, optimise_words};

#[derive(Default)]
struct Totals {
    modules: usize,
    refused: usize,
    passed_through: usize,
    larger: usize,
    changed_again: usize,
    invalid: usize,
    hints_lost: usize,
    unchanged: usize,
    instructions: [usize; 2],
    time: Duration,
}

/// `spirv-val` on a file; nothing if it is valid.
fn problem(file: &std::path::Path) -> Option<String> {
    let output = Command::new("spirv-val").args(["--target-env", "vulkan1.3"]).arg(file).output();
    let output = output.expect("spirv-val is installed");
    (!output.status.success()).then(|| String::from_utf8_lossy(&output.stderr).trim().to_owned())
}

/// Loops, and those of them with a hint to unroll or not to.
fn hints(words: &[u32]) -> (usize, usize) {
    const LOOP_MERGE: u32 = 246;
    let (mut at, mut found) = (5, (0, 0));
    while at < words.len() {
        if words[at] & 0xFFFF == LOOP_MERGE {
            found.0 += 1;
            found.1 += usize::from(words.get(at + 3).is_some_and(|c| c & 3 != 0));
        }
        at += (words[at] >> 16).max(1) as usize;
    }
    found
}

fn main() {
    let mut files: Vec<PathBuf> = Vec::new();
    for folder in std::env::args().skip(1) {
        let entries = std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("{folder}: {e}"));
        files
            .extend(entries.filter_map(|e| Some(e.ok()?.path())).filter(|p| p.extension().is_some_and(|x| x == "spv")));
    }
    files.sort();
    let scratch = std::env::temp_dir().join(format!("module-trial-{}.spv", std::process::id()));
    let mut t = Totals::default();
    for file in &files {
        let bytes = std::fs::read(file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        let words: Vec<u32> = bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
        let name = file.display();
        t.modules += 1;
        let begin = Instant::now();
        let made = match optimise_words(&words, ModuleOptions::default()) {
            Ok(made) => made,
            Err(e) => {
                println!("{name}: refused: {e}");
                t.refused += 1;
                continue;
            }
        };
        t.time += begin.elapsed();
        for p in &made.passed {
            println!("{name}: passed through: word {}: {}", p.word, p.reason);
        }
        t.passed_through += usize::from(!made.passed.is_empty());
        let (a, b) = (count_instructions(&words), count_instructions(&made.words));
        t.instructions[0] += a;
        t.instructions[1] += b;
        t.unchanged += usize::from(made.words == words);
        if b > a {
            println!("{name}: larger: {a} -> {b}");
            t.larger += 1;
        }
        let again = optimise_words(&made.words, ModuleOptions::default());
        if !again.is_ok_and(|again| again.words == made.words) {
            println!("{name}: a second run changes it");
            t.changed_again += 1;
        }
        let (before, after) = (hints(&words), hints(&made.words));
        // A loop that is gone takes its hint along.
        if after.1 < before.1 && after.0 >= before.0 {
            println!("{name}: hints of {} of {} loops, then of {} of {}", before.1, before.0, after.1, after.0);
            t.hints_lost += 1;
        }
        let bytes: Vec<u8> = made.words.iter().flat_map(|w| w.to_le_bytes()).collect();
        std::fs::write(&scratch, bytes).expect("the temporary folder can be written");
        // What was invalid before may stay so.
        if let Some(why) = problem(&scratch).filter(|_| problem(file).is_none()) {
            println!("{name}: invalid: {why}");
            t.invalid += 1;
        }
    }
    let _ = std::fs::remove_file(&scratch);
    let Totals { modules, refused, passed_through, larger, changed_again, invalid, hints_lost, unchanged, .. } = t;
    println!(
        "{modules} modules: {refused} refused, {passed_through} with functions passed through, {unchanged} unchanged"
    );
    println!(
        "{larger} larger, {changed_again} changed by a second run, {invalid} invalid, {hints_lost} with hints lost"
    );
    println!("{} instructions -> {}, in {:.1?}", t.instructions[0], t.instructions[1], t.time);
}
