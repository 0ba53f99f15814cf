//! Conversions, epilogues and sums, written once for all instruction sets.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use impasto_graph::{DType, Unary};

#[cfg(target_arch = "x86_64")]
use super::super::math::{AVX512, AVX512_BF16, FUSED};
use super::{Dst, Ending, Finish, LANES, Norm, Src};
use crate::cpu::math::{self, Aligned, PART};

#[inline(always)]
pub(super) unsafe fn slice<'a, T>(ptr: *const u8, n: usize) -> &'a [T] {
    // SAFETY: the caller vouches for `n` elements, and tensors are aligned for their type.
    unsafe { std::slice::from_raw_parts(ptr.cast(), n) }
}

#[inline(always)]
pub(super) unsafe fn slice_mut<'a, T>(ptr: *mut u8, n: usize) -> &'a mut [T] {
    // SAFETY: as above, and nobody else touches them.
    unsafe { std::slice::from_raw_parts_mut(ptr.cast(), n) }
}

#[inline(always)]
fn from_bf16(x: u16) -> f32 {
    f32::from_bits((x as u32) << 16)
}

/// Rounded to the nearest, ties to even; a NaN stays a NaN.
#[inline(always)]
pub(super) fn to_bf16(x: f32) -> u16 {
    let bits = x.to_bits();
    let rounded = (bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16) as u16;
    if x.is_nan() { ((bits >> 16) | 0x40) as u16 } else { rounded }
}

/// Convert a whole row, by the machine's own instruction where it has one.
#[inline(always)]
pub(super) fn round_row<const L: u8>(x: &[f32], out: &mut [u16]) {
    #[cfg(target_arch = "x86_64")]
    if L >= AVX512_BF16 {
        // SAFETY: this level is compiled for machines with these instructions; all of `n` lies in both slices.
        unsafe {
            use std::arch::x86_64::*;
            let n = x.len().min(out.len());
            let [pairs, whole] = [n / 32 * 32, n / 16 * 16];
            let load = |i: usize| _mm512_loadu_ps(x.as_ptr().add(i));
            for i in (0..pairs).step_by(32) {
                let rounded = _mm512_cvtne2ps_pbh(load(i + 16), load(i));
                out.as_mut_ptr().add(i).cast::<__m512bh>().write_unaligned(rounded);
            }
            if pairs < whole {
                out.as_mut_ptr().add(pairs).cast::<__m256bh>().write_unaligned(_mm512_cvtneps_pbh(load(pairs)));
            }
            out[whole..].iter_mut().zip(&x[whole..]).for_each(|(o, &x)| *o = to_bf16(x));
        }
        return;
    }
    out.iter_mut().zip(x).for_each(|(o, &x)| *o = to_bf16(x));
}

/// Halves to `f32`, by the machine's own instruction where this level has it.
#[inline(always)]
fn widen<const L: u8>(x: &[f16], out: &mut [f32]) {
    #[cfg(target_arch = "x86_64")]
    if L >= FUSED {
        // SAFETY: this level is compiled for machines with these instructions; all of `n` lies in both slices.
        unsafe {
            use std::arch::x86_64::*;
            let n = x.len().min(out.len());
            let (whole, eights) = (if L >= AVX512 { n / 16 * 16 } else { 0 }, n / 8 * 8);
            for i in (0..whole).step_by(16) {
                let halves = _mm256_loadu_si256(x.as_ptr().add(i).cast());
                _mm512_storeu_ps(out.as_mut_ptr().add(i), _mm512_cvtph_ps(halves));
            }
            for i in (whole..eights).step_by(8) {
                let halves = _mm_loadu_si128(x.as_ptr().add(i).cast());
                _mm256_storeu_ps(out.as_mut_ptr().add(i), _mm256_cvtph_ps(halves));
            }
            out[eights..].iter_mut().zip(&x[eights..]).for_each(|(out, x)| *out = x.to_f32());
        }
        return;
    }
    x.convert_to_f32_slice(out);
}

