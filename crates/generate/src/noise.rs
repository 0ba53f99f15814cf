//! Normal random numbers as torch draws them, on a CPU and on CUDA.

use serde::{Deserialize, Serialize};

use crate::bits;

/// Whose noise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NoiseKind {
    /// torch on CUDA, as webui has it: Philox 4x32-10, one block of the counter for each number.
    #[default]
    Cuda,
    /// torch on a CPU, as ComfyUI has it: Mersenne Twister.
    Cpu,
}

/// A source of normal random numbers. Its state is what it takes to go on in another process: a few bytes, or the 2.5 KB of a Twister.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Noise(Source);

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Source {
    Philox { seed: u64, draws: u32 },
    Twister(Box<Twister>),
}

impl Noise {
    /// The noise of a seed.
    pub fn new(kind: NoiseKind, seed: u64) -> Noise {
        Noise(match kind {
            NoiseKind::Cuda => Source::Philox { seed, draws: 0 },
            NoiseKind::Cpu => Source::Twister(Box::new(Twister::new(seed))),
        })
    }

    /// The next `n` numbers: what one call of `torch.randn` for a tensor of `n` elements gives, in the order of its memory.
    pub fn draw(&mut self, n: usize) -> Vec<f32> {
        match &mut self.0 {
            Source::Philox { seed, draws } => {
                let numbers = (0..n as u32).map(|i| philox_normal(philox([*draws, 0, i, 0], *seed))).collect();
                *draws = draws.wrapping_add(1);
                numbers
            }
            Source::Twister(twister) => twister.normals(n),
        }
    }
}

/// Ten rounds of Philox 4x32.
fn philox(mut counter: [u32; 4], seed: u64) -> [u32; 4] {
    let mut key = [seed as u32, (seed >> 32) as u32];
    for _ in 0..10 {
        let (a, b) = (u64::from(counter[0]) * 0xd251_1f53, u64::from(counter[2]) * 0xcd9e_8d57);
        let high = |x: u64| (x >> 32) as u32;
        counter = [high(b) ^ counter[1] ^ key[0], b as u32, high(a) ^ counter[3] ^ key[1], a as u32];
        key = [key[0].wrapping_add(0x9e37_79b9), key[1].wrapping_add(0xbb67_ae85)];
    }
    counter
}

/// Box and Muller on two of the four numbers; the sine is what CUDA hands out first.
///
/// CUDA rounds the radius' argument and the angle to f32, and its numbers are met best if its fast sine is taken to cut the angle off to
/// an f32 fraction of a turn: within 8e-7 on an H200, where exact arithmetic is up to 1.1e-6 off. What is left is, as far as we can
/// tell, the processor's own approximation of the sine.
fn philox_normal([x, y, ..]: [u32; 4]) -> f32 {
    const UNIT: f32 = 1.0 / 4_294_967_296.0;
    const ANGLE: f32 = UNIT * std::f32::consts::TAU;
    let u = (x as f32).mul_add(UNIT, UNIT / 2.0);
    let v = (y as f32).mul_add(ANGLE, ANGLE / 2.0);
    let exact = f64::from(v) * f64::from(1.0 / std::f32::consts::TAU);
    let turn = match exact as f32 {
        rounded if f64::from(rounded) > exact => rounded.next_down(),
        rounded => rounded,
    };
    ((-2.0 * f64::from(u).ln()).sqrt() * (f64::from(turn) * std::f64::consts::TAU).sin()) as f32
}

/// MT19937. Its words are stored, not a seed and a count: a count that someone made up could keep us busy for years.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(try_from = "StoredTwister", into = "StoredTwister")]
struct Twister {
    state: [u32; 624],
    at: usize,
    /// The second number of a pair, which a later call hands out.
    kept: Option<f64>,
}

#[derive(Serialize, Deserialize)]
struct StoredTwister {
    words: String,
    at: usize,
    /// By its bits.
    kept: Option<u64>,
}

impl From<Twister> for StoredTwister {
    fn from(twister: Twister) -> StoredTwister {
        let words = bits::to_hex(twister.state.into_iter());
        StoredTwister { words, at: twister.at, kept: twister.kept.map(f64::to_bits) }
    }
}

impl TryFrom<StoredTwister> for Twister {
    type Error = String;

    fn try_from(stored: StoredTwister) -> Result<Twister, String> {
        let words = bits::from_hex(&stored.words)?;
        let state =
            words.try_into().map_err(|words: Vec<u32>| format!("a Twister has 624 words, not {}", words.len()))?;
        if stored.at > 624 {
            return Err(format!("a Twister's next word is one of 624, not number {}", stored.at));
        }
        Ok(Twister { state, at: stored.at, kept: stored.kept.map(f64::from_bits) })
    }
}

