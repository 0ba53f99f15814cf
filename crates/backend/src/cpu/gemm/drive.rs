//! From micro kernel to matrix: the loops over chunks of `k`, panels of columns and tiles of rows.

use std::ops::Range;

use super::{HALF, Kernel, Near, PANEL, ProductType, TILE_COLUMNS, Tile, TileRows, pack};
use crate::cpu::memory::ALIGNMENT;
use crate::cpu::rows::{Dst, Finish, Rows, Src};
use impasto_graph::Unary;

/// Rows of a block of A: with a chunk of `k` they stay in L2.
pub(in super::super) const BLOCK_ROWS: usize = 256;
/// Columns whose sums are kept in scratch memory while the chunks of `k` go by.
const BLOCK_COLUMNS: usize = 256;

/// Numbers of the longest rows that a matrix kernel takes as a whole, and of the chunks that it takes longer ones in.
pub(super) const LONGEST_ROW: usize = 2560;
const ROW_CHUNK: usize = 1280;

/// Row lengths that are a multiple of 512 bytes put many rows into the same cache sets; a line more spreads them.
pub(in super::super) fn spread(bytes: usize) -> usize {
    let bytes = bytes.next_multiple_of(ALIGNMENT as usize);
    if bytes.is_multiple_of(512) { bytes + ALIGNMENT as usize } else { bytes }
}

