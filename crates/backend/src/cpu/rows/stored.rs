//! Numbers of model files, converted and packed into panels while they are loaded. Every rounding is that of the crate `half`, to the bit,
//! on every instruction set.

use half::f16;
use half::slice::HalfFloatSliceExt;
use impasto_graph::{DType, Storage};

use super::body::{load, round_row, slice, slice_mut, to_bf16};
use super::{Dst, Src};
use crate::cpu::gemm::pack::Order;
use crate::cpu::gemm::{PANEL, ProductType};
#[cfg(target_arch = "x86_64")]
use crate::cpu::math::FUSED;

/// Numbers of a row that are converted at a time.
const CHUNK: usize = 256;

/// Rows of a weight matrix, as a model file has them, that become the columns of a panel.
#[derive(Clone, Copy)]
pub(crate) struct PanelRows {
    /// The first row; the others follow it.
    pub(crate) src: Src,
    /// How many: at most [`PANEL`].
    pub(crate) columns: usize,
    /// The order of the panel's `k`; the file has (channel, tap).
    pub(crate) order: Order,
    pub(crate) number: ProductType,
}

/// A stored bf16 with a quiet NaN for any other.
#[inline(always)]
fn quiet(x: u16) -> u16 {
    if x & 0x7fff > 0x7f80 { x | 0x40 } else { x }
}

/// Numbers to `f32`.
#[inline(always)]
unsafe fn widen<const L: u8>(src: Src, out: &mut [f32]) {
    let n = out.len();
    // SAFETY: the caller vouches for as many elements as there is room.
    unsafe {
        match src.dtype {
            DType::BF16 => out.iter_mut().zip(slice::<u16>(src.ptr, n)).for_each(|(out, &x)| {
                *out = f32::from_bits(u32::from(quiet(x)) << 16);
            }),
            DType::F32 | DType::F16 | DType::I32 => load::<L>(src, out),
        }
    }
}

/// Numbers to bf16, rounded to the nearest; a NaN becomes a quiet one.
#[inline(always)]
unsafe fn narrow<const L: u8>(src: Src, out: &mut [u16]) {
    let n = out.len();
    // SAFETY: the caller vouches for `n` elements.
    unsafe {
        match src.dtype {
            DType::BF16 => out.iter_mut().zip(slice::<u16>(src.ptr, n)).for_each(|(out, &x)| *out = quiet(x)),
            // The machine's own instruction takes subnormal numbers for zero, so it is not used here.
            DType::F32 => out.iter_mut().zip(slice::<f32>(src.ptr, n)).for_each(|(out, &x)| *out = to_bf16(x)),
            // No f16 is a subnormal f32, and no integer.
            DType::F16 | DType::I32 => {
                let mut wide = [0.0; CHUNK];
                for (i, out) in out.chunks_mut(CHUNK).enumerate() {
                    load::<L>(src.at(CHUNK * i), &mut wide[..out.len()]);
                    round_row::<L>(&wide[..out.len()], out);
                }
            }
        }
    }
}

/// `n` numbers into another element type.
#[inline(always)]
pub(super) unsafe fn convert<const L: u8>(src: Src, dst: Dst, n: usize) {
    // SAFETY: the caller vouches for `n` elements of both.
    unsafe {
        match dst.dtype {
            dtype if dtype == src.dtype => dst.ptr.copy_from_nonoverlapping(src.ptr, n * dtype.bytes() as usize),
            DType::F32 => widen::<L>(src, slice_mut(dst.ptr, n)),
            DType::BF16 => narrow::<L>(src, slice_mut(dst.ptr, n)),
            DType::F16 | DType::I32 => {
                let mut wide = [0.0; CHUNK];
                for at in (0..n).step_by(CHUNK) {
                    let wide = &mut wide[..CHUNK.min(n - at)];
                    widen::<L>(src.at(at), wide);
                    match dst.dtype {
                        DType::I32 => {
                            let out = slice_mut::<i32>(dst.at(at).ptr, wide.len());
                            out.iter_mut().zip(&*wide).for_each(|(out, &x)| *out = x as i32);
                        }
                        _ => slice_mut::<f16>(dst.at(at).ptr, wide.len()).convert_from_f32_slice(wide),
                    }
                }
            }
        }
    }
}