impl Twister {
    fn new(seed: u64) -> Twister {
        let mut state = [0; 624];
        state[0] = seed as u32;
        for i in 1..624u32 {
            let last: u32 = state[i as usize - 1];
            state[i as usize] = 1_812_433_253_u32.wrapping_mul(last ^ (last >> 30)).wrapping_add(i);
        }
        Twister { state, at: 624, kept: None }
    }

    fn next(&mut self) -> u32 {
        if self.at == 624 {
            for i in 0..624 {
                let y = (self.state[i] & 0x8000_0000) | (self.state[(i + 1) % 624] & 0x7fff_ffff);
                let odd = if y & 1 == 1 { 0x9908_b0df } else { 0 };
                self.state[i] = self.state[(i + 397) % 624] ^ (y >> 1) ^ odd;
            }
            self.at = 0;
        }
        let mut y = self.state[self.at];
        self.at += 1;
        y ^= y >> 11;
        y ^= (y << 7) & 0x9d2c_5680;
        y ^= (y << 15) & 0xefc6_0000;
        y ^ (y >> 18)
    }

    /// A float with 24 random bits.
    fn uniform(&mut self) -> f32 {
        (self.next() & 0x00ff_ffff) as f32 / 16_777_216.0
    }

    /// A double with 53 random bits.
    fn uniform_double(&mut self) -> f64 {
        let (high, low) = (self.next(), self.next());
        let bits = (u64::from(high) << 32 | u64::from(low)) & ((1 << 53) - 1);
        bits as f64 / (1u64 << 53) as f64
    }

    /// torch fills large tensors in groups of 16 and small ones number by number.
    fn normals(&mut self, n: usize) -> Vec<f32> {
        if n < 16 {
            return (0..n).map(|_| self.normal()).collect();
        }
        let mut numbers: Vec<f32> = (0..n).map(|_| self.uniform()).collect();
        let whole = n / 16 * 16;
        numbers[..whole].chunks_exact_mut(16).for_each(pairs);
        if whole < n {
            // The last group begins earlier and is drawn anew.
            let last = &mut numbers[n - 16..];
            last.iter_mut().for_each(|x| *x = self.uniform());
            pairs(last);
        }
        numbers
    }

    fn normal(&mut self) -> f32 {
        if let Some(kept) = self.kept.take() {
            return kept as f32;
        }
        let (u, v) = (self.uniform_double(), self.uniform_double());
        let (radius, angle) = ((-2.0 * (-v).ln_1p()).sqrt(), std::f64::consts::TAU * u);
        self.kept = Some(radius * angle.sin());
        (radius * angle.cos()) as f32
    }
}

/// Box and Muller on 16 numbers: the first eight are radii, the others angles.
fn pairs(group: &mut [f32]) {
    for j in 0..8 {
        let (u, v) = (1.0 - group[j], group[j + 8]);
        let (radius, angle) = ((-2.0 * u.ln()).sqrt(), std::f32::consts::TAU * v);
        group[j] = radius * angle.cos();
        group[j + 8] = radius * angle.sin();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn philox_gives_its_published_numbers() {
        assert_eq!(philox([0; 4], 0), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(philox([u32::MAX; 4], u64::MAX), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
        let pi = [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344];
        assert_eq!(philox(pi, 0x299f_31d0_a409_3822), [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]);
    }

    #[test]
    fn the_twister_gives_its_published_numbers() {
        let mut twister = Twister::new(5489);
        let numbers: Vec<u32> = (0..10_000).map(|_| twister.next()).collect();
        assert_eq!(numbers[..3], [3_499_211_612, 581_869_302, 3_890_346_734]);
        assert_eq!(numbers[9_999], 4_123_659_995);
    }

    #[test]
    fn noise_is_normal_and_depends_on_seed_and_draw() {
        for kind in [NoiseKind::Cuda, NoiseKind::Cpu] {
            let mut noise = Noise::new(kind, 7);
            let (first, second) = (noise.draw(100_000), noise.draw(100_000));
            assert_ne!(first, second);
            assert_eq!(first, Noise::new(kind, 7).draw(100_000));
            assert_ne!(first, Noise::new(kind, 8).draw(100_000));
            let mean = first.iter().sum::<f32>() / 1e5;
            let variance = first.iter().map(|x| (x - mean) * (x - mean)).sum::<f32>() / 1e5;
            assert!(mean.abs() < 0.02 && (variance - 1.0).abs() < 0.03, "{kind:?}: {mean} {variance}");
        }
    }
}