#[inline(always)]
pub(super) unsafe fn load<const L: u8>(src: Src, out: &mut [f32]) {
    let n = out.len();
    // SAFETY: the caller vouches for `n` elements.
    unsafe {
        match src.dtype {
            DType::F32 => out.copy_from_slice(slice(src.ptr, n)),
            DType::BF16 => out.iter_mut().zip(slice::<u16>(src.ptr, n)).for_each(|(o, &x)| *o = from_bf16(x)),
            DType::F16 => widen::<L>(slice(src.ptr, n), out),
            DType::I32 => out.iter_mut().zip(slice::<i32>(src.ptr, n)).for_each(|(o, &x)| *o = x as f32),
        }
    }
}

#[inline(always)]
pub(super) unsafe fn store<const L: u8>(x: &[f32], dst: Dst) {
    let n = x.len();
    // SAFETY: the caller vouches for `n` elements.
    unsafe {
        match dst.dtype {
            DType::F32 => slice_mut(dst.ptr, n).copy_from_slice(x),
            DType::BF16 => round_row::<L>(x, slice_mut(dst.ptr, n)),
            DType::F16 => slice_mut::<f16>(dst.ptr, n).convert_from_f32_slice(x),
            DType::I32 => slice_mut::<i32>(dst.ptr, n).iter_mut().zip(x).for_each(|(o, &x)| *o = x as i32),
        }
    }
}

#[inline(always)]
pub(super) unsafe fn load_bf16<const L: u8>(src: Src, out: &mut [bf16]) {
    let n = out.len();
    // SAFETY: the caller vouches for `n` elements; a bf16 is a u16.
    unsafe {
        match src.dtype {
            DType::BF16 => out.copy_from_slice(slice(src.ptr, n)),
            DType::F32 => round_row::<L>(slice(src.ptr, n), slice_mut(out.as_mut_ptr().cast(), n)),
            _ => {
                let mut buffer = [0.0; 256];
                for (i, part) in out.chunks_mut(256).enumerate() {
                    load::<L>(src.at(256 * i), &mut buffer[..part.len()]);
                    round_row::<L>(&buffer[..part.len()], slice_mut(part.as_mut_ptr().cast(), part.len()));
                }
            }
        }
    }
}

#[inline(always)]
pub(super) unsafe fn unary<const L: u8>(function: Unary, x: &mut [f32]) {
    math::unary::<L>(function, x);
}

#[inline(always)]
pub(super) unsafe fn normalise_row<const L: u8>(x: &mut [f32], mean: f32, inverse: f32, scale: &[f32], shift: &[f32]) {
    for ((x, &a), &b) in x.iter_mut().zip(scale).zip(shift) {
        *x = math::fma::<L>((*x - mean) * inverse, a, b);
    }
}

#[inline(always)]
pub(super) unsafe fn normalise<const L: u8>(x: Src, out: Dst, count: usize, norm: &Norm) {
    let (n, mut room) = (norm.mean.len(), Aligned([0.0; PART]));
    let whole = n / PART * PART;
    for row in 0..count {
        // SAFETY: the caller vouches for the rows.
        unsafe {
            for at in (0..whole).step_by(PART) {
                // The length is known here: no loop is left.
                let norm = part_of(norm, at, PART);
                normalise_part::<L>(x.at(row * n + at), out.at(row * n + at), &norm, &mut room.0[..PART]);
            }
            if whole < n {
                let norm = part_of(norm, whole, n - whole);
                normalise_part::<L>(x.at(row * n + whole), out.at(row * n + whole), &norm, &mut room.0[..n - whole]);
            }
        }
    }
}

/// The same for some of the columns.
#[inline(always)]
fn part_of<'a>(norm: &Norm<'a>, at: usize, columns: usize) -> Norm<'a> {
    let part = |x: &'a [f32]| &x[at..at + columns];
    Norm { mean: part(norm.mean), scale: part(norm.scale), shift: part(norm.shift), ..*norm }
}

