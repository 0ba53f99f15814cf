//! Blocks, as numbers.

use std::array::from_fn;

use impasto_graph::{DType, Storage};

use super::float::{bf16_to_f32, e4m3_to_f32, e5m2_to_f32, f16_to_f32};
use super::k_quants::{nibble_scales, three_bit_scales};
use super::{FOUR_BIT_FLOATS, UNEVEN_STEPS, check_lengths};

/// Fills `out` with the numbers of whole blocks, equal in every bit to those of the reference implementation. It becomes part of its caller, and so of the
/// instructions that the caller is compiled for: a function for AVX-512 decodes with AVX-512.
///
/// ```
/// use impasto_graph::Storage;
/// use impasto_weights::{decode, encode};
/// let (mut bytes, mut numbers) = ([0; 34], [0.0; 32]);
/// encode(Storage::Q8_0, &[0.5; 32], &mut bytes);
/// decode(Storage::Q8_0, &bytes, &mut numbers);
/// assert!((numbers[0] - 0.5).abs() < 1e-3);
/// ```
///
/// # Panics
/// If the bytes are not those of `out.len()` numbers, or that is no number of whole blocks.
#[inline(always)]
pub fn decode(storage: Storage, bytes: &[u8], out: &mut [f32]) {
    check_lengths(storage, bytes.len(), out.len());
    match storage {
        Storage::Dense(DType::F32) => each(bytes, out, |b: &[u8; 4], o| *o = [f32::from_le_bytes(*b)]),
        Storage::Dense(DType::F16) => each(bytes, out, |b: &[u8; 2], o| *o = [f16_to_f32(u16::from_le_bytes(*b))]),
        Storage::Dense(DType::BF16) => each(bytes, out, |b: &[u8; 2], o| *o = [bf16_to_f32(u16::from_le_bytes(*b))]),
        Storage::Dense(DType::I32) => each(bytes, out, |b: &[u8; 4], o| *o = [i32::from_le_bytes(*b) as f32]),
        Storage::Q4_0 => each(bytes, out, q4_0),
        Storage::Q4_1 => each(bytes, out, q4_1),
        Storage::Q5_0 => each(bytes, out, q5_0),
        Storage::Q5_1 => each(bytes, out, q5_1),
        Storage::Q8_0 => each(bytes, out, q8_0),
        Storage::Q2_K => each(bytes, out, q2_k),
        Storage::Q3_K => each(bytes, out, q3_k),
        Storage::Q4_K => each(bytes, out, q4_k),
        Storage::Q5_K => each(bytes, out, q5_k),
        Storage::Q6_K => each(bytes, out, q6_k),
        Storage::IQ4_NL => each(bytes, out, iq4_nl),
        Storage::IQ4_XS => each(bytes, out, iq4_xs),
        Storage::MXFP4 => each(bytes, out, mxfp4),
        Storage::F8_E4M3 => each(bytes, out, |b: &[u8; 1], o| *o = [e4m3_to_f32(b[0])]),
        Storage::F8_E5M2 => each(bytes, out, |b: &[u8; 1], o| *o = [e5m2_to_f32(b[0])]),
    }
}

/// Fills `out` with numbers of blocks from element `first` on, which may be inside a block, as may the last one.
///
/// # Panics
/// If the bytes hold fewer numbers.
pub fn decode_from(storage: Storage, bytes: &[u8], first: usize, out: &mut [f32]) {
    let (elements, size) = (storage.block_elements() as usize, storage.block_bytes() as usize);
    let mut block = [0.0; 256];
    let (mut at, mut out) = (first, out);
    let mut take = |out: &mut [f32], at: usize| {
        let block = &mut block[..elements];
        decode(storage, &bytes[at / elements * size..][..size], block);
        out.copy_from_slice(&block[at % elements..][..out.len()]);
    };
    let head = (at.next_multiple_of(elements) - at).min(out.len());
    if head > 0 {
        take(out.split_off_mut(..head).unwrap_or_default(), at);
        at += head;
    }
    let whole = out.len() / elements;
    let middle = out.split_off_mut(..whole * elements).unwrap_or_default();
    decode(storage, &bytes[at / elements * size..][..whole * size], middle);
    if !out.is_empty() {
        take(out, at + whole * elements);
    }
}

