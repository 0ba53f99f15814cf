//! The packed layout of B: panels of 16 columns.
//!
//! `f32`: `[panel][k][16]`. bf16: `[panel][k / 2][16][2]`, the two of a pair being neighbours in `k`. Columns and `k`
//! are padded with zeros.

use std::ops::Range;

use half::bf16;

use super::{Kernel, PANEL, ProductType, TILE_COLUMNS};
use crate::cpu::rows::{Rows, Src};

/// `k` with its padding.
pub(in super::super) fn padded_k(k: usize, number: ProductType) -> usize {
    k.next_multiple_of(number.granule())
}

/// Bytes of one panel.
pub(in super::super) fn panel_bytes(k: usize, number: ProductType) -> usize {
    padded_k(k, number) * PANEL * number.bytes()
}

/// Bytes of all panels of an operand.
pub(in super::super) fn packed_bytes(n: usize, k: usize, number: ProductType) -> usize {
    n.div_ceil(PANEL) * panel_bytes(k, number)
}

/// The order in which a convolution goes through its window: line after line, in each some channels of all its taps before the next channels. A
/// matrix kernel's rows of a few channels stay in L1 while the taps pass over them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Order {
    /// Lines and columns of the window.
    taps: [usize; 2],
    channels: usize,
    /// Channels that are gone through at a time.
    pub(in super::super) block: usize,
}

/// Channels of which a tile's pixels take half of L1, and the fewest that are worth going on to another tap.
const MOST_CHANNELS: usize = 384;
const FEWEST_CHANNELS: usize = 192;

impl Order {
    pub(in super::super) fn new(kernel: &Kernel, taps: [usize; 2], channels: usize) -> Order {
        let granule = ProductType::Bf16.granule();
        let few = |&block: &usize| block <= MOST_CHANNELS && block.is_multiple_of(granule);
        let mut blocks = (1..=channels / FEWEST_CHANNELS).filter(|n| channels.is_multiple_of(*n)).map(|n| channels / n);
        let block = match kernel.is_matrix() && taps[1] > 1 {
            true => blocks.find(few).unwrap_or(channels),
            false => channels,
        };
        Order { taps, channels, block }
    }

    /// One tap of so many channels.
    pub(in super::super) fn plain(channels: usize) -> Order {
        Order { taps: [1, 1], channels, block: channels }
    }

    pub(in super::super) fn taps(self) -> usize {
        self.taps[0] * self.taps[1]
    }

    pub(in super::super) fn channels(self) -> usize {
        self.channels
    }

    /// Numbers of a row: channels of all taps.
    pub(in super::super) fn k(self) -> usize {
        self.taps() * self.channels
    }

    /// Where in `k` a tap of a channel stands; the block's next channels of the tap follow it.
    pub(in super::super) fn position(self, tap: usize, channel: usize) -> usize {
        let (columns, blocks, block) = (self.taps[1], self.channels / self.block.max(1), channel / self.block.max(1));
        let segment = (tap / columns * blocks + block) * columns + tap % columns;
        segment * self.block + channel % self.block.max(1)
    }

    /// Segments of `k`: tap and first channel of each.
    pub(in super::super) fn segments(self) -> impl Iterator<Item = (usize, usize)> {
        let Order { taps: [lines, columns], channels, block } = self;
        (0..lines).flat_map(move |y| {
            (0..channels).step_by(block.max(1)).flat_map(move |c| (0..columns).map(move |x| (y * columns + x, c)))
        })
    }
}

/// Columns of panels for weights of `n` columns. Where half of them are gates of the other half (`gated`), panels of values take turns with panels of
/// their gates, so that a tile has both: then the last panel of values is as wide as any, and that of its gates as wide as need be.
pub(in super::super) fn columns(n: usize, gated: bool) -> usize {
    match (gated, n / 2 % PANEL) {
        (false, _) | (true, 0) => n,
        (true, rest) => n / 2 / PANEL * TILE_COLUMNS + PANEL + rest,
    }
}

/// Which of the `n` columns stand in a panel.
pub(in super::super) fn columns_of_panel(panel: usize, n: usize, gated: bool) -> Range<usize> {
    let (first, end) = match gated {
        false => (panel * PANEL, n),
        true if panel.is_multiple_of(2) => (panel / 2 * PANEL, n / 2),
        true => (n / 2 + panel / 2 * PANEL, n),
    };
    first..end.min(first + PANEL)
}

/// Where element `(k, column)` of a panel stands.
#[inline(always)]
fn position(k: usize, column: usize, number: ProductType) -> usize {
    match number {
        ProductType::F32 => k * PANEL + column,
        ProductType::Bf16 => (k / 2) * 2 * PANEL + 2 * column + k % 2,
    }
}

