//! Modules changed at random: each is refused, or optimised to something that is read again; nothing else may happen.

use std::time::{Duration, Instant};

use crate::support::{modules, valid_for};
use impasto_spirv::{
    Comparison, Diff, DiffError, DiffOptions, ImportError, ModuleOptions, count_instructions, optimise_words, reflect,
};

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) % n.max(1) as u64) as usize
    }
}

/// The places of instructions.
fn places(words: &[u32]) -> Vec<usize> {
    let (mut at, mut all) = (5, Vec::new());
    while at < words.len() {
        all.push(at);
        at += (words[at] >> 16).max(1) as usize;
    }
    all
}

fn damage(words: &mut Vec<u32>, all: &[Vec<u32>], r: &mut Random) {
    let places = places(words);
    if places.is_empty() {
        return;
    }
    let length = |words: &[u32], at: usize| ((words[at] >> 16).max(1) as usize).min(words.len() - at);
    let at = places[r.below(places.len())];
    let n = length(words, at);
    match r.below(8) {
        // A word becomes another one, or nearly the same.
        0 => words[at + r.below(n)] ^= 1 << r.below(32),
        1 => words[at + r.below(n)] = words[r.below(words.len())],
        2 => {
            let id = r.below(words[3] as usize + 2) as u32;
            words[at + 1.min(n - 1) + r.below(n - 1)] = id;
        }
        // Another instruction of the same length.
        3 => words[at] = words[at] & 0xFFFF_0000 | (r.below(450) as u32),
        // Instructions vanish, change places, or come from another module.
        4 => drop(words.drain(at..at + n)),
        5 => {
            let copied: Vec<u32> = words[at..at + n].to_vec();
            let to = places[r.below(places.len())];
            words.splice(to..to, copied);
        }
        6 => {
            let other = &all[r.below(all.len())];
            let others = self::places(other);
            let from = others[r.below(others.len())];
            let copied = other[from..from + length(other, from)].to_vec();
            words.splice(at..at, copied);
        }
        _ => words.truncate(at + r.below(n)),
    }
}

/// One in so many of the modules that were optimised is given to `spirv-val`, which is another process.
const JUDGED: u64 = 128;

/// What became of a module in the eyes of others.
#[derive(Default)]
struct Judged {
    asked: usize,
    /// `spirv-val` accepts it, before and after.
    valid: usize,
    /// The executor runs it, and what we made of it gives the same bits.
    equal: usize,
}

impl Judged {
    /// A module that `spirv-val` accepts must be accepted as we made it, and do the same, if the executor can run it.
    fn judge(&mut self, words: &[u32], made: &[u32]) -> Result<(), String> {
        self.asked += 1;
        if valid_for("spirv-val", "vulkan1.3", words).is_err() {
            return Ok(());
        }
        valid_for("spirv-val", "vulkan1.3", made)
            .map_err(|e| format!("spirv-val accepts it, but not what we made: {e}"))?;
        self.valid += 1;
        let options = DiffOptions { groups: Some([1; 3]), elements: 512, most_ops: 1 << 14, ..DiffOptions::default() };
        let diff = match Diff::new(words, made, options) {
            Ok(diff) => diff,
            // There is nothing that could be given to it.
            Err(DiffError::Module { module: "A", .. }) => return Ok(()),
            Err(e) => return Err(e.to_string()),
        };
        for entry in diff.entries() {
            match diff.on_cpu(entry) {
                Ok(Comparison { first: None, .. }) => self.equal += 1,
                // Of what lies outside of its memory nothing is promised.
                Ok(Comparison { strayed: true, .. }) => {}
                Ok(Comparison { first: Some(first), .. }) => {
                    return Err(format!("it computes something else: {first}"));
                }
                // It leaves its buffers, or does not end, or cannot be run.
                Err(DiffError::Module { module: "A", .. }) => {}
                Err(e) => return Err(e.to_string()),
            }
        }
        Ok(())
    }
}

/// Optimises a module, and what was made of it again; nothing, if it is refused with a word.
fn made_of(words: &[u32]) -> Result<Option<Vec<u32>>, String> {
    match optimise_words(words, ModuleOptions::default()) {
        Ok(done) => match optimise_words(&done.words, ModuleOptions::default()) {
            Ok(again) if count_instructions(&again.words) > 0 => Ok(Some(done.words)),
            Ok(_) => Err("nothing is left of it".to_owned()),
            Err(e) => Err(format!("what was written is not read: {e}")),
        },
        Err(ImportError::Fault(e)) => Err(format!("a fault: {e}")),
        Err(_) => Ok(None),
    }
}

#[test]
fn what_fuzzing_found_is_refused_or_optimised() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/seeds/module");
    let files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|f| f.unwrap().path()).collect();
    assert!(files.len() >= 15, "{files:?}");
    for file in files {
        let words = modules::words(&std::fs::read(&file).unwrap());
        let made = made_of(&words).unwrap_or_else(|e| panic!("{file:?}: {e}"));
        if let Some(made) = made {
            Judged::default().judge(&words, &made).unwrap_or_else(|e| panic!("{file:?}: {e}"));
        }
    }
}

impasto_testkit::trial! {
    fn damaged_modules_are_refused_or_optimised(cases: u64 = 60_000, 800_000) {
        let given = |name: &str| std::env::var(name).ok().and_then(|s| s.parse::<u64>().ok());
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_nanos() as u64;
        // The same ones each time, unless somebody looks for more.
        let (cases, first) = given("IMPASTO_DAMAGE_CASES").map_or((cases, 1), |cases| (cases, now));
        let seed = given("IMPASTO_DAMAGE_SEED").unwrap_or(first);
        // A failure again: whoever names its seed alone wants it judged.
        let again = given("IMPASTO_DAMAGE_SEED").is_some() && given("IMPASTO_DAMAGE_CASES").is_none();
        let mut all: Vec<Vec<u32>> = modules::glsl(7).into_iter().map(|s| s.1).collect();
        all.extend(modules::wgsl(4).into_iter().map(|s| s.1));
        let (mut made, mut judged) = (0, Judged::default());
        println!("IMPASTO_DAMAGE_SEED={seed}");
        for tried in 0..cases {
            let seed = seed.wrapping_add(tried);
            let mut r = Random(seed);
            let mut words = all[r.below(all.len())].clone();
            for _ in 0..=r.below(3) {
                damage(&mut words, &all, &mut r);
            }
            let begin = Instant::now();
            let _ = reflect(&words);
            let show = |problem: String| -> ! {
                let file = std::env::temp_dir().join(format!("damaged-{seed}.spv"));
                let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
                let kept = std::fs::write(&file, bytes).map_or("nowhere".to_owned(), |()| file.display().to_string());
                panic!("IMPASTO_DAMAGE_SEED={seed}: {problem}; the module is in {kept}")
            };
            if let Some(done) = made_of(&words).unwrap_or_else(|e| show(e)) {
                made += 1;
                if made % JUDGED == 0 || again {
                    judged.judge(&words, &done).unwrap_or_else(|e| show(e));
                }
            }
            // Far beyond what any of these takes: a hang.
            if begin.elapsed() > Duration::from_secs(20) {
                show(format!("it took {:?}", begin.elapsed()));
            }
        }
        let Judged { asked, valid, equal } = judged;
        println!("{cases} modules, {made} of them optimised; of {asked} spirv-val accepts {valid}, {equal} runs are equal");
        assert!(made > 0 && made < cases, "{made} of {cases}");
        // Few are judged of few.
        assert!(cases < 60_000 || valid > 0 && equal > 0, "{valid} are valid, {equal} equal");
    }
}
