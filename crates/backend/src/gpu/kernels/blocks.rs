//! Weights in the blocks of their file, decoded before the product that reads them. Every block is read by bytes of words as the file has them: nothing
//! is rearranged on the way to the device, and any device can do it. The numbers are those of `impasto_weights::decode`.

use std::ops::Range;

use impasto_graph::{DType, Storage};
use impasto_kernel::prelude::*;
use impasto_kernel::{Buf, Builder, Val};

use super::vec4::To4;
use super::{F, LINE, U, element, scalar};

/// Elements that an invocation decodes, one after the other: they are of one block, and what they share is found once.
const EACH: u32 = 8;

/// Invocations that decode so many elements.
pub(crate) fn decoders(elements: u64) -> u64 {
    elements.div_ceil(EACH.into())
}

/// Rows of blocks as numbers, each times the scale of its row where rows have scales, so many bytes from the beginning of the blocks. Buffers: words,
/// result.
pub(crate) fn decode(
    storage: Storage,
    [rows, width]: [u32; 2],
    scales: Option<u32>,
    to: DType,
) -> Result<Kernel, KernelError> {
    // Eight-bit floats have rows of any length.
    let each = if width.is_multiple_of(EACH) { EACH } else { 1 };
    Builder::kernel("decode", [LINE, 1, 1], |k| {
        let words = k.buffer::<u32>("words");
        let out = To4::new(k, "out", to, each);
        let decoder = element(k, decoders((rows * width).into()) as u32);
        let (elements, bytes) = (storage.block_elements() as u32, storage.block_bytes() as u32);
        let first = decoder * EACH;
        for group in (0..EACH).step_by(each as usize) {
            let i = first + group;
            let numbers = || {
                let scale = scales.map(|at| words.load(i / width + at / 4).bits_as::<f32>());
                let block =
                    |n: u32| Block { k, words, start: if elements == 1 { i + n } else { i / elements * bytes } };
                let eight = (each == EACH).then(|| block(0).eight(storage, i % elements)).flatten();
                let number = |n: u32| {
                    let number = match &eight {
                        Some(eight) => eight[n as usize],
                        None => block(n).number(storage, if elements == 1 { k.lit(0) } else { i % elements + n }),
                    };
                    scale.map_or(number, |scale| number * scale)
                };
                for from in (0..each).step_by(4) {
                    let four = [0, 1, 2, 3].map(|n| if from + n < each { number(from + n) } else { k.lit(0f32) });
                    out.set(k, i + from, k.lit(each), four);
                }
            };
            match each {
                EACH => numbers(),
                _ => k.if_(i.lt(rows * width), numbers),
            }
        }
    })
}

/// Rows of a part of a table of blocks by number, as [`embedding`](super::lookup::embedding) has them. Buffers: words, scales of all rows where they
/// have them, numbers of rows, result.
pub(crate) fn embedding(
    storage: Storage,
    [rows, width, table_rows]: [u32; 3],
    part: Range<u32>,
    has_scales: bool,
    to: DType,
) -> Result<Kernel, KernelError> {
    Builder::kernel("embedding", [LINE, 1, 1], |k| {
        let words = k.buffer::<u32>("words");
        let scales = has_scales.then(|| k.buffer::<f32>("scales"));
        let ids = k.buffer::<i32>("ids");
        let out = k.stored_mut::<f32>("out", scalar(to));
        let i = element(k, rows * width);
        // Below zero it wraps to beyond any table.
        let id = ids.load(i / width).to::<u32>();
        k.if_(id.ge(part.start) & id.lt(part.end), || {
            let (elements, bytes) = (storage.block_elements() as u32, storage.block_bytes() as u32);
            let row = (id - part.start) * (width / elements * bytes);
            let block = Block { k, words, start: row + i % width / elements * bytes };
            let number = block.number(storage, i % width % elements);
            out.store(i, scales.map_or(number, |scales| number * scales.load(id)));
        });
        if part.start == 0 {
            k.if_(id.ge(table_rows), || out.store(i, f32::NAN));
        }
    })
}

/// A block that begins at a byte of some words.
#[derive(Clone, Copy)]
struct Block<'k> {
    k: &'k Builder,
    words: Buf<'k, u32>,
    start: U<'k>,
}

/// The steps of uneven four-bit numbers, and twice the four-bit floats, as signed bytes.
const UNEVEN_STEPS: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];
const FOUR_BIT_FLOATS: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