/// Write `values` as the column `column` of a panel, from `k0` on.
///
/// # Safety
/// `panel` is good for a whole panel, nobody else writes this column now.
pub(in super::super) unsafe fn write_column(
    panel: *mut u8,
    number: ProductType,
    column: usize,
    k0: usize,
    values: impl Iterator<Item = f32>,
) {
    for (i, v) in values.enumerate() {
        let at = position(k0 + i, column, number);
        // SAFETY: inside the panel; panels are aligned.
        unsafe {
            match number {
                ProductType::F32 => *panel.cast::<f32>().add(at) = v,
                ProductType::Bf16 => *panel.cast::<bf16>().add(at) = bf16::from_f32(v),
            }
        }
    }
}

/// Zero what a panel has beyond `columns` columns and `k` numbers.
///
/// # Safety
/// As above.
pub(in super::super) unsafe fn zero_padding(panel: *mut u8, number: ProductType, columns: usize, k: usize) {
    let padded = padded_k(k, number);
    for column in 0..PANEL {
        let from = if column < columns { k } else { 0 };
        // SAFETY: inside the panel.
        unsafe { write_column(panel, number, column, from, std::iter::repeat_n(0.0, padded - from)) };
    }
}

/// Numbers of a row that are converted at a time.
const CHUNK: usize = 256;

/// Pack a panel whose columns are `columns` rows of `k` numbers, `stride` elements apart: weights, keys.
///
/// # Safety
/// The machine has the instructions of `rows`, the pointers are good, nobody else touches the panel.
pub(in super::super) unsafe fn pack_rows(
    rows: &Rows,
    number: ProductType,
    src: Src,
    stride: usize,
    columns: usize,
    k: usize,
    panel: *mut u8,
) {
    // SAFETY: the caller's.
    unsafe {
        for column in 0..columns {
            for k0 in (0..k).step_by(CHUNK) {
                let (from, len) = (src.at(column * stride + k0), CHUNK.min(k - k0));
                match number {
                    ProductType::F32 => {
                        let mut row = [0.0; CHUNK];
                        (rows.load)(from, &mut row[..len]);
                        let to = panel.cast::<f32>().add(k0 * PANEL + column);
                        (0..len).for_each(|i| *to.add(i * PANEL) = row[i]);
                    }
                    ProductType::Bf16 => {
                        let mut row = [bf16::ZERO; CHUNK];
                        (rows.to_bf16)(from, &mut row[..len]);
                        // Pairs move as one number; an odd end is padded with a zero.
                        let to = panel.cast::<[bf16; 2]>().add(k0 / 2 * PANEL + column);
                        (0..len.div_ceil(2)).for_each(|i| *to.add(i * PANEL) = [row[2 * i], row[2 * i + 1]]);
                    }
                }
            }
        }
        zero_padding(panel, number, columns, k);
    }
}

/// Pack `k` numbers from `k0` on of a panel whose columns are neighbours: `columns` numbers in each of the rows, which
/// are `stride` elements apart. `k0` must be even. An odd end is paired with zeros; other padding is the caller's.
///
/// # Safety
/// As [`pack_rows`]; different ranges of `k` may be packed at the same time.
#[allow(clippy::too_many_arguments, reason = "the layout of a matrix and of a part of a panel")]
pub(in super::super) unsafe fn pack_columns(
    rows: &Rows,
    number: ProductType,
    src: Src,
    stride: usize,
    columns: usize,
    k0: usize,
    k: usize,
    panel: *mut u8,
) {
    // SAFETY: the caller's.
    unsafe {
        match number {
            ProductType::F32 => {
                for i in k0..k0 + k {
                    let to = std::slice::from_raw_parts_mut(panel.cast::<f32>().add(i * PANEL), PANEL);
                    (rows.load)(src.at(i * stride), &mut to[..columns]);
                }
            }
            ProductType::Bf16 => {
                let mut pair = [[bf16::ZERO; PANEL]; 2];
                for i in (k0..k0 + k).step_by(2) {
                    (rows.to_bf16)(src.at(i * stride), &mut pair[0][..columns]);
                    match i + 1 < k0 + k {
                        true => (rows.to_bf16)(src.at((i + 1) * stride), &mut pair[1][..columns]),
                        false => pair[1] = [bf16::ZERO; PANEL],
                    }
                    let to = panel.cast::<[[bf16; 2]; PANEL]>().add(i / 2);
                    *to = std::array::from_fn(|c| [pair[0][c], pair[1][c]]);
                }
            }
        }
    }
}
