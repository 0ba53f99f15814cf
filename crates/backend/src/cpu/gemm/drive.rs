//! From micro kernel to matrix: the loops over chunks of `k`, panels of columns and tiles of rows.

use std::ops::Range;

use super::{Kernel, Number, PANEL, TILE_COLUMNS, Tile, pack};
use crate::cpu::memory::ALIGNMENT;
use crate::cpu::rows::{Dst, Finish, Rows, Src};
use impasto_graph::Unary;

/// Rows of a block of A: with a chunk of `k` they stay in the second cache.
pub(in super::super) const BLOCK_ROWS: usize = 256;
/// Columns whose sums are kept in scratch memory while the chunks of `k` go by.
const BLOCK_COLUMNS: usize = 256;

/// Row lengths that are a multiple of 1 KiB put many rows into the same cache sets; a line more spreads them.
pub(in super::super) fn spread(bytes: usize) -> usize {
    let bytes = bytes.next_multiple_of(ALIGNMENT as usize);
    if bytes.is_multiple_of(1024) { bytes + ALIGNMENT as usize } else { bytes }
}

/// Write a row of `k` numbers in the compute type, padded with zeros.
///
/// # Safety
/// `from` is good for `k` numbers, `to` for the padded row.
pub(in super::super) unsafe fn convert_row(rows: &Rows, number: Number, from: Src, k: usize, to: *mut u8) {
    // SAFETY: the caller's.
    unsafe {
        convert(rows, number, from, k, to);
        let padding = pack::padded_k(k, number) - k;
        to.add(k * number.bytes()).write_bytes(0, padding * number.bytes());
    }
}

/// Write `n` numbers in the compute type.
///
/// # Safety
/// Both rows are good for their lengths.
pub(in super::super) unsafe fn convert(rows: &Rows, number: Number, from: Src, n: usize, to: *mut u8) {
    // SAFETY: the caller's.
    unsafe {
        match number {
            Number::F32 => (rows.load)(from, std::slice::from_raw_parts_mut(to.cast(), n)),
            Number::Bf16 => (rows.to_bf16)(from, std::slice::from_raw_parts_mut(to.cast(), n)),
        }
    }
}

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

/// A part of `k` that is gone through before the next: some whole segments, or a part of one.
#[derive(Clone, Copy)]
struct Chunk {
    /// First segment, and how many.
    segment: usize,
    segments: usize,
    /// Bytes into each row's segments.
    a_offset: usize,
    /// Numbers of each segment.
    k: usize,
    /// Numbers of `k` in the chunks before.
    done: usize,
}

impl Chunk {
    fn all(a: &Block, kernel: &Kernel, number: Number) -> impl Iterator<Item = Chunk> + Clone + use<> {
        let (count, segment_k) = (a.segments.len(), a.segment_k);
        let (group, part) = chunk_size(count, segment_k, kernel.chunk, number);
        (0..count).step_by(group).flat_map(move |segment| {
            let segments = group.min(count - segment);
            (0..segment_k).step_by(part).map(move |k| Chunk {
                segment,
                segments,
                a_offset: k * number.bytes(),
                k: part.min(segment_k - k),
                done: segment * segment_k + k * segments,
            })
        })
    }
}

/// Segments of a chunk, and numbers of each of them.
fn chunk_size(segments: usize, segment_k: usize, chunk: usize, number: Number) -> (usize, usize) {
    let group = (chunk / segment_k).clamp(1, segments);
    let part = segment_k.div_ceil(segment_k.div_ceil(chunk)).next_multiple_of(number.granule());
    (group, part)
}

/// Scratch bytes for the sums of one block.
pub(in super::super) fn sums_bytes(
    kernel: &Kernel,
    number: Number,
    rows: usize,
    n: usize,
    segments: usize,
    segment_k: usize,
) -> usize {
    if chunk_size(segments, segment_k, kernel.chunk, number) == (segments, segment_k) {
        return kernel.rows * TILE_COLUMNS * 4;
    }
    rows * n.next_multiple_of(TILE_COLUMNS).min(BLOCK_COLUMNS) * 4
}

/// How a line of rows is cut into tiles: `(first, rows)`.
fn tiles(rows: usize, kernel: &Kernel) -> impl Iterator<Item = (usize, usize)> + use<> {
    let count = rows.div_ceil(kernel.rows);
    let most = kernel.rows;
    // Matrix tiles come in halves of 16 rows: full ones first. Vector kernels are best with equal parts.
    let matrix = kernel.matrix;
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
        let chunks = Chunk::all(a, &self.kernel, self.number);
        let count = chunks.clone().count();
        // SAFETY: everything below stays inside the block, the panels, the sums and the target.
        unsafe {
            (self.kernel.begin)();
            for n0 in n.clone().step_by(BLOCK_COLUMNS) {
                let strips = (n0..n.end.min(n0 + BLOCK_COLUMNS)).step_by(TILE_COLUMNS);
                for (i, chunk) in chunks.clone().enumerate() {
                    let one = |strip: usize, (x, rows): (usize, usize), line: usize, turn: usize| {
                        // Sums that wait for the next chunk have a place each; else one place will do.
                        let c = match count {
                            1 => sums,
                            _ => {
                                let before = (strip - n0) / TILE_COLUMNS * a.lines * a.line_rows;
                                sums.add((before + line * a.line_rows + x) * TILE_COLUMNS)
                            }
                        };
                        let columns = TILE_COLUMNS.min(n.end - strip);
                        let b = self.panels.add(strip / PANEL * self.panel_bytes());
                        (self.kernel.run)(&Tile {
                            rows,
                            panels: columns.div_ceil(PANEL),
                            a: a.ptr.add(line * a.line_stride + x * a.row_stride + chunk.a_offset),
                            a_stride: a.row_stride,
                            stream_a: a.segments.len() == 1,
                            // The next strip's panels: eight tiles of this one fetch an eighth each.
                            fetch: b.wrapping_add(2 * self.panel_bytes() + turn % 8 * (self.panel_bytes() / 4)),
                            segments: a.segments.as_ptr().add(chunk.segment),
                            segment_count: chunk.segments,
                            segment_k: chunk.k,
                            b: b.add(chunk.done * PANEL * self.number.bytes()),
                            panel_stride: self.panel_bytes(),
                            c,
                            c_stride: TILE_COLUMNS,
                            accumulate: i > 0,
                        });
                        if i + 1 == count {
                            let at = line * target.line_stride + x * target.row_stride + strip;
                            self.finish(c, rows, columns, at, strip, target);
                        }
                    };
                    if self.kernel.matrix {
                        for strip in strips.clone() {
                            let mut turn = 0;
                            for tile in tiles(a.line_rows, &self.kernel) {
                                for line in 0..a.lines {
                                    one(strip, tile, line, turn);
                                    turn += 1;
                                }
                            }
                        }
                    } else {
                        for tile in tiles(a.line_rows, &self.kernel) {
                            for line in 0..a.lines {
                                strips.clone().for_each(|strip| one(strip, tile, line, 0));
                            }
                        }
                    }
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