impl<'k> Block<'k> {
    /// Element `e` of it.
    fn number(self, storage: Storage, e: U<'k>) -> F<'k> {
        match storage {
            Storage::Dense(_) => unreachable!("dense numbers are in no blocks"),
            Storage::Q4_0 => self.half(0) * less(self.nibble(2, e % 16u32, e / 16u32), 8),
            Storage::Q4_1 => self.half(0) * float(self.nibble(4, e % 16u32, e / 16u32)) + self.half(2),
            Storage::Q5_0 => self.half(0) * less(self.five_bits(2, 6, e), 16),
            Storage::Q5_1 => self.half(0) * float(self.five_bits(4, 8, e)) + self.half(2),
            Storage::Q8_0 => self.half(0) * signed(self.byte(e + 2u32)),
            Storage::IQ4_NL => self.half(0) * self.entry(UNEVEN_STEPS, self.nibble(2, e % 16u32, e / 16u32)),
            Storage::MXFP4 => self.power() * self.entry(FOUR_BIT_FLOATS, self.nibble(1, e % 16u32, e / 16u32)),
            Storage::Q2_K => {
                let (scales, q) = (self.byte(e / 16u32), self.two_bits(16, e));
                self.half(80) * float(scales & 15u32) * float(q) - self.half(82) * float(scales >> 4u32)
            }
            Storage::Q3_K => {
                let (s, quarter) = (e / 16u32, e / 32u32);
                let low = (self.byte(s % 8u32 + 96u32) >> (s / 8u32 * 4u32)) & 15u32;
                let high = (self.byte(s % 4u32 + 104u32) >> (s / 4u32 * 2u32)) & 3u32;
                let third = (self.byte(e % 32u32) >> quarter) & 1u32;
                let q = self.two_bits(32, e) + third * 4u32;
                self.half(108) * less(low | (high << 4u32), 32) * less(q, 4)
            }
            Storage::Q4_K => self.with_minimum(self.nibble(16, e / 64u32 * 32u32 + e % 32u32, e / 32u32 % 2u32), e),
            Storage::Q5_K => {
                let fifth = (self.byte(e % 32u32 + 16u32) >> (e / 32u32)) & 1u32;
                let lower = self.nibble(48, e / 64u32 * 32u32 + e % 32u32, e / 32u32 % 2u32);
                self.with_minimum(lower | (fifth << 4u32), e)
            }
            Storage::Q6_K => {
                let (half, quarter, l) = (e / 128u32, e / 32u32 % 4u32, e % 32u32);
                let lower = self.nibble(0, half * 64u32 + quarter % 2u32 * 32u32 + l, quarter / 2u32);
                let upper = (self.byte(half * 32u32 + l + 128u32) >> (quarter * 2u32)) & 3u32;
                let scale = signed(self.byte(half * 8u32 + quarter * 2u32 + l / 16u32 + 192u32));
                self.half(208) * scale * less(lower | (upper << 4u32), 32)
            }
            Storage::IQ4_XS => {
                let group = e / 32u32;
                let low = (self.byte(group / 2u32 + 4u32) >> (group % 2u32 * 4u32)) & 15u32;
                let high = (self.byte(group / 4u32 + 2u32) >> (group % 4u32 * 2u32)) & 3u32;
                let q = self.nibble(8, group * 16u32 + e % 16u32, e / 16u32 % 2u32);
                self.half(0) * less(low | (high << 4u32), 32) * self.entry(UNEVEN_STEPS, q)
            }
            Storage::F8_E4M3 => {
                let (x, k) = (self.byte(self.k.lit(0u32)), self.k);
                let (exponent, mantissa) = ((x >> 3u32) & 15u32, x & 7u32);
                let normal = (((exponent + 120u32) << 23u32) | (mantissa << 20u32)).bits_as::<f32>();
                let small = float(mantissa) * (1.0 / 512.0);
                let number = exponent.eq(0).select(small, normal);
                let number = (x & 127u32).eq(127).select(k.lit(f32::NAN), number);
                (x & 128u32).ne(0).select(-number, number)
            }
            Storage::F8_E5M2 => wide(self.byte(self.k.lit(0u32)) << 8u32),
        }
    }

    /// Eight elements from a multiple of eight on, for the commonest blocks, whose bytes are read as words.
    fn eight(self, storage: Storage, e: U<'k>) -> Option<[F<'k>; 8]> {
        let byte = |words: [U<'k>; 2], n: usize| (words[n / 4] >> (n as u32 % 4 * 8)) & 255u32;
        let numbers = [0, 1, 2, 3, 4, 5, 6, 7];
        let scale = || self.half(0);
        match storage {
            Storage::Q8_0 => {
                let (scale, words) = (scale(), [0u32, 4].map(|at| self.word(e + (2 + at))));
                Some(numbers.map(|n| scale * signed(byte(words, n))))
            }
            Storage::Q4_0 => {
                let (scale, words) =
                    (scale(), [0u32, 4].map(|at| self.word(e % 16u32 + (2 + at)) >> (e / 16u32 * 4u32)));
                Some(numbers.map(|n| scale * less(byte(words, n) & 15u32, 8)))
            }
            _ => None,
        }
    }

    /// Four bytes from an even byte of a block that begins at an even byte.
    fn word(self, at: U<'k>) -> U<'k> {
        let at = self.start + at;
        let (low, next) = (self.words.load(at / 4u32), (at / 4u32 + 1u32).min(self.words.len() - 1u32));
        let across = (low >> 16u32) | (self.words.load(next) << 16u32);
        (at & 2u32).ne(0).select(across, low)
    }

    /// A byte of the block.
    fn byte(self, at: U<'k>) -> U<'k> {
        let at = self.start + at;
        (self.words.load(at / 4u32) >> (at % 4u32 * 8u32)) & 255u32
    }

    /// The half-precision float at an even byte of the block. Blocks that have some begin at even bytes.
    fn half(self, at: u32) -> F<'k> {
        let at = self.start + at;
        wide((self.words.load(at / 4u32) >> (at % 4u32 * 8u32)) & 0xffffu32)
    }

    /// The low (0) or high (1) four bits of a byte, of those that begin at `first`.
    fn nibble(self, first: u32, at: U<'k>, high: U<'k>) -> U<'k> {
        (self.byte(at + first) >> (high * 4u32)) & 15u32
    }

    /// Five bits: the fifth ones begin at one byte, the lower four at another.
    fn five_bits(self, fifth: u32, lower: u32, e: U<'k>) -> U<'k> {
        let bit = (self.byte(e / 8u32 + fifth) >> (e % 8u32)) & 1u32;
        self.nibble(lower, e % 16u32, e / 16u32) | (bit << 4u32)
    }

    /// Two bits of a block of 256: in each half of it, 32 bytes hold four elements each.
    fn two_bits(self, first: u32, e: U<'k>) -> U<'k> {
        (self.byte(e / 128u32 * 32u32 + e % 32u32 + first) >> (e / 32u32 % 4u32 * 2u32)) & 3u32
    }

    /// A number of a group of 32 with scale and minimum of six bits each, which twelve bytes from the fourth on hold.
    fn with_minimum(self, q: U<'k>, e: U<'k>) -> F<'k> {
        let (j, six) = (e / 32u32, 63u32);
        let [a, b] = [4u32, 8].map(|at| self.byte(j % 4u32 + at));
        let c = self.byte(j % 4u32 + 12u32);
        let later = j.ge(4u32);
        let scale = later.select((c & 15u32) | ((a >> 6u32) << 4u32), a & six);
        let minimum = later.select((c >> 4u32) | ((b >> 6u32) << 4u32), b & six);
        self.half(0) * float(scale) * float(q) - self.half(2) * float(minimum)
    }

    /// The power of two of a block of four-bit floats, halved since their table is doubled.
    fn power(self) -> F<'k> {
        let e = self.byte(self.k.lit(0u32));
        // The two smallest are no normal numbers: devices may take them for zero.
        let tiny = e.eq(0).select(self.k.lit(f32::from_bits(0x0020_0000)), self.k.lit(f32::from_bits(0x0040_0000)));
        e.lt(2u32).select(tiny, ((e - 1u32) << 23u32).bits_as::<f32>())
    }

    /// One of sixteen small numbers.
    fn entry(self, table: [i8; 16], q: U<'k>) -> F<'k> {
        let word = |n: usize| u32::from_le_bytes([0, 1, 2, 3].map(|i| table[4 * n + i] as u8));
        let [a, b, c, d] = [0, 1, 2, 3].map(|n| self.k.lit(word(n)));
        let pair = |low: U<'k>, high: U<'k>| (q & 4u32).ne(0).select(high, low);
        let word: U<'k> = (q & 8u32).ne(0).select(pair(c, d), pair(a, b));
        signed((word >> (q % 4u32 * 8u32)) & 255u32)
    }
}

fn float(x: U<'_>) -> F<'_> {
    x.to::<f32>()
}

/// A small number, less another.
fn less(x: U<'_>, by: i32) -> F<'_> {
    (x.to::<i32>() - by).to::<f32>()
}

/// A byte with a sign.
fn signed(x: U<'_>) -> F<'_> {
    let shifted: Val<'_, i32> = (x << 24u32).bits_as::<i32>();
    (shifted >> 24i32).to::<f32>()
}

/// Half precision, given as 16 bits, as `f32`.
fn wide(x: U<'_>) -> F<'_> {
    let (exponent, mantissa) = ((x >> 10u32) & 31u32, x & 1023u32);
    // Infinity and NaN keep the largest exponent.
    let biased: U<'_> = exponent.eq(31).select(exponent + 224u32, exponent + 112u32);
    let normal = ((biased << 23u32) | (mantissa << 13u32)).bits_as::<f32>();
    let small = float(mantissa) * (1.0 / 16_777_216.0);
    let number: F<'_> = exponent.eq(0).select(small, normal);
    (x & 0x8000u32).ne(0).select(-number, number)
}