/// Multiplies numbers, the first of which is element `first` of a tensor, by the scales of their rows of `row` elements.
///
/// # Panics
/// If a number's row has no scale.
pub fn scale_rows(numbers: &mut [f32], first: usize, row: usize, scales: &[f32]) {
    let (mut at, mut numbers) = (first, numbers);
    while !numbers.is_empty() {
        let count = (row - at % row).min(numbers.len());
        let (of_row, rest) = numbers.split_at_mut(count);
        of_row.iter_mut().for_each(|x| *x *= scales[at / row]);
        (at, numbers) = (at + count, rest);
    }
}

#[inline(always)]
fn each<const BYTES: usize, const ELEMENTS: usize>(
    bytes: &[u8],
    out: &mut [f32],
    decode: impl Fn(&[u8; BYTES], &mut [f32; ELEMENTS]),
) {
    let (blocks, out) = (bytes.as_chunks::<BYTES>().0, out.as_chunks_mut::<ELEMENTS>().0);
    blocks.iter().zip(out).for_each(|(block, out)| decode(block, out));
}

/// The half-precision float at a place of a block.
#[inline(always)]
fn half_at(block: &[u8], at: usize) -> f32 {
    f16_to_f32(u16::from_le_bytes([block[at], block[at + 1]]))
}

/// So many bytes of a block, from a place on.
#[inline(always)]
fn part<const N: usize>(block: &[u8], at: usize) -> &[u8; N] {
    block[at..].first_chunk().expect("a block's parts lie inside it")
}

/// Sixteen bytes as 32 numbers of four bits: all low ones, then all high ones.
#[inline(always)]
fn nibbles(bytes: &[u8; 16]) -> [u8; 32] {
    from_fn(|i| if i < 16 { bytes[i] & 15 } else { bytes[i - 16] >> 4 })
}

/// Five-bit numbers from their lower four bits and a word of fifth bits.
#[inline(always)]
fn five_bits(fifth: &[u8; 4], lower: &[u8; 16]) -> [u8; 32] {
    let (fifth, lower) = (u32::from_le_bytes(*fifth), nibbles(lower));
    from_fn(|i| lower[i] | ((fifth >> i) as u8 & 1) << 4)
}

#[inline(always)]
fn q4_0(block: &[u8; 18], out: &mut [f32; 32]) {
    let (d, q) = (half_at(block, 0), nibbles(part(block, 2)));
    *out = q.map(|q| d * f32::from(q as i8 - 8));
}

#[inline(always)]
fn q4_1(block: &[u8; 20], out: &mut [f32; 32]) {
    let (d, m, q) = (half_at(block, 0), half_at(block, 2), nibbles(part(block, 4)));
    *out = q.map(|q| d * f32::from(q) + m);
}

#[inline(always)]
fn q5_0(block: &[u8; 22], out: &mut [f32; 32]) {
    let (d, q) = (half_at(block, 0), five_bits(part(block, 2), part(block, 6)));
    *out = q.map(|q| d * f32::from(q as i8 - 16));
}

#[inline(always)]
fn q5_1(block: &[u8; 24], out: &mut [f32; 32]) {
    let (d, m, q) = (half_at(block, 0), half_at(block, 2), five_bits(part(block, 4), part(block, 8)));
    *out = q.map(|q| d * f32::from(q) + m);
}

#[inline(always)]
fn q8_0(block: &[u8; 34], out: &mut [f32; 32]) {
    let (d, q) = (half_at(block, 0), part::<32>(block, 2));
    *out = q.map(|q| f32::from(q as i8) * d);
}

#[inline(always)]
fn iq4_nl(block: &[u8; 18], out: &mut [f32; 32]) {
    let (d, q) = (half_at(block, 0), nibbles(part(block, 2)));
    *out = q.map(|q| d * UNEVEN_STEPS[q as usize & 15]);
}

#[inline(always)]
fn mxfp4(block: &[u8; 17], out: &mut [f32; 32]) {
    let (d, q) = (half_power_of_two(block[0]), nibbles(part(block, 1)));
    *out = q.map(|q| d * FOUR_BIT_FLOATS[q as usize & 15]);
}

