//! Hashes and random numbers.

use impasto_kernel::prelude::*;

use super::{Case, Rng, ints, no_floats, no_ints, of};

#[kernel]
fn hash_bytes(x: &[u32], y: &mut [u32]) {
    let i = global_id(0);
    let mut h = 2166136261u32;
    let mut word = x[i];
    for _ in 0..4 {
        h = (h ^ word & 255) * 16777619;
        word >>= 8;
    }
    y[i] = h;
}

#[kernel_fn]
fn rotate(x: u32, by: u32) -> u32 {
    x << by | x >> (32 - by)
}

/// Murmur 3 of four words at a time.
#[kernel]
fn murmur(seed: u32, x: &[Vec4<u32>], y: &mut [u32]) {
    let i = global_id(0);
    let words = x[i];
    let mut h = seed;
    #[comptime]
    for c in 0..4u32 {
        h ^= rotate(words[c] * 0xCC9E2D51, 15) * 0x1B873593;
        h = rotate(h, 13) * 5 + 0xE6546B64;
    }
    h ^= 16;
    h = (h ^ h >> 16) * 0x85EBCA6B;
    h = (h ^ h >> 13) * 0xC2B2AE35;
    y[i] = h ^ h >> 16;
}

/// The high and the low word of a product.
#[kernel_fn]
fn wide_product(a: u32, b: u32) -> (u32, u32) {
    let p = a as u64 * b as u64;
    ((p >> 32) as u32, p as u32)
}

#[kernel_fn]
fn philox(counter: Vec4<u32>, key: Vec2<u32>) -> Vec4<u32> {
    let mut c = counter;
    let mut k = key;
    for _ in 0..10 {
        let (high0, low0) = wide_product(c.x, 0xD2511F53);
        let (high1, low1) = wide_product(c.z, 0xCD9E8D57);
        c = vec4(high1 ^ c.y ^ k.x, low1, high0 ^ c.w ^ k.y, low0);
        k = k + vec2(0x9E3779B9, 0xBB67AE85);
    }
    c
}

#[kernel]
fn random_bits(seed: u32, y: &mut [Vec4<u32>]) {
    let i = global_id(0);
    y[i] = philox(vec4(i, 0, 0, 0), vec2(seed, 7));
}

/// Normal numbers by Box and Muller, four of one counter.
#[kernel]
fn random_normal(seed: u32, y: &mut [Vec4<f32>]) {
    let i = global_id(0);
    let bits = philox(vec4(i, 1, 2, 3), vec2(seed, 0));
    let mut out = splat4(0.0);
    #[comptime]
    for half in 0..2u32 {
        // 24 bits, never 0.
        let u = ((bits[half * 2] >> 8) as f32 + 0.5) * 5.9604645e-8;
        let angle = (bits[half * 2 + 1] >> 8) as f32 * 3.7450704e-7;
        let radius = (-2.0 * u.log()).sqrt();
        out[half * 2] = radius * angle.cos();
        out[half * 2 + 1] = radius * angle.sin();
    }
    y[i] = out;
}

fn plain_philox(mut c: [u32; 4], mut k: [u32; 2]) -> [u32; 4] {
    for _ in 0..10 {
        let (p, q) = (u64::from(c[0]) * 0xD2511F53, u64::from(c[2]) * 0xCD9E8D57);
        c = [(q >> 32) as u32 ^ c[1] ^ k[0], q as u32, (p >> 32) as u32 ^ c[3] ^ k[1], p as u32];
        k = [k[0].wrapping_add(0x9E3779B9), k[1].wrapping_add(0xBB67AE85)];
    }
    c
}

pub(super) fn cases(rng: &mut Rng) -> Vec<Case> {
    let u = ints(rng, 256, 1 << 32);
    let hash = |x: &u32| x.to_le_bytes().iter().fold(2166136261u32, |h, &b| (h ^ u32::from(b)).wrapping_mul(16777619));
    let bytes = Case::new(hash_bytes(), [4, 1, 1], vec![of(&u), no_ints(256)], u.iter().map(hash));

    let mix = |words: &[u32]| {
        let mut h = 42u32;
        for w in words {
            h ^= w.wrapping_mul(0xCC9E2D51).rotate_left(15).wrapping_mul(0x1B873593);
            h = h.rotate_left(13).wrapping_mul(5).wrapping_add(0xE6546B64);
        }
        h ^= 16;
        h = (h ^ h >> 16).wrapping_mul(0x85EBCA6B);
        h = (h ^ h >> 13).wrapping_mul(0xC2B2AE35);
        h ^ h >> 16
    };
    let murmur = Case::new(murmur(), [1, 1, 1], vec![of(&u), no_ints(64)], u.chunks(4).map(mix)).scalars(&[42]);

    let seed = u[0];
    // The first of the known answers of Random123, so that the reference is not only our own.
    assert_eq!(plain_philox([0; 4], [0; 2]), [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]);
    let want = (0..64).flat_map(|i| plain_philox([i, 0, 0, 0], [seed, 7]));
    let bits = Case::new(random_bits(), [1, 1, 1], vec![no_ints(256)], want).scalars(&[seed]);

    let normal = |i: u32| {
        let bits = plain_philox([i, 1, 2, 3], [seed, 0]);
        let pair = |a: u32, b: u32| {
            let u = (f64::from(a >> 8) + 0.5) / 16777216.0;
            let (radius, angle) = ((-2.0 * u.ln()).sqrt(), f64::from(b >> 8) / 16777216.0 * std::f64::consts::TAU);
            [radius * angle.cos(), radius * angle.sin()]
        };
        [pair(bits[0], bits[1]), pair(bits[2], bits[3])].concat()
    };
    let normal = Case::new(random_normal(), [1, 1, 1], vec![no_floats(256)], (0..64).flat_map(normal));
    vec![bytes, murmur, bits, normal.scalars(&[seed]).within(1e-2)]
}