/// Whole blocks to `f32`.
#[inline(always)]
pub(super) unsafe fn decode<const L: u8>(storage: Storage, bytes: &[u8], out: &mut [f32]) {
    impasto_weights::decode(storage, bytes, out);
}

/// Packs a panel but for its padding.
#[inline(always)]
pub(super) unsafe fn panel<const L: u8>(rows: &PanelRows, panel: *mut u8) {
    // SAFETY: the caller vouches for the rows and for a whole panel.
    unsafe {
        match rows.number {
            ProductType::F32 => each_chunk::<L, f32>(rows, |chunk, taps, tap, at, count| {
                for i in 0..count {
                    let to = panel.cast::<[f32; PANEL]>().add(at + i);
                    to.write(chunk[i * taps + tap]);
                }
            }),
            ProductType::Bf16 => each_chunk::<L, u16>(rows, |chunk, taps, tap, at, count| {
                let (mut i, pairs) = (0, panel.cast::<[[u16; 2]; PANEL]>());
                let one = |i: usize| {
                    let (to, half) = ((&raw mut *pairs.add((at + i) / 2)).cast::<u16>(), (at + i) % 2);
                    (0..PANEL).for_each(|c| to.add(2 * c + half).write(chunk[i * taps + tap][c]));
                };
                // Where the numbers of a tap are odd in number, those of the next begin in the middle of a pair.
                if at % 2 == 1 && count > 0 {
                    one(0);
                    i = 1;
                }
                while i + 2 <= count {
                    let [a, b] = [&chunk[i * taps + tap], &chunk[(i + 1) * taps + tap]];
                    pairs.add((at + i) / 2).write(std::array::from_fn(|c| [a[c], b[c]]));
                    i += 2;
                }
                if i < count {
                    one(i);
                }
            }),
        }
    }
}

/// A number of a panel.
trait Packed: Copy + Default {
    unsafe fn convert<const L: u8>(src: Src, out: &mut [Self]);
    fn transpose<const L: u8>(rows: &[[Self; CHUNK]; PANEL], n: usize, out: &mut [[Self; PANEL]; CHUNK]);
}

impl Packed for f32 {
    #[inline(always)]
    unsafe fn convert<const L: u8>(src: Src, out: &mut [f32]) {
        // SAFETY: the caller's.
        unsafe { widen::<L>(src, out) }
    }

    #[inline(always)]
    fn transpose<const L: u8>(rows: &[[f32; CHUNK]; PANEL], n: usize, out: &mut [[f32; PANEL]; CHUNK]) {
        for (i, out) in out[..n].iter_mut().enumerate() {
            *out = std::array::from_fn(|c| rows[c][i]);
        }
    }
}

impl Packed for u16 {
    #[inline(always)]
    unsafe fn convert<const L: u8>(src: Src, out: &mut [u16]) {
        // SAFETY: the caller's.
        unsafe { narrow::<L>(src, out) }
    }

    #[inline(always)]
    fn transpose<const L: u8>(rows: &[[u16; CHUNK]; PANEL], n: usize, out: &mut [[u16; PANEL]; CHUNK]) {
        #[cfg(target_arch = "x86_64")]
        if L >= FUSED {
            for i in (0..n).step_by(8) {
                // SAFETY: this level is compiled for machines with these instructions; chunks are multiples of eight.
                unsafe { transpose_eight(rows, i, out) };
            }
            return;
        }
        for (i, out) in out[..n].iter_mut().enumerate() {
            *out = std::array::from_fn(|c| rows[c][i]);
        }
    }
}