#[inline(always)]
unsafe fn normalise_part<const L: u8>(x: Src, out: Dst, norm: &Norm, part: &mut [f32]) {
    // SAFETY: the caller's.
    unsafe {
        load::<L>(x, part);
        for (((x, &m), &a), &b) in part.iter_mut().zip(norm.mean).zip(norm.scale).zip(norm.shift) {
            *x = math::fma::<L>(*x - m, a, b);
        }
        if let Some(activation) = norm.activation {
            unary::<L>(activation, part);
        }
        store::<L>(part, out);
    }
}

#[inline(always)]
pub(super) unsafe fn geglu<const L: u8>(values: Src, gates: Src, n: usize, out: Dst) {
    let mut room = [Aligned([0.0; PART]); 2];
    let whole = n / PART * PART;
    // SAFETY: the caller vouches for `n` elements each.
    unsafe {
        for at in (0..whole).step_by(PART) {
            let room = room.each_mut().map(|room| &mut room.0[..PART]);
            geglu_part::<L>(values.at(at), gates.at(at), out.at(at), room);
        }
        let room = room.each_mut().map(|room| &mut room.0[..n - whole]);
        geglu_part::<L>(values.at(whole), gates.at(whole), out.at(whole), room);
    }
}

#[inline(always)]
unsafe fn geglu_part<const L: u8>(values: Src, gates: Src, out: Dst, [value, gate]: [&mut [f32]; 2]) {
    // SAFETY: the caller's.
    unsafe {
        load::<L>(values, value);
        load::<L>(gates, gate);
        multiply_by_gelu::<L>(value, gate);
        store::<L>(value, out);
    }
}

#[inline(always)]
fn multiply_by_gelu<const L: u8>(values: &mut [f32], gates: &mut [f32]) {
    math::unary::<L>(Unary::Gelu, gates);
    for (v, &g) in values.iter_mut().zip(&*gates) {
        *v *= g;
    }
}

/// Lane sums of `f(x)`, added up in a fixed order.
#[inline(always)]
pub(super) fn reduce(x: &[f32], f: impl Fn(f32, f32) -> f32) -> f32 {
    let mut lanes = [0.0f32; LANES];
    let chunks = x.chunks_exact(LANES);
    for (lane, &v) in lanes.iter_mut().zip(chunks.remainder()) {
        *lane = f(*lane, v);
    }
    for chunk in chunks {
        for i in 0..LANES {
            lanes[i] = f(lanes[i], chunk[i]);
        }
    }
    lanes.iter().sum()
}

#[inline(always)]
pub(super) unsafe fn sum<const L: u8>(x: &[f32]) -> f32 {
    reduce(x, |sum, v| sum + v)
}

#[inline(always)]
pub(super) unsafe fn sum_squares<const L: u8>(x: &[f32], shift: f32) -> f32 {
    reduce(x, |sum, v| math::fma::<L>(v - shift, v - shift, sum))
}

#[inline(always)]
fn add_to<const L: u8>(sums: &mut [f32], x: &[f32]) {
    for (s, &v) in sums.iter_mut().zip(x) {
        *s += v;
    }
}

/// A row as `f32`: where it lies if it is that already, else in `room`.
#[inline(always)]
unsafe fn row_of<const L: u8>(x: Src, room: &mut [f32]) -> &[f32] {
    // SAFETY: the caller vouches for as many numbers as there is room.
    unsafe {
        match x.dtype {
            DType::F32 => slice(x.ptr, room.len()),
            _ => {
                load::<L>(x, room);
                room
            }
        }
    }
}

#[inline(always)]
pub(super) unsafe fn add_rows<const L: u8>(sums: &mut [f32], x: Src, count: usize, room: &mut [f32]) {
    for row in 0..count {
        // SAFETY: the caller vouches for the rows.
        add_to::<L>(sums, unsafe { row_of::<L>(x.at(row * room.len()), room) });
    }
}

#[inline(always)]
pub(super) unsafe fn add_squares<const L: u8>(sums: &mut [f32], x: Src, count: usize, means: &[f32], room: &mut [f32]) {
    for row in 0..count {
        // SAFETY: the caller vouches for the rows.
        let x = unsafe { row_of::<L>(x.at(row * room.len()), room) };
        for ((s, &v), &m) in sums.iter_mut().zip(x).zip(means) {
            *s = math::fma::<L>(v - m, v - m, *s);
        }
    }
}

