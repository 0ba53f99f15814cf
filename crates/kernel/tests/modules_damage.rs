//! Modules changed at random: each is refused, or optimised to something that is read again; nothing else may happen.

mod common;

use std::time::{Duration, Instant};

use common::modules;
use impasto_kernel::{ImportError, ModuleOptions, count_instructions, optimise_words, reflect};

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

#[test]
fn damaged_modules_are_refused_or_optimised() {
    let given = |name: &str| std::env::var(name).ok().and_then(|s| s.parse::<u64>().ok());
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_nanos() as u64;
    // The same ones each time, unless somebody looks for more.
    let (seconds, first) = given("IMPASTO_DAMAGE_SECONDS").map_or((30, 1), |s| (s, now));
    let seed = given("IMPASTO_DAMAGE_SEED").unwrap_or(first);
    let mut all: Vec<Vec<u32>> = modules::glsl(7).into_iter().map(|s| s.1).collect();
    all.extend(modules::wgsl(4).into_iter().map(|s| s.1));
    let (mut tried, mut made) = (0, 0);
    let end = Instant::now() + Duration::from_secs(seconds);
    println!("IMPASTO_DAMAGE_SEED={seed}");
    while Instant::now() < end {
        let seed = seed.wrapping_add(tried);
        let mut r = Random(seed);
        let mut words = all[r.below(all.len())].clone();
        for _ in 0..=r.below(3) {
            damage(&mut words, &all, &mut r);
        }
        tried += 1;
        let begin = Instant::now();
        let _ = reflect(&words);
        let show = |problem: String| -> ! {
            let file = std::env::temp_dir().join(format!("damaged-{seed}.spv"));
            let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
            let kept = std::fs::write(&file, bytes).map_or("nowhere".to_owned(), |()| file.display().to_string());
            panic!("IMPASTO_DAMAGE_SEED={seed}: {problem}; the module is in {kept}")
        };
        match optimise_words(&words, ModuleOptions::default()) {
            Ok(done) => {
                made += 1;
                let again = optimise_words(&done.words, ModuleOptions::default());
                again.unwrap_or_else(|e| show(format!("what was written is not read: {e}")));
                assert!(count_instructions(&done.words) > 0, "IMPASTO_DAMAGE_SEED={seed}");
            }
            Err(ImportError::Fault(e)) => show(format!("a fault: {e}")),
            Err(_) => {}
        }
        // Far beyond what any of these takes: a hang.
        assert!(begin.elapsed() < Duration::from_secs(20), "IMPASTO_DAMAGE_SEED={seed} took {:?}", begin.elapsed());
    }
    println!("{tried} modules, {made} of them optimised");
    assert!(made > 0 && (made as u64) < tried, "{made} of {tried}");
}
