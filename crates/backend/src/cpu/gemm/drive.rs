//! From micro kernel to matrix: the loops over chunks of `k`, panels of columns and tiles of rows.

use std::ops::Range;

use super::{Kernel, Number, PANEL, TILE_COLUMNS, Tile, pack};
use crate::cpu::rows::{Dst, Finish, Rows, Src};
use impasto_graph::Unary;

/// Rows of a block of A: with a chunk of `k` they stay in the second cache.
pub(in super::super) const BLOCK_ROWS: usize = 256;
/// Columns whose sums are kept in scratch memory while the chunks of `k` go by.
const BLOCK_COLUMNS: usize = 256;

/// A block of A, ready in the compute type: lines of equally distant rows. A tile never straddles two lines.
#[derive(Clone, Copy)]
pub(in super::super) struct Block<'a> {
    pub(in super::super) ptr: *const u8,
    /// Bytes from one row to the next.
    pub(in super::super) row_stride: usize,
    pub(in super::super) lines: usize,
    /// Rows of a line.
    pub(in super::super) line_rows: usize,
    /// Bytes from one line to the next.
    pub(in super::super) line_stride: usize,
    /// Byte offsets of the segments of `k` from a row's start.
    pub(in super::super) segments: &'a [usize],
    /// Numbers of a segment, a multiple of the granule.
    pub(in super::super) segment_k: usize,
}

/// Where the results of a block go.
#[derive(Clone, Copy)]
pub(in super::super) struct Target {
    /// One for each column of the whole product; `f32`.
    pub(in super::super) bias: Option<*const f32>,
    pub(in super::super) activation: Option<Unary>,
    /// At the block's first row and column 0.
    pub(in super::super) residual: Option<Src>,
    pub(in super::super) out: Dst,
    /// Elements from one row to the next, in the result and the residual.
    pub(in super::super) row_stride: usize,
    /// Elements from one line to the next.
    pub(in super::super) line_stride: usize,
}

/// The operand B and the machinery for it.
#[derive(Clone, Copy)]
pub(in super::super) struct Product {
    pub(in super::super) kernel: Kernel,
    pub(in super::super) rows: &'static Rows,
    pub(in super::super) number: Number,
    /// Packed B.
    pub(in super::super) panels: *const u8,
    /// `k` as it is packed.
    pub(in super::super) k: usize,
}

// SAFETY: `panels` is read only.
unsafe impl Send for Product {}
// SAFETY: as above.
unsafe impl Sync for Product {}

/// Chunks of `k`: (first segment, segments, first number in them, numbers).
fn chunks(
    segments: usize,
    segment_k: usize,
    chunk: usize,
    granule: usize,
) -> impl Iterator<Item = (usize, usize, usize, usize)> {
    let group = (chunk / segment_k).clamp(1, segments);
    let parts = segment_k.div_ceil(chunk);
    let part = segment_k.div_ceil(parts).next_multiple_of(granule);
    (0..segments).step_by(group).flat_map(move |first| {
        let count = group.min(segments - first);
        (0..segment_k).step_by(part).map(move |k| (first, count, k, part.min(segment_k - k)))
    })
}

fn chunk_count(segments: usize, segment_k: usize, chunk: usize) -> usize {
    let group = (chunk / segment_k).clamp(1, segments);
    segments.div_ceil(group) * segment_k.div_ceil(chunk)
}

/// Scratch bytes for the sums of one block.
pub(in super::super) fn sums_bytes(kernel: &Kernel, rows: usize, n: usize, segments: usize, segment_k: usize) -> usize {
    let tile = kernel.rows * TILE_COLUMNS * 4;
    if chunk_count(segments, segment_k, kernel.chunk) == 1 {
        return tile;
    }
    rows * n.next_multiple_of(TILE_COLUMNS).min(BLOCK_COLUMNS) * 4
}

/// How a line of rows is cut into tiles: `(first, rows)`.
fn tiles(rows: usize, kernel: &Kernel) -> impl Iterator<Item = (usize, usize)> + use<> {
    let count = rows.div_ceil(kernel.rows);
    let most = kernel.rows;
    // Matrix tiles come in halves of 16 rows: full ones first. Vector kernels are best with equal parts.
    let matrix = most == 32;
    (0..count).map(move |i| match matrix {
        true => (i * most, most.min(rows - i * most)),
        false => (i * rows / count, (i + 1) * rows / count - i * rows / count),
    })
}