#[inline(always)]
pub(super) unsafe fn activate<const L: u8>(c: *mut f32, stride: usize, rows: usize, columns: usize, f: &Finish) {
    let Some(activation) = f.activation else { return };
    for row in 0..rows {
        // SAFETY: the caller vouches for `rows x columns` sums and the bias.
        unsafe {
            let c = std::slice::from_raw_parts_mut(c.add(row * stride), columns);
            if let Some(bias) = f.bias {
                add_to::<L>(c, std::slice::from_raw_parts(bias, columns));
            }
            unary::<L>(activation, c);
        }
    }
}

#[inline(always)]
pub(super) unsafe fn finish<const L: u8>(c: *mut f32, stride: usize, rows: usize, columns: usize, f: &Finish) {
    // SAFETY: the caller vouches for `rows x columns` sums and the same of residual and result.
    unsafe {
        match f.ending().filter(|_| columns == WIDE) {
            Some(Ending::Narrow) => finish_whole::<L, { Ending::Narrow as u8 }>(c, stride, rows, f),
            Some(Ending::NarrowPlusNarrow) => finish_whole::<L, { Ending::NarrowPlusNarrow as u8 }>(c, stride, rows, f),
            Some(Ending::NarrowPlusWide) => finish_whole::<L, { Ending::NarrowPlusWide as u8 }>(c, stride, rows, f),
            Some(Ending::Wide) => finish_whole::<L, { Ending::Wide as u8 }>(c, stride, rows, f),
            Some(Ending::WidePlusWide) => finish_whole::<L, { Ending::WidePlusWide as u8 }>(c, stride, rows, f),
            Some(Ending::Gated) | None => finish_any::<L>(c, stride, rows, columns, f),
        }
    }
}

/// Columns of a whole tile.
const WIDE: usize = 32;

/// Where the next row of a whole tile comes from and goes to.
pub(crate) struct Row {
    sums: *const f32,
    bias: [f32; WIDE],
    residual: *const u8,
    out: *mut u8,
    streamed: bool,
    /// Bytes to the next row of result and residual.
    strides: [usize; 2],
}

impl Row {
    /// For tiles without rows.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "matrix kernels alone have such tiles"))]
    pub(crate) const NOWHERE: Row = Row {
        sums: std::ptr::null(),
        bias: [0.0; WIDE],
        residual: std::ptr::null(),
        out: std::ptr::null_mut(),
        streamed: false,
        strides: [0; 2],
    };

    /// The first one.
    ///
    /// # Safety
    /// The bias has its columns.
    #[inline(always)]
    pub(crate) unsafe fn new(sums: *const f32, f: &Finish) -> Row {
        let (out, residual, strides) = f.places();
        // SAFETY: the caller's.
        let bias = f.bias.map_or([0.0; WIDE], |b| unsafe { b.cast::<[f32; WIDE]>().read() });
        Row { sums, bias, residual, out, streamed: f.streamed, strides }
    }

    /// Write it, and go to the next, whose sums are `stride` further. `ENDING` is the number of one.
    ///
    /// # Safety
    /// There is such a row of sums, residual and result.
    #[inline(always)]
    pub(crate) unsafe fn finish<const L: u8, const ENDING: u8>(&mut self, stride: usize) {
        let ending = Ending::of(ENDING);
        // SAFETY: the caller's.
        unsafe {
            let mut v = self.sums.cast::<[f32; WIDE]>().read();
            add_to::<L>(&mut v, &self.bias);
            match ending.residual() {
                Some(DType::F32) => add_to::<L>(&mut v, &self.residual.cast::<[f32; WIDE]>().read()),
                Some(_) => add_to::<L>(&mut v, &self.residual.cast::<[u16; WIDE]>().read().map(from_bf16)),
                None => {}
            }
            if ending == Ending::Gated {
                round_row::<L>(&gated::<L>(&v), slice_mut(self.out, GATED));
            } else if ending.is_wide() {
                put::<L, [f32; WIDE]>(self.out.cast(), v, self.streamed);
            } else {
                let mut narrow = [0; WIDE];
                round_row::<L>(&v, &mut narrow);
                put::<L, [u16; WIDE]>(self.out.cast(), narrow, self.streamed);
            }
            self.sums = self.sums.add(stride);
        }
        self.out = self.out.wrapping_add(self.strides[0]);
        self.residual = self.residual.wrapping_add(self.strides[1]);
    }
}

