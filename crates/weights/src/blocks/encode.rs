//! Numbers, as blocks.

use std::array::from_fn;

use impasto_graph::{DType, Storage};

use super::decode::half_power_of_two;
use super::float::{f32_to_bf16, f32_to_e4m3, f32_to_e5m2, f32_to_f16};
use super::k_quants::{q2_k, q3_k, q4_k, q5_k, q6_k};
use super::search::{extreme, inverse, iq4_nl, iq4_xs};
use super::{FOUR_BIT_FLOATS, check_lengths};

/// Fills `out` with the numbers as whole blocks. Dense floats, the types whose name ends in `_0` or `_1` and `MXFP4` have the bytes of the reference
/// implementation, eight-bit floats those of torch's casts; the scales of the others are searched for. A block of those with a number that is not
/// finite decodes to NaN.
///
/// # Panics
/// If the bytes are not those of so many numbers, or these are no whole blocks.
pub fn encode(storage: Storage, numbers: &[f32], out: &mut [u8]) {
    check_lengths(storage, out.len(), numbers.len());
    match storage {
        Storage::Dense(DType::F32) => each(numbers, out, |[x]: &[f32; 1]| x.to_le_bytes()),
        Storage::Dense(DType::F16) => each(numbers, out, |[x]: &[f32; 1]| f32_to_f16(*x).to_le_bytes()),
        Storage::Dense(DType::BF16) => each(numbers, out, |[x]: &[f32; 1]| f32_to_bf16(*x).to_le_bytes()),
        Storage::Dense(DType::I32) => each(numbers, out, |[x]: &[f32; 1]| (*x as i32).to_le_bytes()),
        Storage::Q4_0 => each(numbers, out, q4_0),
        Storage::Q4_1 => each(numbers, out, q4_1),
        Storage::Q5_0 => each(numbers, out, q5_0),
        Storage::Q5_1 => each(numbers, out, q5_1),
        Storage::Q8_0 => each(numbers, out, q8_0),
        Storage::Q2_K => each(numbers, out, q2_k),
        Storage::Q3_K => each(numbers, out, q3_k),
        Storage::Q4_K => each(numbers, out, q4_k),
        Storage::Q5_K => each(numbers, out, q5_k),
        Storage::Q6_K => each(numbers, out, q6_k),
        Storage::IQ4_NL => each(numbers, out, iq4_nl),
        Storage::IQ4_XS => each(numbers, out, iq4_xs),
        Storage::MXFP4 => each(numbers, out, mxfp4),
        Storage::F8_E4M3 => each(numbers, out, |[x]: &[f32; 1]| [f32_to_e4m3(*x)]),
        Storage::F8_E5M2 => each(numbers, out, |[x]: &[f32; 1]| [f32_to_e5m2(*x)]),
    }
}

fn each<const ELEMENTS: usize, const BYTES: usize>(
    numbers: &[f32],
    out: &mut [u8],
    encode: impl Fn(&[f32; ELEMENTS]) -> [u8; BYTES],
) {
    let (numbers, blocks) = (numbers.as_chunks::<ELEMENTS>().0, out.as_chunks_mut::<BYTES>().0);
    numbers.iter().zip(blocks).for_each(|(numbers, block)| *block = encode(numbers));
}

/// Puts 32 four-bit numbers into 16 bytes: the first half into the low nibbles.
pub(super) fn put_nibbles(out: &mut [u8], q: &[u8; 32]) {
    out.iter_mut().enumerate().for_each(|(i, out)| *out = q[i] & 15 | q[i + 16] << 4);
}

pub(super) fn put_half(out: &mut [u8], at: usize, x: f32) {
    out[at..at + 2].copy_from_slice(&f32_to_f16(x).to_le_bytes());
}

/// Puts 32 five-bit numbers into a word of fifth bits and 16 bytes of the rest.
fn put_five_bits(out: &mut [u8], q: &[u8; 32]) {
    let fifth = q.iter().enumerate().fold(0u32, |word, (i, q)| word | u32::from(q >> 4) << i);
    out[..4].copy_from_slice(&fifth.to_le_bytes());
    put_nibbles(&mut out[4..20], q);
}

/// Levels of a block around zero: `offset` stands for zero, and the number of largest magnitude gets level 0.
fn around_zero(x: &[f32; 32], offset: f32) -> (f32, [u8; 32]) {
    let d = extreme(x) / -offset;
    let (inverse, most) = (inverse(d), (2.0 * offset) as u8 - 1);
    (d, x.map(|x| ((x * inverse + (offset + 0.5)) as u8).min(most)))
}

/// Levels of a block from its smallest to its largest number.
fn from_min(x: &[f32; 32], most: f32) -> (f32, f32, [u8; 32]) {
    let min = x.iter().copied().fold(f32::INFINITY, f32::min);
    let max = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let d = (max - min) / most;
    let inverse = inverse(d);
    (d, min, x.map(|x| (((x - min) * inverse + 0.5) as u8).min(most as u8)))
}

fn q4_0(x: &[f32; 32]) -> [u8; 18] {
    let (mut out, (d, q)) = ([0; 18], around_zero(x, 8.0));
    put_half(&mut out, 0, d);
    put_nibbles(&mut out[2..], &q);
    out
}

fn q4_1(x: &[f32; 32]) -> [u8; 20] {
    let (mut out, (d, min, q)) = ([0; 20], from_min(x, 15.0));
    put_half(&mut out, 0, d);
    put_half(&mut out, 2, min);
    put_nibbles(&mut out[4..], &q);
    out
}

fn q5_0(x: &[f32; 32]) -> [u8; 22] {
    let (mut out, (d, q)) = ([0; 22], around_zero(x, 16.0));
    put_half(&mut out, 0, d);
    put_five_bits(&mut out[2..], &q);
    out
}

fn q5_1(x: &[f32; 32]) -> [u8; 24] {
    let (mut out, (d, min, q)) = ([0; 24], from_min(x, 31.0));
    put_half(&mut out, 0, d);
    put_half(&mut out, 2, min);
    put_five_bits(&mut out[4..], &q);
    out
}

fn q8_0(x: &[f32; 32]) -> [u8; 34] {
    let d = x.iter().fold(0.0f32, |most, x| most.max(x.abs())) / 127.0;
    let (mut out, inverse) = ([0; 34], inverse(d));
    put_half(&mut out, 0, d);
    // Halves are rounded away from zero; `f32::round` is a call where the processor has no instruction for it.
    let q: [u8; 32] = from_fn(|i| {
        // The inverse of a subnormal scale is far off, or infinite.
        let x = (x[i] * inverse).clamp(-127.0, 127.0);
        let whole = x as i32;
        let rest = x - whole as f32;
        (whole + i32::from(rest >= 0.5) - i32::from(rest <= -0.5)) as i8 as u8
    });
    out[2..].copy_from_slice(&q);
    out
}

fn mxfp4(x: &[f32; 32]) -> [u8; 17] {
    let most = x.iter().fold(0.0f32, |most, x| most.max(x.abs()));
    // The exponent of the largest number becomes that of 4, the largest power of two among the numbers of four bits.
    let exponent = match most {
        0.0 => 0,
        _ => (most.log2().floor() - 2.0 + 127.0) as u8,
    };
    let (mut out, d) = ([0; 17], half_power_of_two(exponent));
    out[0] = exponent;
    let q = x.map(|x| {
        let error = |i: usize| (d * FOUR_BIT_FLOATS[i] - x).abs();
        (1..16).fold(0, |best, i| if error(i) < error(best) { i } else { best }) as u8
    });
    put_nibbles(&mut out[1..], &q);
    out
}