impl Product {
    /// Multiply a block with the columns `n` of B, into `target`.
    ///
    /// # Safety
    /// The machine has the instructions; the pointers are good; `sums` has [`sums_bytes`]; no other thread writes the
    /// same part of the target.
    pub(in super::super) unsafe fn block(&self, a: &Block, n: Range<usize>, sums: *mut f32, target: &Target) {
        let granule = self.number.granule();
        let last = chunk_count(a.segments.len(), a.segment_k, self.kernel.chunk) - 1;
        let rows = a.lines * a.line_rows;
        // SAFETY: everything below stays inside the block, the panels, the sums and the target.
        unsafe {
            (self.kernel.begin)();
            for n0 in n.clone().step_by(BLOCK_COLUMNS) {
                let n1 = n.end.min(n0 + BLOCK_COLUMNS);
                let mut k_done = 0;
                let list = chunks(a.segments.len(), a.segment_k, self.kernel.chunk, granule);
                for (i, (first, count, k, k_len)) in list.enumerate() {
                    for strip in (n0..n1).step_by(TILE_COLUMNS) {
                        let columns = TILE_COLUMNS.min(n1 - strip);
                        let panel = self.panels.add(strip / PANEL * self.panel_bytes());
                        let strip_sums = match last {
                            0 => sums,
                            _ => sums.add((strip - n0) / TILE_COLUMNS * rows * TILE_COLUMNS),
                        };
                        for (x, tile_rows) in tiles(a.line_rows, &self.kernel) {
                            for line in 0..a.lines {
                                let at = line * a.line_rows + x;
                                let c = if last == 0 { strip_sums } else { strip_sums.add(at * TILE_COLUMNS) };
                                (self.kernel.run)(&Tile {
                                    rows: tile_rows,
                                    panels: columns.div_ceil(PANEL),
                                    a: a.ptr.add(line * a.line_stride + x * a.row_stride + k * self.number.bytes()),
                                    a_stride: a.row_stride,
                                    segments: a.segments.as_ptr().add(first),
                                    segment_count: count,
                                    segment_k: k_len,
                                    b: panel.add(k_done * PANEL * self.number.bytes()),
                                    panel_stride: self.panel_bytes(),
                                    c,
                                    c_stride: TILE_COLUMNS,
                                    accumulate: i > 0,
                                });
                                if i == last {
                                    self.finish(
                                        c,
                                        tile_rows,
                                        columns,
                                        line * target.line_stride + x * target.row_stride + strip,
                                        strip,
                                        target,
                                    );
                                }
                            }
                        }
                    }
                    k_done += count * k_len;
                }
            }
            (self.kernel.end)();
        }
    }

    fn panel_bytes(&self) -> usize {
        pack::panel_bytes(self.k, self.number)
    }

    /// # Safety
    /// As [`Product::block`].
    unsafe fn finish(&self, c: *mut f32, rows: usize, columns: usize, at: usize, column: usize, target: &Target) {
        // SAFETY: the caller's.
        unsafe {
            let finish = Finish {
                bias: target.bias.map(|b| b.add(column)),
                activation: target.activation,
                residual: target.residual.map(|r| (r.at(at), target.row_stride)),
                out: (target.out.at(at), target.row_stride),
            };
            (self.rows.finish)(c, TILE_COLUMNS, rows, columns, &finish);
        }
    }
}

/// How the rows and columns of a product are given to threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Partition {
    /// Rows of a block.
    pub(in super::super) rows: usize,
    /// Columns of a task.
    pub(in super::super) columns: usize,
}

impl Partition {
    /// Blocks of at most `most` rows; where there are too few of them for the threads, columns are divided too.
    pub(in super::super) fn new(m: usize, n: usize, most: usize, threads: usize, kernel: &Kernel) -> Partition {
        let want = if threads == 1 { 1 } else { 3 * threads };
        let least = kernel.rows * 2;
        // Blocks as equal as possible, in whole tiles.
        let blocks = m.div_ceil(most).max((m / least).min(want).max(1));
        let rows = m.div_ceil(blocks).next_multiple_of(kernel.rows).min(m.max(1));
        let blocks = m.div_ceil(rows);
        let parts = want.div_ceil(blocks).min(n.div_ceil(2 * TILE_COLUMNS)).max(1);
        let columns = n.div_ceil(parts).next_multiple_of(TILE_COLUMNS);
        Partition { rows, columns }
    }
}