/// Eight numbers of each of 16 rows as eight rows of 16: each half of a vector is a transposition of eight by eight.
///
/// # Safety
/// The machine has AVX2; `i + 8` numbers are there.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn transpose_eight(rows: &[[u16; CHUNK]; PANEL], i: usize, out: &mut [[u16; PANEL]; CHUNK]) {
    use std::arch::x86_64::*;
    // SAFETY: the caller's.
    unsafe {
        let half = |row: usize| _mm_loadu_si128(rows[row].as_ptr().add(i).cast());
        let both = |row: usize| _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(half(row)), half(row + 8));
        let r: [__m256i; 8] = std::array::from_fn(both);
        let pairs = |a: usize, b: usize| [_mm256_unpacklo_epi16(r[a], r[b]), _mm256_unpackhi_epi16(r[a], r[b])];
        let p = [pairs(0, 1), pairs(2, 3), pairs(4, 5), pairs(6, 7)];
        let lanes32 = |a: __m256i, b: __m256i| [_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b)];
        let f = [
            lanes32(p[0][0], p[1][0]),
            lanes32(p[0][1], p[1][1]),
            lanes32(p[2][0], p[3][0]),
            lanes32(p[2][1], p[3][1]),
        ];
        let mut to = out.as_mut_ptr().add(i).cast::<__m256i>();
        let [a, b, c, d] = f;
        for (low, high) in [(a[0], c[0]), (a[1], c[1]), (b[0], d[0]), (b[1], d[1])] {
            _mm256_storeu_si256(to, _mm256_unpacklo_epi64(low, high));
            _mm256_storeu_si256(to.add(1), _mm256_unpackhi_epi64(low, high));
            to = to.add(2);
        }
    }
}

