//! The packed layout of B: panels of 16 columns.
//!
//! `f32`: `[panel][k][16]`. bf16: `[panel][k / 2][16][2]`, the two of a pair being neighbours in `k`. Columns and `k`
//! are padded with zeros.

use half::bf16;

use super::{Number, PANEL};
use crate::cpu::rows::{Rows, Src};

/// `k` with its padding.
pub(in super::super) fn padded_k(k: usize, number: Number) -> usize {
    k.next_multiple_of(number.granule())
}

/// Bytes of one panel.
pub(in super::super) fn panel_bytes(k: usize, number: Number) -> usize {
    padded_k(k, number) * PANEL * number.bytes()
}

/// Bytes of all panels of an operand.
pub(in super::super) fn packed_bytes(n: usize, k: usize, number: Number) -> usize {
    n.div_ceil(PANEL) * panel_bytes(k, number)
}

/// Where element `(k, column)` of a panel stands.
#[inline(always)]
fn position(k: usize, column: usize, number: Number) -> usize {
    match number {
        Number::F32 => k * PANEL + column,
        Number::Bf16 => (k / 2) * 2 * PANEL + 2 * column + k % 2,
    }
}

/// Write `values` as the column `column` of a panel, from `k0` on.
///
/// # Safety
/// `panel` is good for a whole panel, nobody else writes this column now.
pub(in super::super) unsafe fn write_column(
    panel: *mut u8,
    number: Number,
    column: usize,
    k0: usize,
    values: impl Iterator<Item = f32>,
) {
    for (i, v) in values.enumerate() {
        let at = position(k0 + i, column, number);
        // SAFETY: inside the panel; panels are aligned.
        unsafe {
            match number {
                Number::F32 => *panel.cast::<f32>().add(at) = v,
                Number::Bf16 => *panel.cast::<bf16>().add(at) = bf16::from_f32(v),
            }
        }
    }
}

/// Zero what a panel has beyond `columns` columns and `k` numbers.
///
/// # Safety
/// As above.
pub(in super::super) unsafe fn zero_padding(panel: *mut u8, number: Number, columns: usize, k: usize) {
    let padded = padded_k(k, number);
    for column in 0..PANEL {
        let from = if column < columns { k } else { 0 };
        // SAFETY: inside the panel.
        unsafe { write_column(panel, number, column, from, std::iter::repeat_n(0.0, padded - from)) };
    }
}

const CHUNK: usize = 256;

/// Pack a panel whose columns are `columns` rows of `k` numbers, `stride` elements apart: weights, keys.
///
/// # Safety
/// The machine has the instructions of `rows`, the pointers are good, nobody else touches the panel.
pub(in super::super) unsafe fn pack_rows(
    rows: &Rows,
    number: Number,
    src: Src,
    stride: usize,
    columns: usize,
    k: usize,
    panel: *mut u8,
) {
    let mut buffer = [0.0f32; CHUNK];
    // SAFETY: the caller's.
    unsafe {
        for column in 0..columns {
            for k0 in (0..k).step_by(CHUNK) {
                let part = &mut buffer[..CHUNK.min(k - k0)];
                (rows.load)(src.at(column * stride + k0), part);
                write_column(panel, number, column, k0, part.iter().copied());
            }
        }
        zero_padding(panel, number, columns, k);
    }
}

/// Pack `k` numbers from `k0` on of a panel whose columns are neighbours: `columns` numbers in each of the rows, which
/// are `stride` elements apart. `k0` must be even, and zero padding is the caller's.
///
/// # Safety
/// As [`pack_rows`]; different ranges of `k` may be packed at the same time.
#[allow(clippy::too_many_arguments, reason = "the layout of a matrix and of a part of a panel")]
pub(in super::super) unsafe fn pack_columns(
    rows: &Rows,
    number: Number,
    src: Src,
    stride: usize,
    columns: usize,
    k0: usize,
    k: usize,
    panel: *mut u8,
) {
    let mut row = [0.0f32; PANEL];
    for i in k0..k0 + k {
        // SAFETY: the caller's.
        unsafe {
            (rows.load)(src.at(i * stride), &mut row[..columns]);
            for (column, &v) in row[..columns].iter().enumerate() {
                write_column(panel, number, column, i, std::iter::once(v));
            }
        }
    }
}
