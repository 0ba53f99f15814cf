//! Random numbers for tests. A run takes its seed from `IMPASTO_TEST_SEED`, or from the clock; a failure prints the
//! seed that repeats it.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

/// splitmix64: small, fast, and good enough to choose test cases.
#[derive(Clone)]
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A whole number from 0 to `n - 1`.
    pub fn below(&mut self, n: usize) -> usize {
        (self.bits() % n as u64) as usize
    }

    /// A whole number from `low` to `high`, both possible.
    pub fn between(&mut self, low: usize, high: usize) -> usize {
        low + self.below(high - low + 1)
    }

    pub fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    pub fn pick<T: Clone>(&mut self, list: &[T]) -> T {
        list[self.below(list.len())].clone()
    }

    /// A number between 0 and 1; neither is possible.
    pub fn unit(&mut self) -> f64 {
        ((self.bits() >> 12) as f64 + 0.5) / (1u64 << 52) as f64
    }

    /// A number of the normal distribution; never zero.
    pub fn normal(&mut self) -> f64 {
        let (r, angle) = ((-2.0 * self.unit().ln()).sqrt(), std::f64::consts::TAU * self.unit());
        match r * angle.cos() {
            0.0 => 1.0,
            x => x,
        }
    }
}

/// The seed of this run.
pub fn seed() -> u64 {
    static SEED: OnceLock<u64> = OnceLock::new();
    *SEED.get_or_init(|| match std::env::var("IMPASTO_TEST_SEED") {
        Ok(text) => text.parse().expect("IMPASTO_TEST_SEED is a whole number"),
        Err(_) => SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |d| d.as_millis() as u64),
    })
}

/// Run a test on `count` random cases. The case's number comes first, so that cases can grow with it: the first that
/// fails is then among the smallest.
pub fn cases(count: usize, mut case: impl FnMut(usize, &mut Rng)) {
    for i in 0..count {
        let mut rng = Rng::new(seed() ^ (i as u64).wrapping_mul(0xd134_2543_de82_ef95));
        let outcome = catch_unwind(AssertUnwindSafe(|| case(i, &mut rng)));
        if let Err(panic) = outcome {
            eprintln!("case {i} of {count} failed; IMPASTO_TEST_SEED={} repeats it", seed());
            resume_unwind(panic);
        }
    }
}