/// Write a row of `k` numbers in the compute type, padded with zeros.
///
/// # Safety
/// `from` is good for `k` numbers, `to` for the padded row.
pub(in super::super) unsafe fn convert_row(rows: &Rows, number: ProductType, from: Src, k: usize, to: *mut u8) {
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
pub(in super::super) unsafe fn convert(rows: &Rows, number: ProductType, from: Src, n: usize, to: *mut u8) {
    // SAFETY: the caller's.
    unsafe {
        match number {
            ProductType::F32 => (rows.load)(from, std::slice::from_raw_parts_mut(to.cast(), n)),
            ProductType::Bf16 => (rows.to_bf16)(from, std::slice::from_raw_parts_mut(to.cast(), n)),
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
    /// The rows lie in the tensor, not in scratch memory that L2 holds: a matrix kernel lets each pass by only once.
    pub(in super::super) passing: bool,
}

/// Where the results of a block go.
#[derive(Clone, Copy)]
pub(in super::super) struct Target {
    /// One for each column of the whole product, and so many further for the next line; `f32`.
    pub(in super::super) bias: Option<*const f32>,
    pub(in super::super) bias_stride: usize,
    pub(in super::super) activation: Option<Unary>,
    /// At the block's first row and column 0.
    pub(in super::super) residual: Option<Src>,
    pub(in super::super) out: Dst,
    /// Elements from one row to the next, in the result and the residual.
    pub(in super::super) row_stride: usize,
    /// Elements from one line to the next.
    pub(in super::super) line_stride: usize,
    /// Each tile has a panel of values and one of their gates, and becomes one panel of results. Such a product begins with a whole tile.
    pub(in super::super) gated: bool,
    /// Whole lines are written past the caches: each would be fetched only to be overwritten, and nobody reads it soon.
    pub(in super::super) streamed: bool,
}

impl Target {
    /// The element where a piece's results begin.
    fn place(&self, p: &Piece, column: usize) -> usize {
        p.line * self.line_stride + p.x * self.row_stride + if self.gated { column / 2 } else { column }
    }
}

/// The operand B and the machinery for it.
#[derive(Clone, Copy)]
pub(in super::super) struct Product {
    pub(in super::super) kernel: Kernel,
    pub(in super::super) rows: &'static Rows,
    pub(in super::super) number: ProductType,
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
pub(super) struct Chunk {
    /// First segment, and how many.
    pub(super) segment: usize,
    pub(super) segments: usize,
    /// Bytes into each row's segments.
    pub(super) a_offset: usize,
    /// Numbers of each segment.
    pub(super) k: usize,
    /// Numbers of `k` in the chunks before.
    pub(super) done: usize,
}

impl Chunk {
    pub(super) fn all(a: &Block, kernel: &Kernel, number: ProductType) -> impl Iterator<Item = Chunk> + Clone + use<> {
        let (count, segment_k) = (a.segments.len(), a.segment_k);
        let (group, part) = chunk_size(count, segment_k, kernel, number);
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
fn chunk_size(segments: usize, segment_k: usize, kernel: &Kernel, number: ProductType) -> (usize, usize) {
    let chunk = match kernel.is_matrix() && segments == 1 {
        true if segment_k <= LONGEST_ROW => segment_k,
        true => ROW_CHUNK,
        false => kernel.chunk,
    };
    let group = (chunk / segment_k).clamp(1, segments);
    let part = segment_k.div_ceil(segment_k.div_ceil(chunk)).next_multiple_of(number.granule());
    (group, part)
}

/// Scratch bytes for the sums of one block of `lines` by `line_rows` rows.
pub(in super::super) fn sums_bytes(
    kernel: &Kernel,
    number: ProductType,
    [lines, line_rows]: [usize; 2],
    n: usize,
    segments: usize,
    segment_k: usize,
) -> usize {
    let tile = kernel.rows * TILE_COLUMNS * 4;
    if chunk_size(segments, segment_k, kernel, number) == (segments, segment_k) {
        return tile;
    }
    let strips = match kernel.is_matrix() {
        // Taps lie in the same pixels: all of them meet a strip of panels before the next one comes.
        true if segments > 1 => 1,
        true => n.div_ceil(TILE_COLUMNS),
        false => n.div_ceil(TILE_COLUMNS).min(BLOCK_COLUMNS / TILE_COLUMNS),
    };
    Pieces::new(lines, line_rows, kernel).tiles() * strips * tile
}

/// How the lines of a block are cut into tiles. A matrix kernel's tile has two halves of up to 16 rows, which may lie on
/// different lines; a vector kernel's is one piece, and the pieces of a line are as equal as can be.
#[derive(Clone, Copy)]
pub(super) struct Pieces {
    lines: usize,
    line_rows: usize,
    /// Pieces of a line.
    per_line: usize,
    matrix: bool,
}

/// Some rows of one line.
#[derive(Clone, Copy)]
pub(super) struct Piece {
    line: usize,
    x: usize,
    rows: usize,
}

impl Pieces {
    pub(super) fn new(lines: usize, line_rows: usize, kernel: &Kernel) -> Pieces {
        let most = if kernel.is_matrix() { HALF } else { kernel.rows };
        Pieces { lines, line_rows, per_line: line_rows.div_ceil(most), matrix: kernel.is_matrix() }
    }

    pub(super) fn tiles(&self) -> usize {
        (self.lines * self.per_line).div_ceil(if self.matrix { 2 } else { 1 })
    }

    /// The pieces of a tile; a matrix kernel's last tile may have one only.
    pub(super) fn of_tile(&self, tile: usize) -> [Option<Piece>; 2] {
        match self.matrix {
            true => [self.get(2 * tile), self.get(2 * tile + 1)],
            false => [self.get(tile), None],
        }
    }

    fn get(&self, i: usize) -> Option<Piece> {
        let (line, i) = (i / self.per_line, i % self.per_line);
        let (from, to) = match self.matrix {
            true => (i * HALF, self.line_rows.min((i + 1) * HALF)),
            false => (i * self.line_rows / self.per_line, (i + 1) * self.line_rows / self.per_line),
        };
        (line < self.lines).then_some(Piece { line, x: from, rows: to - from })
    }
}

/// A tile of C: where its sums lie, its rows and its columns.
#[derive(Clone, Copy)]
pub(super) struct Patch {
    pub(super) sums: *mut f32,
    pub(super) parts: [Option<Piece>; 2],
    pub(super) column: usize,
    pub(super) columns: usize,
}

impl Product {
    /// Multiply a block with the columns `n` of B, into `target`.
    ///
    /// # Safety
    /// The machine has the instructions; the pointers are good; `sums` has [`sums_bytes`]; no other thread writes the
    /// same part of the target.
    pub(in super::super) unsafe fn block(&self, a: &Block, n: Range<usize>, sums: *mut f32, target: &Target) {
        // SAFETY: the caller's.
        unsafe {
            (self.kernel.begin)();
            match self.kernel.is_matrix() {
                true => self.matrix_block(a, n, sums, target),
                false => self.vector_block(a, n, sums, target),
            }
            (self.kernel.end)();
        }
    }

    /// A vector kernel keeps its rows and goes through the panels, chunk by chunk of `k`.
    ///
    /// # Safety
    /// As [`Product::block`].
    unsafe fn vector_block(&self, a: &Block, n: Range<usize>, sums: *mut f32, target: &Target) {
        let pieces = Pieces::new(a.lines, a.line_rows, &self.kernel);
        let chunks = Chunk::all(a, &self.kernel, self.number);
        let chunk_count = chunks.clone().count();
        for n0 in n.clone().step_by(BLOCK_COLUMNS) {
            let strips = (n.end.min(n0 + BLOCK_COLUMNS) - n0).div_ceil(TILE_COLUMNS);
            for (i, chunk) in chunks.clone().enumerate() {
                for (tile, strip) in (0..pieces.tiles()).flat_map(|tile| (0..strips).map(move |strip| (tile, strip))) {
                    // Sums that wait for the next chunk have a place each; else one place will do.
                    let place = if chunk_count == 1 { 0 } else { strip * pieces.tiles() + tile };
                    let column = n0 + strip * TILE_COLUMNS;
                    // SAFETY: everything stays inside the block, the panels, the sums and the target.
                    unsafe {
                        let patch = Patch {
                            sums: sums.add(place * self.kernel.rows * TILE_COLUMNS),
                            parts: pieces.of_tile(tile),
                            column,
                            columns: TILE_COLUMNS.min(n.end - column),
                        };
                        let last = i + 1 == chunk_count;
                        let parts = if last { self.parts(&patch, target) } else { [None; 2] };
                        parts.iter().flatten().for_each(|part| part.ask(patch.columns));
                        (self.kernel.run)(&Tile { accumulate: i > 0, ..self.tile(a, &chunk, &patch) });
                        parts.iter().flatten().for_each(|part| self.finish(part, patch.columns));
                    }
                }
            }
        }
    }

    /// The call of the micro kernel for a tile and a chunk of `k`.
    ///
    /// # Safety
    /// They are inside the block and B.
    pub(super) unsafe fn tile(&self, a: &Block, chunk: &Chunk, patch: &Patch) -> Tile {
        // SAFETY: the caller's.
        unsafe {
            let start = |p: &Option<Piece>| {
                let at = p.as_ref().map_or(0, |p| p.line * a.line_stride + p.x * a.row_stride);
                a.ptr.add(at + chunk.a_offset)
            };
            let b = self.panel(patch.column, chunk.done);
            Tile {
                rows: [0, 1].map(|i| patch.parts[i].as_ref().map_or(0, |p| p.rows)),
                panels: patch.columns.div_ceil(PANEL),
                a: [start(&patch.parts[0]), start(&patch.parts[1])],
                a_stride: a.row_stride,
                near: Near::A,
                fetch: b,
                fetch_lines: 4,
                segments: a.segments.as_ptr().add(chunk.segment),
                segment_count: chunk.segments,
                segment_k: chunk.k,
                b,
                panel_stride: self.panel_bytes(),
                c: patch.sums,
                c_stride: TILE_COLUMNS,
                accumulate: false,
            }
        }
    }

    /// The panel that begins with a column, at a number of `k`.
    ///
    /// # Safety
    /// They are inside B.
    unsafe fn panel(&self, column: usize, k: usize) -> *const u8 {
        // SAFETY: the caller's.
        unsafe { self.panels.add(column / PANEL * self.panel_bytes() + k * PANEL * self.number.bytes()) }
    }

    pub(super) fn panel_bytes(&self) -> usize {
        pack::panel_bytes(self.k, self.number)
    }

    /// What is to be done with the rows of a tile: both halves in one go, where they follow each other.
    pub(super) fn parts(&self, patch: &Patch, target: &Target) -> [Option<TileRows>; 2] {
        let part = |p: &Piece, rows: usize, at: usize| {
            let place = target.place(p, patch.column);
            // SAFETY: the sums have these rows; bias, residual and result have them and these columns.
            unsafe {
                let finish = Finish {
                    bias: target.bias.map(|b| b.add(p.line * target.bias_stride + patch.column)),
                    activation: target.activation,
                    residual: target.residual.map(|r| (r.at(place), target.row_stride)),
                    out: (target.out.at(place), target.row_stride),
                    gated: target.gated,
                    streamed: target.streamed,
                };
                TileRows { sums: patch.sums.add(at * TILE_COLUMNS), rows, finish }
            }
        };
        let follows = |p: &Piece, q: &Piece| {
            let next = target.place(p, 0) + p.rows * target.row_stride;
            p.rows == HALF && target.place(q, 0) == next && (p.line == q.line || target.bias_stride == 0)
        };
        match &patch.parts {
            [Some(p), Some(q)] if follows(p, q) => [Some(part(p, p.rows + q.rows, 0)), None],
            [p, q] => [p.as_ref().map(|p| part(p, p.rows, 0)), q.as_ref().map(|q| part(q, q.rows, HALF))],
        }
    }

    /// Bring the complete sums of a part, which has so many columns, into the target.
    ///
    /// # Safety
    /// As [`Product::block`].
    pub(super) unsafe fn finish(&self, part: &TileRows, columns: usize) {
        let mut finish = part.finish;
        // SAFETY: the caller's.
        unsafe {
            if finish.gated {
                return (self.rows.gate)(part.sums, TILE_COLUMNS, part.rows, columns - PANEL, &finish);
            }
            if finish.activation.is_some() {
                (self.rows.activate)(part.sums, TILE_COLUMNS, part.rows, columns, &finish);
                finish.bias = None;
            }
            (self.rows.finish)(part.sums, TILE_COLUMNS, part.rows, columns, &finish);
        }
    }
}