/// Converts and transposes the rows, some channels at a time, and gives each tap of them to `put`: the chunk, the taps that take turns in it,
/// the tap, where its numbers begin in `k`, and how many there are.
///
/// # Safety
/// The rows are there.
#[inline(always)]
unsafe fn each_chunk<const L: u8, T: Packed>(
    rows: &PanelRows,
    put: impl Fn(&[[T; PANEL]; CHUNK], usize, usize, usize, usize),
) {
    let PanelRows { src, columns, order, .. } = *rows;
    let (taps, k) = (order.taps(), order.k());
    let mut converted = [[T::default(); CHUNK]; PANEL];
    let mut chunk = [[T::default(); PANEL]; CHUNK];
    if taps > CHUNK {
        // A window of so many taps goes number by number.
        for i in 0..k {
            for (column, converted) in converted[..columns].iter_mut().enumerate() {
                // SAFETY: the caller's.
                unsafe { T::convert::<L>(src.at(column * k + i), &mut converted[..1]) };
            }
            T::transpose::<L>(&converted, 1, &mut chunk);
            put(&chunk, 1, 0, order.position(i % taps, i / taps), 1);
        }
        return;
    }
    // An even number, so that pairs of channels stay together.
    let most = match CHUNK / taps {
        1 => 1,
        n => n / 2 * 2,
    };
    for block in (0..order.channels()).step_by(order.block.max(1)) {
        let end = block + order.block;
        for first in (block..end).step_by(most) {
            let count = most.min(end - first);
            for (column, converted) in converted[..columns].iter_mut().enumerate() {
                // SAFETY: the caller's.
                unsafe { T::convert::<L>(src.at(column * k + first * taps), &mut converted[..count * taps]) };
            }
            T::transpose::<L>(&converted, count * taps, &mut chunk);
            (0..taps).for_each(|tap| put(&chunk, taps, tap, order.position(tap, first), count));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::Isa;
    use crate::cpu::gemm::{Kernel, pack};
    use crate::cpu::rows::Rows;
    use half::bf16;

    /// Bits of any numbers: also NaN, infinities and subnormal ones.
    fn bits(n: usize, seed: u64) -> Vec<u32> {
        let mut state = seed | 1;
        let next = |_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let small = state.is_multiple_of(8);
            if small { (state >> 20) as u32 & 0x807f_ffff } else { (state >> 20) as u32 }
        };
        (0..n).map(next).collect()
    }

    fn wide(bits: &[u32], dtype: DType) -> Vec<f32> {
        bits.iter()
            .map(|&x| match dtype {
                DType::F32 => f32::from_bits(x),
                DType::F16 => f16::from_bits(x as u16).to_f32(),
                _ => bf16::from_bits(x as u16).to_f32(),
            })
            .collect()
    }

    fn stored(bits: &[u32], dtype: DType) -> Vec<u32> {
        match dtype {
            DType::F32 => bits.to_vec(),
            _ => bits.chunks(2).map(|two| two[0] & 0xffff | two.get(1).map_or(0, |x| x << 16)).collect(),
        }
    }

    #[test]
    fn panels_are_those_of_plain_rust_on_every_path() {
        for isa in Isa::ALL.into_iter().filter(|isa| isa.claimed()) {
            let rows = Rows::of(isa);
            for (case, &([y, x], channels, columns)) in [
                ([1, 1], 70, 16),
                ([3, 3], 61, 5),
                ([3, 3], 768, 16),
                ([1, 1], 1, 1),
                ([17, 16], 3, 2),
                ([2, 1], 33, 16),
            ]
            .iter()
            .enumerate()
            {
                for dtype in [DType::F32, DType::F16, DType::BF16] {
                    for number in [ProductType::F32, ProductType::Bf16] {
                        let order = Order::new(&Kernel::of(isa, number), [y, x], channels);
                        let (taps, k) = (y * x, y * x * channels);
                        let bits = bits(columns * k, 77 + case as u64);
                        let numbers = wide(&bits, dtype);
                        let bytes = pack::panel_bytes(k, number);
                        let mut want = vec![0u64; bytes.div_ceil(8)];
                        let mut got = vec![u64::MAX; bytes.div_ceil(8)];
                        let stored = stored(&bits, dtype);
                        // SAFETY: both are whole panels, and the rows are there.
                        unsafe {
                            for column in 0..columns {
                                for (segment, (tap, first)) in order.segments().enumerate() {
                                    let values =
                                        (first..first + order.block).map(|c| numbers[column * k + c * taps + tap]);
                                    let to = want.as_mut_ptr().cast();
                                    pack::write_column(to, number, column, segment * order.block, values);
                                }
                            }
                            let src = Src { ptr: stored.as_ptr().cast(), dtype };
                            (rows.panel)(&PanelRows { src, columns, order, number }, got.as_mut_ptr().cast());
                            pack::zero_padding(got.as_mut_ptr().cast(), number, columns, k);
                        }
                        assert!(want == got, "{isa} {y}x{x} of {channels}, {columns} columns, {dtype} to {number:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn conversions_are_those_of_plain_rust_on_every_path() {
        for isa in Isa::ALL.into_iter().filter(|isa| isa.claimed()) {
            for from in [DType::F32, DType::F16, DType::BF16] {
                for n in [1, 7, 300, 1024] {
                    let bits = bits(n, 5 + n as u64);
                    let (numbers, stored) = (wide(&bits, from), stored(&bits, from));
                    let mut out = vec![0u32; n];
                    let mut to = |dtype: DType| {
                        let (src, dst) = (
                            Src { ptr: stored.as_ptr().cast(), dtype: from },
                            Dst { ptr: out.as_mut_ptr().cast(), dtype },
                        );
                        // SAFETY: both have `n` elements.
                        unsafe { (Rows::of(isa).convert)(src, dst, n) };
                        // SAFETY: as above.
                        let halves = unsafe { slice::<u16>(out.as_ptr().cast(), n) }.to_vec();
                        (out.clone(), halves)
                    };
                    let what = format!("{isa} {from} {n}");
                    if from != DType::F32 {
                        let want: Vec<u32> = numbers.iter().map(|x| x.to_bits()).collect();
                        assert!(to(DType::F32).0 == want, "{what} to f32");
                    }
                    if from != DType::BF16 {
                        let want: Vec<u16> = numbers.iter().map(|&x| bf16::from_f32(x).to_bits()).collect();
                        assert!(to(DType::BF16).1 == want, "{what} to bf16");
                    }
                    if from != DType::F16 {
                        let want: Vec<u16> = numbers.iter().map(|&x| f16::from_f32(x).to_bits()).collect();
                        assert!(to(DType::F16).1 == want, "{what} to f16");
                    }
                }
            }
        }
    }
}