/// Half of two to the power of `exponent - 127`: the numbers of four bits are doubled.
pub(super) const fn half_power_of_two(exponent: u8) -> f32 {
    f32::from_bits(if exponent < 2 { 0x0020_0000 << exponent } else { (exponent as u32 - 1) << 23 })
}

#[inline(always)]
fn q2_k(block: &[u8; 84], out: &mut [f32; 256]) {
    let (scales, q) = (part::<16>(block, 0), part::<64>(block, 16));
    let (d, dmin) = (half_at(block, 80), half_at(block, 82));
    for (i, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let (scale, min) = (d * f32::from(scales[i] & 15), dmin * f32::from(scales[i] >> 4));
        let q = part::<16>(q, i / 8 * 32 + i % 2 * 16);
        let shift = i % 8 / 2 * 2;
        *out = q.map(|q| scale * f32::from((q >> shift) & 3) - min);
    }
}

#[inline(always)]
fn q3_k(block: &[u8; 110], out: &mut [f32; 256]) {
    let (high, q) = (part::<32>(block, 0), part::<64>(block, 32));
    let (scales, d) = (three_bit_scales(part(block, 96)), half_at(block, 108));
    for (i, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let scale = d * f32::from(scales[i]);
        let (q, high) = (part::<16>(q, i / 8 * 32 + i % 2 * 16), part::<16>(high, i % 2 * 16));
        let (shift, bit) = (i % 8 / 2 * 2, i / 2);
        *out = from_fn(|j| {
            let q = (q[j] >> shift) & 3 | ((high[j] >> bit) & 1) << 2;
            scale * f32::from(q as i8 - 4)
        });
    }
}

#[inline(always)]
fn q4_k(block: &[u8; 144], out: &mut [f32; 256]) {
    let (d, dmin) = (half_at(block, 0), half_at(block, 2));
    let (scales, mins) = nibble_scales(part(block, 4));
    for (i, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (scale, min) = (d * f32::from(scales[i]), dmin * f32::from(mins[i]));
        let (q, shift) = (part::<32>(block, 16 + i / 2 * 32), i % 2 * 4);
        *out = q.map(|q| scale * f32::from((q >> shift) & 15) - min);
    }
}

#[inline(always)]
fn q5_k(block: &[u8; 176], out: &mut [f32; 256]) {
    let (d, dmin) = (half_at(block, 0), half_at(block, 2));
    let (scales, mins) = nibble_scales(part(block, 4));
    let fifth = part::<32>(block, 16);
    for (i, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (scale, min) = (d * f32::from(scales[i]), dmin * f32::from(mins[i]));
        let (q, shift) = (part::<32>(block, 48 + i / 2 * 32), i % 2 * 4);
        *out = from_fn(|j| scale * f32::from((q[j] >> shift) & 15 | ((fifth[j] >> i) & 1) << 4) - min);
    }
}

#[inline(always)]
fn q6_k(block: &[u8; 210], out: &mut [f32; 256]) {
    let (high, scales, d) = (part::<64>(block, 128), part::<16>(block, 192), half_at(block, 208));
    for (i, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let scale = d * f32::from(scales[i] as i8);
        // A half of 128 is four quarters of 32: low nibbles of 64 bytes, then their high nibbles.
        let (half, quarter, within) = (i / 8, i % 8 / 2, i % 2 * 16);
        let low = part::<16>(block, half * 64 + quarter % 2 * 32 + within);
        let high = part::<16>(high, half * 32 + within);
        let (low_shift, high_shift) = (quarter / 2 * 4, quarter * 2);
        *out = from_fn(|j| {
            let q = (low[j] >> low_shift) & 15 | ((high[j] >> high_shift) & 3) << 4;
            scale * f32::from(q as i8 - 32)
        });
    }
}

#[inline(always)]
fn iq4_xs(block: &[u8; 136], out: &mut [f32; 256]) {
    let (d, high, low) = (half_at(block, 0), u16::from_le_bytes([block[2], block[3]]), part::<4>(block, 4));
    for (i, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let scale = (low[i / 2] >> (i % 2 * 4)) & 15 | ((high >> (2 * i)) as u8 & 3) << 4;
        let scale = d * f32::from(scale as i8 - 32);
        let q = nibbles(part(block, 8 + 16 * i));
        *out = q.map(|q| scale * UNEVEN_STEPS[q as usize & 15]);
    }
}
