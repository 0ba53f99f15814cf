//! From matrix tiles to a block of the product.

use std::ops::Range;

use super::drive::{Block, Chunk, Patch, Pieces, Product, Target};
use super::{Beside, Near, PANEL, TILE_COLUMNS, Tile, TileRows};

/// A tile of C with everything that is done for it. Short products are many: from one strip of columns to the next little is reckoned anew.
struct Spot {
    tile: Tile,
    /// What is done to the sums when they are complete.
    parts: [Option<TileRows>; 2],
    columns: usize,
}

impl Spot {
    /// # Safety
    /// The patch is inside the block, B and the target.
    unsafe fn new(product: &Product, a: &Block, chunk: &Chunk, near: Near, patch: &Patch, target: &Target) -> Spot {
        let last = chunk.done + chunk.k * chunk.segments == a.segments.len() * a.segment_k;
        // SAFETY: the caller's.
        let tile = unsafe { product.tile(a, chunk, patch) };
        Spot {
            tile: Tile { near, accumulate: chunk.done > 0, ..tile },
            parts: if last { product.parts(patch, target) } else { [None; 2] },
            columns: patch.columns,
        }
    }

    /// Go to the next strip, which has so many columns.
    ///
    /// # Safety
    /// There is one.
    unsafe fn go_right(&mut self, panel_bytes: usize, columns: usize) {
        self.columns = columns;
        self.tile.panels = columns.div_ceil(PANEL);
        self.tile.b = self.tile.b.wrapping_add(TILE_COLUMNS / PANEL * panel_bytes);
        // SAFETY: the caller's.
        unsafe { self.shift(TILE_COLUMNS, 0) };
    }

    /// Go to the next whole tile of the same line, whose sums have this place.
    ///
    /// # Safety
    /// There is one.
    unsafe fn go_down(&mut self, rows: usize, sums: *mut f32) {
        self.tile.c = sums;
        self.parts.iter_mut().flatten().for_each(|part| part.sums = sums);
        self.tile.a = self.tile.a.map(|a| a.wrapping_add(rows * self.tile.a_stride));
        // SAFETY: the caller's.
        unsafe { self.shift(0, rows) };
    }

    /// Shift by columns of the product, and by rows.
    ///
    /// # Safety
    /// There are such columns and rows.
    unsafe fn shift(&mut self, columns: usize, rows: usize) {
        for TileRows { finish, .. } in self.parts.iter_mut().flatten() {
            let results = if finish.gated { columns / 2 } else { columns };
            // SAFETY: the caller's.
            unsafe {
                finish.bias = finish.bias.map(|b| b.add(columns));
                finish.out.0 = finish.out.0.at(results + rows * finish.out.1);
                finish.residual = finish.residual.map(|(r, stride)| (r.at(results + rows * stride), stride));
            }
        }
    }
}

/// Computes tile after tile. Rows of a whole tile are finished while the next one is computed: vectors and tiles work at the same time.
struct Series<'a> {
    product: &'a Product,
    run: Beside,
    waiting: Option<TileRows>,
}

impl Series<'_> {
    /// # Safety
    /// As [`Product::block`]; sums that wait for another chunk have places of their own.
    unsafe fn compute(&mut self, spot: &Spot) {
        // SAFETY: the caller's.
        unsafe {
            (self.run)(&spot.tile, &spot.parts, self.waiting.as_ref());
            self.waiting = None;
            match &spot.parts {
                [Some(part), None] if spot.columns == TILE_COLUMNS && part.may_wait() => self.waiting = Some(*part),
                parts => parts.iter().flatten().for_each(|part| self.product.finish(part, spot.columns)),
            }
        }
    }

    /// Finish what waits.
    ///
    /// # Safety
    /// As [`Product::block`].
    unsafe fn end(self) {
        // SAFETY: the caller's.
        self.waiting.iter().for_each(|part| unsafe { self.product.finish(part, TILE_COLUMNS) });
    }
}

/// Lines to fetch with each step, so that so many tiles fetch the 32 lines for each step of what comes next.
fn fetch_lines(tiles: usize) -> usize {
    match tiles {
        16.. => 2,
        11.. => 3,
        8.. => 4,
        _ => 8,
    }
}

impl Product {
    /// A matrix kernel takes long chunks, since its sums are dear to spill. Rows that pass by meet all panels, which L2
    /// holds; rows that it holds meet one strip of panels after the other.
    ///
    /// # Safety
    /// As [`Product::block`].
    pub(super) unsafe fn matrix_block(&self, a: &Block, n: Range<usize>, sums: *mut f32, target: &Target) {
        let Some(run) = self.kernel.matrix else { return };
        let mut series = Series { product: self, run, waiting: None };
        // SAFETY: the caller's.
        unsafe {
            match a.passing {
                true => self.passing_rows(a, n, sums, target, &mut series),
                false => self.held_rows(a, n, sums, target, &mut series),
            }
            series.end();
            if target.streamed {
                // What goes past the caches is not ordered with what others write and read.
                #[cfg(target_arch = "x86_64")]
                std::arch::x86_64::_mm_sfence();
            }
        }
    }