#[inline(always)]
unsafe fn finish_whole<const L: u8, const ENDING: u8>(c: *mut f32, stride: usize, rows: usize, f: &Finish) {
    // SAFETY: the caller's.
    unsafe {
        let mut row = Row::new(c, f);
        for _ in 0..rows {
            row.finish::<L, ENDING>(stride);
        }
    }
}

/// Write a row of a tile, which is one or two cache lines; past the caches if it is `streamed`.
#[inline(always)]
unsafe fn put<const L: u8, T>(to: *mut T, row: T, streamed: bool) {
    // SAFETY: the caller vouches for the place, and that what is streamed is whole lines.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        if L >= AVX512 && streamed {
            use std::arch::x86_64::{__m512i, _mm512_loadu_si512, _mm512_stream_si512};
            for line in 0..size_of::<T>() / size_of::<__m512i>() {
                let from = (&raw const row).cast::<__m512i>().add(line);
                _mm512_stream_si512(to.cast::<__m512i>().add(line), _mm512_loadu_si512(from));
            }
            return;
        }
        let _ = streamed;
        to.write(row);
    }
}

#[inline(always)]
unsafe fn finish_any<const L: u8>(c: *mut f32, stride: usize, rows: usize, columns: usize, f: &Finish) {
    // SAFETY: the caller's.
    unsafe {
        let mut buffer = [0.0; WIDE];
        for row in 0..rows {
            let c = std::slice::from_raw_parts_mut(c.add(row * stride), columns);
            if let Some(bias) = f.bias {
                add_to::<L>(c, std::slice::from_raw_parts(bias, columns));
            }
            if let Some((residual, stride)) = f.residual {
                load::<L>(residual.at(row * stride), &mut buffer[..columns]);
                add_to::<L>(c, &buffer);
            }
            store::<L>(c, f.out.0.at(row * f.out.1));
        }
    }
}

/// Columns of values in a tile, and of their gates.
const GATED: usize = WIDE / 2;

/// Values and their gates as results.
#[inline(always)]
fn gated<const L: u8>(row: &[f32; WIDE]) -> [f32; GATED] {
    let (mut values, mut gates) = ([0.0; GATED], [0.0; GATED]);
    values.copy_from_slice(&row[..GATED]);
    gates.copy_from_slice(&row[GATED..]);
    multiply_by_gelu::<L>(&mut values, &mut gates);
    values
}

#[inline(always)]
pub(super) unsafe fn gate<const L: u8>(c: *mut f32, stride: usize, rows: usize, columns: usize, f: &Finish) {
    // SAFETY: the caller vouches for `rows` whole rows of sums, a whole bias, and `columns` of residual and result.
    unsafe {
        if columns == GATED && f.ending() == Some(Ending::Gated) {
            return finish_whole::<L, { Ending::Gated as u8 }>(c, stride, rows, f);
        }
        let bias = f.bias.map_or([0.0; WIDE], |b| b.cast::<[f32; WIDE]>().read());
        let mut room = [0.0; GATED];
        for row in 0..rows {
            let mut sums = c.add(row * stride).cast::<[f32; WIDE]>().read();
            add_to::<L>(&mut sums, &bias);
            let mut results = gated::<L>(&sums);
            let results = &mut results[..columns];
            if let Some((residual, stride)) = f.residual {
                load::<L>(residual.at(row * stride), &mut room[..columns]);
                add_to::<L>(results, &room);
            }
            store::<L>(results, f.out.0.at(row * f.out.1));
        }
    }
}

#[inline(always)]
pub(super) unsafe fn scale<const L: u8>(x: &mut [f32], factor: f32) {
    for v in x {
        *v *= factor;
    }
}
