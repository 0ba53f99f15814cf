//! Seeded damage, on stable Rust: what a fuzzer does without coverage. Tests of several crates use it.
//!
//! `IMPASTO_DAMAGE_CASES` lengthens a run, `IMPASTO_DAMAGE_SEED` repeats one: a failure prints the seed of its case, which is then the first.

use std::time::Instant;

/// A small generator (xorshift64*), so that a seed gives the same case with every version of everything.
pub struct Damage(u64);

impl Damage {
    /// Calls `case` with fresh damage so many times; returns the number of cases.
    pub fn run(cases: u64, mut case: impl FnMut(&mut Damage)) -> u64 {
        let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
        let clock = || std::time::UNIX_EPOCH.elapsed().map_or(0, |now| now.as_nanos() as u64);
        let first = number("IMPASTO_DAMAGE_SEED").unwrap_or_else(clock);
        let cases = number("IMPASTO_DAMAGE_CASES").unwrap_or(cases);
        println!("first seed {first}");
        let begin = Instant::now();
        for i in 0..cases {
            let seed = first.wrapping_add(i);
            let _said = SaySeed(seed);
            // Neighbouring seeds must not give neighbouring numbers; zero is the one state that stays.
            let mut damage = Damage(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
            for _ in 0..4 {
                damage.below(2);
            }
            case(&mut damage);
        }
        println!("{cases} cases in {:?}", begin.elapsed());
        cases
    }

    /// A number below `n`, or 0.
    pub fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % n.max(1)
    }

    /// One of these.
    pub fn of<'a, T: ?Sized>(&mut self, these: &[&'a T]) -> &'a T {
        these[self.below(these.len())]
    }

    /// Change one place: cut, put in, overwrite, repeat or take out. `words` are put in whole.
    pub fn bytes(&mut self, bytes: &mut Vec<u8>, words: &[&[u8]]) {
        let at = self.below(bytes.len() + 1);
        let to = (at + self.below(16)).min(bytes.len());
        let end = (at + 1).min(bytes.len());
        match self.below(8) {
            0 => bytes.truncate(at),
            1 | 2 => drop(bytes.splice(at..at, self.of(words).iter().copied())),
            3 => drop(bytes.splice(at..to, self.of(words).iter().copied())),
            4 => bytes[at..end].fill(self.below(256) as u8),
            5 => bytes[at..end].iter_mut().for_each(|b| *b ^= 1 << self.below(8)),
            6 => drop(bytes.splice(at..at, bytes[at..to].to_vec().repeat(1 + self.below(4)))),
            _ => drop(bytes.drain(at..to)),
        }
    }
}

/// Says the seed of the case in which a test fails.
struct SaySeed(u64);

impl Drop for SaySeed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("repeat with IMPASTO_DAMAGE_SEED={}", self.0);
        }
    }
}