    /// # Safety
    /// As [`Product::block`].
    unsafe fn passing_rows(&self, a: &Block, n: Range<usize>, sums: *mut f32, target: &Target, series: &mut Series) {
        let pieces = Pieces::new(a.lines, a.line_rows, &self.kernel);
        let all = Chunk { segment: 0, segments: a.segments.len(), a_offset: 0, k: a.segment_k, done: 0 };
        let columns = |column: usize| TILE_COLUMNS.min(n.end - column);
        // The next rows arrive meanwhile, a part with each strip.
        let lines = fetch_lines(n.len().div_ceil(TILE_COLUMNS));
        let part = a.segments.len() * a.segment_k / 32 * lines * 64;
        for tile in 0..pieces.tiles() {
            let patch = Patch { sums, parts: pieces.of_tile(tile), column: n.start, columns: columns(n.start) };
            // SAFETY: everything stays inside the block, the panels, the sums and the target.
            unsafe {
                let mut spot = Spot::new(self, a, &all, Near::A, &patch, target);
                spot.tile.fetch = a.ptr.wrapping_add((tile + 1) * self.kernel.rows * a.row_stride);
                spot.tile.fetch_lines = lines;
                for column in n.clone().step_by(TILE_COLUMNS) {
                    if column > n.start {
                        spot.go_right(self.panel_bytes(), columns(column));
                        spot.tile.fetch = spot.tile.fetch.wrapping_add(part);
                    }
                    series.compute(&spot);
                }
            }
        }
    }

    /// # Safety
    /// As [`Product::block`].
    unsafe fn held_rows(&self, a: &Block, n: Range<usize>, sums: *mut f32, target: &Target, series: &mut Series) {
        let pieces = Pieces::new(a.lines, a.line_rows, &self.kernel);
        let (strips, tiles) = (n.len().div_ceil(TILE_COLUMNS), pieces.tiles());
        // Taps lie in the same pixels: all of them meet a strip of panels before the next strip comes. Of rows only a chunk is near: it
        // meets all strips.
        let taps = a.segments.len() > 1;
        let near = if taps { Near::A } else { Near::B };
        let chunks = Chunk::all(a, &self.kernel, self.number);
        let count = chunks.clone().count();
        let turn = |i: usize| {
            let (strip, chunk) = if taps { (i / count, i % count) } else { (i % strips, i / strips) };
            chunks.clone().nth(chunk).map(|chunk| (strip, chunk))
        };
        let fetch_lines = fetch_lines(tiles);
        for i in 0..strips * count {
            let Some((strip, chunk)) = turn(i) else { break };
            let column = n.start + strip * TILE_COLUMNS;
            let columns = TILE_COLUMNS.min(n.end - column);
            let next = turn(i + 1).unwrap_or((strip, chunk));
            // Sums that wait for the next chunk have a place each; else one place will do.
            let place = |tile: usize| {
                let place = match (count > 1, taps) {
                    (false, _) => 0,
                    (true, true) => tile,
                    (true, false) => strip * tiles + tile,
                };
                sums.wrapping_add(place * self.kernel.rows * TILE_COLUMNS)
            };
            let spot_of = |tile: usize| {
                let patch = Patch { sums: place(tile), parts: pieces.of_tile(tile), column, columns };
                // SAFETY: everything stays inside the block, the panels, the sums and the target.
                unsafe { Spot::new(self, a, &chunk, near, &patch, target) }
            };
            let mut spot = spot_of(0);
            for tile in 0..tiles {
                // SAFETY: as above.
                unsafe {
                    match tile {
                        0 => {}
                        _ if a.lines == 1 && tile + 1 < tiles => spot.go_down(self.kernel.rows, place(tile)),
                        _ => spot = spot_of(tile),
                    }
                    spot.tile.fetch = self.part(n.start + next.0 * TILE_COLUMNS, &next.1, tile, fetch_lines);
                    spot.tile.fetch_lines = fetch_lines;
                    series.compute(&spot);
                }
            }
        }
    }

    /// What a tile fetches while it works: a part of the two panels that come next, from a column and a chunk of `k` on. After the last
    /// panel the fetching has no effect.
    fn part(&self, column: usize, chunk: &Chunk, tile: usize, lines: usize) -> *const u8 {
        let bytes = |k: usize| k * PANEL * self.number.bytes();
        let panel = bytes(chunk.k * chunk.segments);
        let at = tile * lines * panel / 16;
        let (second, at) = (at / panel % 2, at % panel);
        self.panels.wrapping_add((column / PANEL + second) * self.panel_bytes() + bytes(chunk.done) + at)
    }
}
