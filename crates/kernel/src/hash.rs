//! A fast hash for keys of a few small numbers. Maps with it are never exposed to keys that someone could choose to collide at a cost beyond
//! compile time of their own kernel.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};

/// A map by small numbers.
pub type Map<K, V> = HashMap<K, V, BuildHasherDefault<MixHasher>>;

/// A set of small numbers.
pub type Set<K> = HashSet<K, BuildHasherDefault<MixHasher>>;

/// The hasher of these maps and sets.
#[derive(Clone, Copy, Debug, Default)]
pub struct MixHasher(u64);

impl MixHasher {
    fn add(&mut self, x: u64) {
        // An odd multiplier spreads every bit upwards; the fold brings the upper half back down. The turn keeps equal neighbours apart.
        let wide = u128::from(self.0.rotate_left(23) ^ x) * 0x9E37_79B9_7F4A_7C15;
        self.0 = (wide as u64) ^ (wide >> 64) as u64;
    }
}

impl Hasher for MixHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.add(u64::from_le_bytes(word) ^ (chunk.len() as u64) << 56);
        }
    }

    fn write_u8(&mut self, x: u8) {
        self.add(x.into());
    }

    fn write_u32(&mut self, x: u32) {
        self.add(x.into());
    }

    fn write_u64(&mut self, x: u64) {
        self.add(x);
    }

    fn write_usize(&mut self, x: usize) {
        self.add(x as u64);
    }

    fn write_isize(&mut self, x: isize) {
        self.add(x as u64);
    }
}

/// 128 bits that stand for bytes: for files, where a collision would be another file's content.
pub fn digest(bytes: &[u8]) -> u128 {
    twox_hash::XxHash3_128::oneshot(bytes)
}
