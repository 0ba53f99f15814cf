//! From micro kernel to matrix: the loops over chunks of `k`, panels of columns and tiles of rows.

use std::ops::Range;

use super::{HALF, Kernel, Near, Number, PANEL, TILE_COLUMNS, Tile, pack};
use crate::cpu::memory::ALIGNMENT;
use crate::cpu::rows::{Dst, Finish, Rows, Src};
use impasto_graph::Unary;

/// Rows of a block of A: with a chunk of `k` they stay in the second cache.
pub(in super::super) const BLOCK_ROWS: usize = 256;
/// Columns whose sums are kept in scratch memory while the chunks of `k` go by.
const BLOCK_COLUMNS: usize = 256;
/// Rows of a block that a matrix kernel takes from the tensor itself.
const PASSING_ROWS: usize = 128;
/// Bytes of panels that stay in the second cache while such rows pass by.
const HELD_BYTES: usize = 900 << 10;

/// Row lengths that are a multiple of 512 bytes put many rows into the same cache sets; a line more spreads them.
pub(in super::super) fn spread(bytes: usize) -> usize {
    let bytes = bytes.next_multiple_of(ALIGNMENT as usize);
    if bytes.is_multiple_of(512) { bytes + ALIGNMENT as usize } else { bytes }
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
    /// The rows lie in the tensor, not in scratch memory that the second cache holds: a matrix kernel lets each pass by only once.
    pub(in super::super) passing: bool,
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

impl Target {
    /// The element where a piece's results begin.
    fn place(&self, p: &Piece, column: usize) -> usize {
        p.line * self.line_stride + p.x * self.row_stride + column
    }

    /// Ask for the lines that a tile will write, before it is computed: they arrive meanwhile.
    fn expect(&self, at: usize, rows: usize, columns: usize) {
        #[cfg(target_arch = "x86_64")]
        for row in 0..rows {
            use std::arch::x86_64::{_MM_HINT_ET0, _MM_HINT_T0, _mm_prefetch};
            let at = at + row * self.row_stride;
            let lines = |dtype: impasto_graph::DType| (0..columns * dtype.bytes() as usize).step_by(64);
            // SAFETY: a prefetch reads and writes nothing.
            unsafe {
                let out = self.out.ptr.wrapping_add(at * self.out.dtype.bytes() as usize);
                lines(self.out.dtype).for_each(|i| _mm_prefetch::<_MM_HINT_ET0>(out.wrapping_add(i).cast()));
                if let Some(residual) = self.residual {
                    let residual_at = residual.ptr.wrapping_add(at * residual.dtype.bytes() as usize);
                    lines(residual.dtype).for_each(|i| _mm_prefetch::<_MM_HINT_T0>(residual_at.wrapping_add(i).cast()));
                }
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = (at, rows, columns);
    }
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

/// Scratch bytes for the sums of one block of `lines` by `line_rows` rows.
pub(in super::super) fn sums_bytes(
    kernel: &Kernel,
    number: Number,
    [lines, line_rows]: [usize; 2],
    n: usize,
    segments: usize,
    segment_k: usize,
) -> usize {
    let tile = kernel.rows * TILE_COLUMNS * 4;
    if chunk_size(segments, segment_k, kernel.chunk, number) == (segments, segment_k) {
        return tile;
    }
    let strips = if kernel.matrix { 1 } else { n.div_ceil(TILE_COLUMNS).min(BLOCK_COLUMNS / TILE_COLUMNS) };
    Pieces::new(lines, line_rows, kernel).tiles() * strips * tile
}

/// How the lines of a block are cut into tiles. A matrix kernel's tile has two halves of up to 16 rows, which may lie on
/// different lines; a vector kernel's is one piece, and the pieces of a line are as equal as can be.
#[derive(Clone, Copy)]
struct Pieces {
    lines: usize,
    line_rows: usize,
    /// Pieces of a line.
    per_line: usize,
    matrix: bool,
}

/// Some rows of one line.
#[derive(Clone, Copy)]
struct Piece {
    line: usize,
    x: usize,
    rows: usize,
}

impl Pieces {
    fn new(lines: usize, line_rows: usize, kernel: &Kernel) -> Pieces {
        let most = if kernel.matrix { HALF } else { kernel.rows };
        Pieces { lines, line_rows, per_line: line_rows.div_ceil(most), matrix: kernel.matrix }
    }

    fn tiles(&self) -> usize {
        (self.lines * self.per_line).div_ceil(if self.matrix { 2 } else { 1 })
    }

    /// The pieces of a tile; a matrix kernel's last tile may have one only.
    fn of_tile(&self, tile: usize) -> [Option<Piece>; 2] {
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
struct Patch {
    sums: *mut f32,
    parts: [Option<Piece>; 2],
    column: usize,
    columns: usize,
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
            match self.kernel.matrix {
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
                        if last {
                            let pieces = patch.parts.iter().flatten();
                            pieces.for_each(|p| target.expect(target.place(p, column), p.rows, patch.columns));
                        }
                        (self.kernel.run)(&Tile { accumulate: i > 0, ..self.tile(a, &chunk, &patch) });
                        if last {
                            self.finish(&patch, target);
                        }
                    }
                }
            }
        }
    }

    /// A matrix kernel takes long chunks, since its sums are dear to spill. Rows that pass by meet all panels, which the second cache
    /// holds; rows that it holds meet one strip of panels after the other.
    ///
    /// # Safety
    /// As [`Product::block`].
    unsafe fn matrix_block(&self, a: &Block, n: Range<usize>, sums: *mut f32, target: &Target) {
        let pieces = Pieces::new(a.lines, a.line_rows, &self.kernel);
        let depth = a.segments.len() * a.segment_k;
        // SAFETY: everything stays inside the block, the panels, the sums and the target.
        let compute = |chunk: &Chunk, patch: Patch, near: Near, fetch: *const u8| unsafe {
            let last = chunk.done + chunk.k * chunk.segments == depth;
            (self.kernel.run)(&Tile { near, fetch, accumulate: chunk.done > 0, ..self.tile(a, chunk, &patch) });
            if last {
                self.finish(&patch, target);
            }
        };
        let strips = n.clone().step_by(TILE_COLUMNS).map(|column| (column, TILE_COLUMNS.min(n.end - column)));
        if a.passing {
            let all = Chunk { segment: 0, segments: a.segments.len(), a_offset: 0, k: a.segment_k, done: 0 };
            // The next rows arrive meanwhile, a part with each strip.
            let (rows_bytes, count) = (self.kernel.rows * a.row_stride, strips.clone().count());
            for tile in 0..pieces.tiles() {
                let parts = pieces.of_tile(tile);
                for (strip, (column, columns)) in strips.clone().enumerate() {
                    let fetch = a.ptr.wrapping_add((tile + 1) * rows_bytes + strip * rows_bytes / count);
                    compute(&all, Patch { sums, parts, column, columns }, Near::A, fetch);
                }
            }
        } else {
            let near = if a.segments.len() > 1 { Near::A } else { Near::B };
            let chunks = Chunk::all(a, &self.kernel, self.number);
            let chunked = chunks.clone().count() > 1;
            for (column, columns) in strips {
                for chunk in chunks.clone() {
                    let after = chunk.done + chunk.k * chunk.segments;
                    let next = if after < depth { (column, after) } else { (column + TILE_COLUMNS, 0) };
                    for tile in 0..pieces.tiles() {
                        // Sums that wait for the next chunk have a place each; else one place will do.
                        let place = if chunked { tile * self.kernel.rows * TILE_COLUMNS } else { 0 };
                        let (sums, parts) = (sums.wrapping_add(place), pieces.of_tile(tile));
                        let fetch = self.part(next, tile, chunk.k * chunk.segments);
                        compute(&chunk, Patch { sums, parts, column, columns }, near, fetch);
                    }
                }
            }
        }
    }

    /// The call of the micro kernel for a tile and a chunk of `k`.
    ///
    /// # Safety
    /// They are inside the block and B.
    unsafe fn tile(&self, a: &Block, chunk: &Chunk, patch: &Patch) -> Tile {
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

    /// What a tile fetches while it works: a part of the two panels that come next, from a column and a number of `k` on, of which `k`
    /// numbers will be needed. Eight tiles fetch all of it; behind the last panel the fetching has no effect.
    fn part(&self, (column, from): (usize, usize), tile: usize, k: usize) -> *const u8 {
        let bytes = PANEL * self.number.bytes();
        let panel = column / PANEL + tile % 8 / 4;
        self.panels.wrapping_add(panel * self.panel_bytes() + (from + tile % 4 * k / 4) * bytes)
    }

    fn panel_bytes(&self) -> usize {
        pack::panel_bytes(self.k, self.number)
    }

    /// Bring a tile's sums through their epilogue into the target.
    ///
    /// # Safety
    /// As [`Product::block`].
    unsafe fn finish(&self, patch: &Patch, target: &Target) {
        for (half, p) in patch.parts.iter().enumerate() {
            let Some(p) = p else { continue };
            let at = target.place(p, patch.column);
            // SAFETY: the caller's.
            unsafe {
                let finish = Finish {
                    bias: target.bias.map(|b| b.add(patch.column)),
                    activation: target.activation,
                    residual: target.residual.map(|r| (r.at(at), target.row_stride)),
                    out: (target.out.at(at), target.row_stride),
                };
                (self.rows.finish)(
                    patch.sums.add(half * HALF * TILE_COLUMNS),
                    TILE_COLUMNS,
                    p.rows,
                    patch.columns,
                    &finish,
                );
            }
        }
    }
}

/// A thread's scratch memory for a product, in bytes: rows of A, sums, bias, one after the other.
#[derive(Clone, Copy)]
pub(in super::super) struct Room {
    rows: usize,
    sums: usize,
    bias: usize,
}

impl Room {
    /// Room for `rows` bytes of A and `sums` bytes of sums, and for the bias of `n` columns.
    pub(in super::super) fn new(rows: usize, sums: usize, n: usize) -> Room {
        let align = |bytes: usize| bytes.next_multiple_of(ALIGNMENT as usize);
        Room { rows: align(rows), sums: align(sums), bias: align(n.next_multiple_of(TILE_COLUMNS) * 4) }
    }

    /// All of it.
    pub(in super::super) fn bytes(&self) -> usize {
        self.rows + self.sums + self.bias
    }

    /// The sums, in a thread's own memory.
    ///
    /// # Safety
    /// `own` has the bytes of this room.
    pub(in super::super) unsafe fn sums(&self, own: *mut u8) -> *mut f32 {
        // SAFETY: the caller's.
        unsafe { own.add(self.rows).cast() }
    }

    /// Load the columns `n` of a bias that begins at `from`; the result is where column 0 would be.
    ///
    /// # Safety
    /// `own` has the bytes of this room, `from` all columns of a bias.
    pub(in super::super) unsafe fn bias(&self, own: *mut u8, rows: &Rows, from: Src, n: &Range<usize>) -> *const f32 {
        // SAFETY: the caller's.
        unsafe {
            let room = own.add(self.rows + self.sums).cast::<f32>();
            (rows.load)(from.at(n.start), std::slice::from_raw_parts_mut(room.add(n.start), n.len()));
            room
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
    /// Blocks of rows; where there are too few of them for the threads, columns are divided too. Rows that pass by a matrix kernel come in
    /// small blocks, and meet no more columns, of so many bytes, than the second cache holds.
    pub(in super::super) fn new(
        m: usize,
        n: usize,
        column_bytes: usize,
        passing: bool,
        threads: usize,
        kernel: &Kernel,
    ) -> Partition {
        let passing = passing && kernel.matrix;
        let most = if passing { PASSING_ROWS } else { BLOCK_ROWS };
        let least = kernel.rows * 2;
        // Blocks as equal as possible, in whole tiles.
        let blocks = m.div_ceil(most).max((m / least).min(tasks(threads)).max(1));
        let rows = m.div_ceil(blocks).next_multiple_of(kernel.rows).min(m.max(1));
        let mut columns = Partition::columns(n, m.div_ceil(rows), threads);
        if passing {
            let held = (HELD_BYTES / column_bytes).max(2 * TILE_COLUMNS);
            columns = columns.min(n.div_ceil(n.div_ceil(held)).next_multiple_of(TILE_COLUMNS));
        }
        Partition { rows, columns }
    }

    /// Columns of a task, where so many blocks of rows are to keep the threads busy.
    pub(in super::super) fn columns(n: usize, blocks: usize, threads: usize) -> usize {
        let parts = tasks(threads).div_ceil(blocks).min(n.div_ceil(2 * TILE_COLUMNS)).max(1);
        n.div_ceil(parts).next_multiple_of(TILE_COLUMNS)
    }
}

/// Tasks among which no thread waits long for the others.
fn tasks(threads: usize) -> usize {
    if threads == 1 { 1 } else { 3 * threads }
}
