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

/// 128 bits that stand for bytes: for files, where a collision would be another file's content. Two chains with multipliers and starts of their own.
pub fn digest(bytes: &[u8]) -> u128 {
    fn fold(state: u64, word: u64, multiplier: u64) -> u64 {
        let wide = u128::from(state ^ word).wrapping_mul(u128::from(multiplier));
        (wide as u64) ^ (wide >> 64) as u64 ^ state.rotate_left(23)
    }
    let (mut a, mut b) = (0x243F_6A88_85A3_08D3_u64, 0x1319_8A2E_0370_7344_u64);
    let mut add = |word: u64| {
        a = fold(a, word, 0x9E37_79B9_7F4A_7C15);
        b = fold(b, word.rotate_left(31), 0xD6E8_FEB8_6659_FD93);
    };
    for chunk in bytes.chunks(8) {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        add(u64::from_le_bytes(word));
    }
    add(bytes.len() as u64);
    add(0);
    u128::from(a) << 64 | u128::from(b)
}

#[cfg(test)]
mod tests {
    use super::digest;

    #[test]
    fn a_digest_tells_apart_what_differs_in_one_bit_or_in_length() {
        let mut seen = std::collections::HashSet::new();
        let mut bytes = vec![0u8; 300];
        assert!(seen.insert(digest(&bytes)));
        for bit in 0..2400 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            let d = digest(&bytes);
            // Each half alone, too: checksums are one of them.
            assert!(seen.insert(d) && seen.insert(u128::from(d as u64)), "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        for n in 0..300 {
            assert!(seen.insert(digest(&bytes[..n])), "length {n}");
        }
    }
}
