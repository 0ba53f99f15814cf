//! Products by warpgroups, as Hopper has them: copies bring tiles of both factors into the workgroup's memory some pieces of `k` ahead, and each
//! warpgroup multiplies from there while they are on their way. Sums are of `f32`, in registers.

use impasto_graph::DType;
use impasto_kernel::{
    Buf, BufMut, Builder, Kernel, KernelError, LeftTile, MatrixLayout, Scalar, Val, Var, Vec2, Vec4, WarpgroupProduct,
};

use super::super::{Binding, Runs};
use super::gemm::{Gemm, Left};
use super::matrices::{GemmEpilogue, SplitSums, Tiled, Units};
use super::vec4::{From4, To4};
use super::{F, U, gelu, groups, piece};
use crate::shapes::Window;

/// What a workgroup computes, and how many pieces of `k` its memory holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WarpgroupTile {
    rows: u32,
    columns: u32,
    stages: u32,
}

/// What a tile costs on a multiprocessor; measured on an H200, see `docs/cuda.md`.
struct TileCost {
    tile: WarpgroupTile,
    /// Workgroups that a multiprocessor holds at once.
    resident: u64,
    /// What it reaches of the peak alone, and with others beside it.
    alone: f64,
    together: f64,
    /// Cycles beside its products: to begin, and to write the result.
    overhead: f64,
}

const fn tile(
    [rows, columns, stages]: [u32; 3],
    resident: u64,
    [alone, together]: [f64; 2],
    overhead: f64,
) -> TileCost {
    TileCost { tile: WarpgroupTile { rows, columns, stages }, resident, alone, together, overhead }
}

const TILES: [TileCost; 8] = [
    tile([128, 256, 4], 1, [1.0, 1.0], 8000.0),
    tile([256, 128, 4], 1, [0.95, 0.95], 8000.0),
    tile([128, 192, 5], 1, [0.95, 0.95], 6500.0),
    tile([128, 160, 3], 2, [0.45, 0.75], 5000.0),
    tile([128, 160, 6], 1, [0.80, 0.80], 4000.0),
    tile([128, 128, 3], 2, [0.45, 0.68], 4400.0),
    tile([128, 64, 6], 1, [0.55, 0.55], 3000.0),
    tile([128, 32, 4], 2, [0.25, 0.35], 4000.0),
];

/// Of `k` at a time: a row of a tile, 128 bytes; and in units of 16 bytes, in which copies count.
const DEPTH: u32 = WarpgroupProduct::WIDTH;
const CHUNKS: u32 = 8;
/// Elements (of 8 bytes) of a row of a tile.
const PITCH: u32 = 16;
/// Rows of tiles that neighbouring workgroups compute together, so that they share what they read.
const BAND: u32 = 8;
/// Multiprocessors of a large device, and what one multiplies and adds in a cycle.
const MULTIPROCESSORS: u64 = 132;
const RATE: f64 = 2048.0;
/// Cycles for the second kernel of split sums, and for each element of a part that is written and read again.
const FINISH: f64 = 4000.0;
const FINISH_ELEMENT: f64 = 8.0 / 1800.0;
const MOST_SPLITS: u32 = 8;

/// The type of factors, if warpgroups multiply them.
pub(super) fn factor(dtype: DType) -> Option<Scalar> {
    match dtype {
        DType::F16 => Some(Scalar::F16),
        DType::BF16 => Some(Scalar::Bf16),
        _ => None,
    }
}

/// A product, cut into tiles for warpgroups.
#[derive(Clone, Copy)]
pub(crate) struct WarpgroupGemm {
    gemm: Gemm,
    tile: WarpgroupTile,
    splits: u32,
}

impl WarpgroupGemm {
    /// How to compute a product, if it can be: factors of 16 bits whose rows are whole units of 16 bytes.
    pub(crate) fn new(gemm: &Gemm) -> Option<WarpgroupGemm> {
        let halves = factor(gemm.right_type).is_some() && gemm.left_type == gemm.right_type;
        let right = gemm.right_transposed || gemm.n.is_multiple_of(8) && gemm.segments == 1 && !gemm.geglu;
        if !halves || !right || !gemm.depth.is_multiple_of(8) {
            return None;
        }
        let all = TILES.iter().flat_map(|cost| {
            let splits = (0..=MOST_SPLITS.ilog2()).map(|i| 1 << i).filter(|&s| s == 1 || !gemm.geglu);
            splits.map(move |splits| (WarpgroupGemm { gemm: *gemm, tile: cost.tile, splits }, cost))
        });
        // A right side that lies along its columns comes in blocks of 64 of them.
        let fits = |t: WarpgroupTile| gemm.right_transposed || t.columns.is_multiple_of(DEPTH);
        let whole = all.filter(|(g, _)| fits(g.tile) && (g.splits == 1 || g.pieces() / g.splits >= 4));
        let (mut best, _) = whole.min_by(|a, b| a.0.cycles(a.1).total_cmp(&b.0.cycles(b.1)))?;
        // No part without pieces.
        best.splits = best.pieces().div_ceil(best.pieces_of_part());
        Some(best)
    }

    /// About how many cycles it takes.
    fn cycles(&self, cost: &TileCost) -> f64 {
        let [down, across] = self.tiles().map(u64::from);
        let workgroups = down * across * u64::from(self.gemm.batch * self.splits);
        let of_one = workgroups.div_ceil(MULTIPROCESSORS);
        let share = if of_one == 1 { cost.alone } else { cost.together };
        let depth = f64::from(self.pieces_of_part() * DEPTH);
        let products = f64::from(self.tile.rows * self.tile.columns) * depth / RATE / share;
        let finish = match self.splits {
            1 => 0.0,
            splits => FINISH + FINISH_ELEMENT * f64::from(splits) * self.gemm.m as f64 * self.gemm.n as f64,
        };
        of_one as f64 * products + of_one.div_ceil(cost.resident) as f64 * cost.overhead + finish
    }

    /// Columns of the result that a workgroup computes.
    fn columns(&self) -> u32 {
        if self.gemm.geglu { self.tile.columns / 2 } else { self.tile.columns }
    }

    fn tiles(&self) -> [u32; 2] {
        [self.gemm.m.div_ceil(self.tile.rows), self.gemm.n.div_ceil(self.columns())]
    }

    fn pieces(&self) -> u32 {
        self.gemm.segments * self.gemm.depth.div_ceil(DEPTH)
    }

    fn pieces_of_part(&self) -> u32 {
        self.pieces().div_ceil(self.splits)
    }

    fn threads(&self) -> u32 {
        self.tile.rows / WarpgroupProduct::ROWS * WarpgroupProduct::INVOCATIONS
    }

    /// The parts of its sums.
    pub(crate) fn split(&self) -> SplitSums {
        SplitSums { gemm: self.gemm, splits: self.splits }
    }

    pub(crate) fn groups(&self) -> [u32; 3] {
        let [down, across] = self.tiles().map(u64::from);
        groups(u64::from(self.gemm.batch * self.splits) * down * across)
    }

    /// Buffers as those of the plain kernel; where sums are split: left, right, parts of sums.
    pub(crate) fn kernel(&self) -> Result<Kernel, KernelError> {
        Builder::kernel("warpgroup_gemm", [self.threads(), 1, 1], |k| self.write(k))
    }

    fn write(&self, k: &Builder) {
        let group = GemmWarpgroups::new(self, k);
        let ahead = self.tile.stages - 2;
        for i in 0..ahead {
            group.copy_piece(group.first + i);
        }
        k.for_(group.first, group.end, |_, number| {
            // This piece is there, and nobody reads the one before the last any more, which the next copy overwrites.
            k.async_wait(ahead - 1);
            k.barrier();
            group.multiply(number.gt(group.first));
            group.copy_piece(number + ahead);
            k.warpgroup_wait(1);
        });
        k.warpgroup_wait(0);
        // Nobody reads the tiles any more.
        k.barrier();
        let staged = StagedSums::new(k, group.tiles, self.tile.columns);
        staged.store(|i| group.sums.load(i));
        k.subgroup_barrier();
        group.write_results(&staged);
    }
}

/// What rows of the left side an invocation copies.
enum LeftRows<'k> {
    /// Where each begins.
    Rows(Vec<U<'k>>),
    /// Of each its picture's first pixel, and the pixel under the first tap of the window.
    Pixels(Window, Vec<[U<'k>; 3]>),
}

/// What a workgroup knows while the kernel is built.
struct GemmWarpgroups<'k> {
    k: &'k Builder,
    product: WarpgroupGemm,
    a: Buf<'k, Vec4<u32>>,
    b: Buf<'k, Vec4<u32>>,
    /// Tiles of both factors, a stage after the other; at the end a place for sums.
    tiles: BufMut<'k, Vec2<u32>>,
    sums: BufMut<'k, f32>,
    /// The number of the product, and of the part of its sums.
    number: U<'k>,
    split: U<'k>,
    /// The first row and column of the result's tile.
    row: U<'k>,
    column: U<'k>,
    /// The first piece of `k`, and the one after the last.
    first: U<'k>,
    end: U<'k>,
    /// The unit of 16 bytes of a row that this invocation copies, and the first of its rows.
    chunk: U<'k>,
    line: U<'k>,
    left: LeftRows<'k>,
    right: Vec<U<'k>>,
    /// Where the next piece to copy lies: units along the channels, those of the taps before, the tap's row and column.
    from: Var<'k, u32>,
    taps: Var<'k, u32>,
    tap: [Var<'k, u32>; 2],
    /// Where the next piece is copied to, and where the next one to multiply lies.
    to: Var<'k, u32>,
    at: Var<'k, u32>,
}

impl<'k> GemmWarpgroups<'k> {
    fn new(product: &WarpgroupGemm, k: &'k Builder) -> GemmWarpgroups<'k> {
        let (g, t) = (&product.gemm, product.tile);
        let (a, b) = (k.buffer::<Vec4<u32>>("a"), k.buffer::<Vec4<u32>>("b"));
        let [down, across] = product.tiles();
        let place = piece(k);
        k.if_(place.ge(g.batch * product.splits * down * across), || k.return_());
        let (tile, rest) = (place % (down * across), place / (down * across));
        let (number, split) = (rest % g.batch, rest / g.batch);
        let (band, within) = (tile / (BAND * across) * BAND, tile % (BAND * across));
        let height = if down.is_multiple_of(BAND) { k.lit(BAND) } else { (k.lit(down) - band).min(BAND) };
        let (row, column) = ((band + within % height) * t.rows, within / height * product.columns());

        let each = product.pieces_of_part();
        let first = split * each;
        let end = (first + each).min(product.pieces());
        let units = g.depth / 8;
        let deep = g.depth.div_ceil(DEPTH);
        let segment = first / deep;
        let across_taps = match g.left {
            Left::Window(w) => w.kernel[1] as u32,
            Left::Rows => 1,
        };
        let thread = k.local_index();
        let (chunk, line) = (thread % CHUNKS, thread / CHUNKS);
        let lines = product.threads() / CHUNKS;
        // What lies outside of a factor is computed with the last row, and not written.
        let rows = (0..t.rows / lines).map(|i| (row + line + i * lines).min(g.m - 1));
        let left = match g.left {
            Left::Rows => LeftRows::Rows(rows.map(|row| (number * g.m + row) * units + chunk).collect()),
            Left::Window(w) => LeftRows::Pixels(w, rows.map(|row| first_pixel(&w, row)).collect()),
        };
        let all = if g.geglu { 2 * g.n } else { g.n };
        let right = (0..t.columns / lines).map(|i| {
            let own = line + i * lines;
            if !g.right_transposed {
                // A row of `k` in a block of columns.
                let (block, deep) = (own / DEPTH, own % DEPTH);
                let across = ((column + block * DEPTH) / 8u32 + chunk).min(g.n / 8 - 1);
                return (number * g.depth + deep) * (g.n / 8) + across;
            }
            let inside = match g.geglu {
                false => (column + own).min(g.n - 1),
                true => {
                    let half = t.columns / 2;
                    let gate = own.ge(half);
                    let value = (column + gate.select(own - half, own)).min(g.n - 1);
                    gate.select(value + g.n, value)
                }
            };
            (number * all + inside) * (g.k() / 8) + chunk
        });
        GemmWarpgroups {
            k,
            product: *product,
            a,
            b,
            tiles: k.shared("tiles", t.stages * (t.rows + t.columns) * PITCH),
            sums: k.registers("sums", t.columns / 2),
            number,
            split,
            row,
            column,
            first,
            end,
            chunk,
            line,
            left,
            right: right.collect(),
            from: k.var(first % deep * CHUNKS),
            taps: k.var(segment * units),
            tap: [k.var(segment / across_taps), k.var(segment % across_taps)],
            to: k.var(0u32),
            at: k.var(0u32),
        }
    }

    /// The element after a stage, or the first one again.
    fn next_stage(&self, at: Var<'k, u32>) {
        let t = self.product.tile;
        let size = (t.rows + t.columns) * PITCH;
        let next = at.get() + size;
        at.set(next.eq(t.stages * size).select(self.k.lit(0u32), next));
    }

    /// Starts to copy the next piece, if there is one, and ends a group of copies.
    fn copy_piece(&self, number: U<'k>) {
        let (k, g, t) = (self.k, &self.product.gemm, self.product.tile);
        let lines = self.product.threads() / CHUNKS;
        k.if_(number.lt(self.end), || {
            let (from, units) = (self.from.get(), g.depth / 8);
            let whole = g.depth.is_multiple_of(DEPTH);
            let inside = if whole { k.lit(true) } else { (from + self.chunk).lt(units) };
            // Rows of tiles are swizzled; all of an invocation's rows have the same place in eight.
            let to = self.to.get() + self.line * PITCH + (self.chunk ^ (self.line % 8u32)) * 2u32;
            let place = |i: usize| to + i as u32 * lines * PITCH;
            match &self.left {
                LeftRows::Rows(rows) => {
                    for (i, &row) in rows.iter().enumerate() {
                        k.async_copy(self.tiles, place(i), self.a, row + from, inside);
                    }
                }
                LeftRows::Pixels(w, pixels) => {
                    for (i, &pixel) in pixels.iter().enumerate() {
                        let (at, there) = self.under_tap(w, pixel);
                        k.async_copy(self.tiles, place(i), self.a, at + from + self.chunk, inside & there);
                    }
                }
            }
            let right = to + t.rows * PITCH;
            for (i, &begin) in self.right.iter().enumerate() {
                let to = right + i as u32 * lines * PITCH;
                let (at, inside) = match g.right_transposed {
                    true => (begin + self.taps.get() + from, inside),
                    false if whole => (begin + from * g.n, inside),
                    false => {
                        let deep = from * 8u32 + (self.line + i as u32 * lines) % DEPTH;
                        (begin + from * g.n, deep.lt(g.depth))
                    }
                };
                k.async_copy(self.tiles, to, self.b, at, inside);
            }
            self.next_stage(self.to);
            self.next_units();
        });
        k.async_commit();
    }

    /// Goes on to the next piece of `k`.
    fn next_units(&self) {
        let (k, g) = (self.k, &self.product.gemm);
        let (next, units) = (self.from.get() + CHUNKS, g.depth / 8);
        if g.segments == 1 {
            return self.from.set(next);
        }
        let ends = next.ge(units);
        self.from.set(ends.select(k.lit(0u32), next));
        self.taps.set(ends.select(self.taps.get() + units, self.taps.get()));
        let Left::Window(w) = g.left else { return };
        let [row, column] = self.tap;
        let along = ends.select(column.get() + 1u32, column.get());
        let wraps = along.eq(w.kernel[1] as u32);
        column.set(wraps.select(k.lit(0u32), along));
        row.set(wraps.select(row.get() + 1u32, row.get()));
    }

    /// The units of 16 bytes before the pixel that lies under the tap, and whether there is one.
    fn under_tap(&self, w: &Window, [picture, y, x]: [U<'k>; 3]) -> (U<'k>, Val<'k, bool>) {
        let [height, width, channels, enlarged] = [w.height, w.width, w.channels, w.upsample].map(|n| n as u32);
        // Above and left of the image these wrap to numbers beyond its end.
        let (up, along) = (y + self.tap[0].get(), x + self.tap[1].get());
        let there = up.lt(height * enlarged) & along.lt(width * enlarged);
        ((picture + up / enlarged * width + along / enlarged) * (channels / 8), there)
    }

    /// Multiplies the next piece; the first one starts the sums.
    fn multiply(&self, adds: Val<'k, bool>) {
        let (k, t) = (self.k, self.product.tile);
        let warpgroup = k.local_index() / WarpgroupProduct::INVOCATIONS;
        let left = self.at.get() + warpgroup * (WarpgroupProduct::ROWS * PITCH);
        let right = self.at.get() + t.rows * PITCH;
        let (a, b) = (LeftTile::At(self.tiles, left), (self.tiles, right));
        let factor = factor(self.product.gemm.right_type).unwrap_or(Scalar::F16);
        let along_k = self.product.gemm.right_transposed;
        let layout = if along_k { MatrixLayout::Column } else { MatrixLayout::Row };
        k.warpgroup_mul_add(self.sums, a, b, [t.columns, 4], factor, layout, adds);
        self.next_stage(self.at);
    }

    /// Finishes the staged sums and writes them.
    fn write_results(&self, staged: &StagedSums<'k>) {
        let (k, g, columns) = (self.k, &self.product.gemm, self.product.columns());
        let to = match self.product {
            _ if g.geglu => Results::Gated(GatedEpilogue::new(k, g)),
            WarpgroupGemm { splits: 1, .. } => Results::Whole(GemmEpilogue::new(k, g)),
            _ => Results::Parts(To4::new(k, "parts", DType::F32, g.n)),
        };
        let lane = k.subgroup_lane();
        // Some at once, so that what each of them reads is on its way before the first is needed.
        let vec4s = columns / 4;
        let (each, at_once) = (16 * vec4s / 32, if g.geglu { 2 } else { 4 });
        k.for_(0u32, each / at_once, |_, turn| {
            for i in 0..at_once {
                let vec4 = (turn * at_once + i) * 32u32 + lane;
                let (own, along) = (vec4 / vec4s, vec4 % vec4s * 4u32);
                let (row, column) = (self.row + staged.first_row() + own, self.column + along);
                let write = || {
                    let row = self.number * g.m + row;
                    let sums = staged.load(own, along);
                    match &to {
                        Results::Whole(epilogue) => epilogue.write(k, row, column, sums),
                        Results::Gated(epilogue) => {
                            epilogue.write(k, row, column, sums, staged.load(own, along + columns));
                        }
                        Results::Parts(parts) => {
                            let at = (self.split * (g.batch * g.m) + row) * g.n + column;
                            parts.set(k, at, k.lit(g.n) - column, sums);
                        }
                    }
                };
                // Where all tiles are whole there is nothing to ask, and what is read comes at once.
                match g.m.is_multiple_of(self.product.tile.rows) && g.n.is_multiple_of(columns) {
                    true => write(),
                    false => k.if_(row.lt(g.m) & column.lt(g.n), write),
                }
            }
        });
    }
}

/// Sums on their way through memory, where a subgroup finds those of its 16 rows row by row. Only that subgroup reads what it stored.
pub(super) struct StagedSums<'k> {
    k: &'k Builder,
    memory: BufMut<'k, Vec2<u32>>,
    columns: u32,
}

impl<'k> StagedSums<'k> {
    /// Sums of so many columns, in memory that nobody reads any more.
    pub(super) fn new(k: &'k Builder, memory: BufMut<'k, Vec2<u32>>, columns: u32) -> StagedSums<'k> {
        StagedSums { k, memory, columns }
    }

    /// Elements (of two sums) of a row: four more than needed, so that rows lie in different banks.
    pub(super) fn pitch(columns: u32) -> u32 {
        columns.next_multiple_of(32) / 2 + 4
    }

    /// The first row of this subgroup.
    pub(super) fn first_row(&self) -> U<'k> {
        self.k.subgroup_id() * 16u32
    }

    /// Stores the sums of an invocation, by their number.
    pub(super) fn store(&self, sum: impl Fn(u32) -> F<'k>) {
        let (k, pitch) = (self.k, Self::pitch(self.columns));
        let lane = k.subgroup_lane();
        let begin = (self.first_row() + lane / 4u32) * pitch + lane % 4u32;
        for i in (0..self.columns / 2).step_by(2) {
            let [row, column] = WarpgroupProduct::place(0, i);
            let two = [0, 1].map(|j| sum(i + j).bits_as::<u32>());
            self.memory.store(begin + row * pitch + column / 2, k.vector(two));
        }
    }

    /// Four sums of one of the subgroup's rows, from a column on.
    pub(super) fn load(&self, row: U<'k>, column: U<'k>) -> [F<'k>; 4] {
        let at = (self.first_row() + row) * Self::pitch(self.columns) + column / 2u32;
        let [first, second] = [0u32, 1].map(|i| self.memory.load(at + i));
        [first.component(0), first.component(1), second.component(0), second.component(1)].map(|x| x.bits_as::<f32>())
    }
}

/// Of a row of the left side: the first pixel of its picture, and row and column of the pixel under the first tap. Where that is above or
/// left of the image, they wrap.
fn first_pixel<'k>(w: &Window, row: U<'k>) -> [U<'k>; 3] {
    let [out_height, out_width, stride] = [w.out_height, w.out_width, w.stride].map(|n| n as u32);
    let (picture, pixel) = (row / (out_height * out_width), row % (out_height * out_width));
    let y = pixel / out_width * stride - w.padding[0] as u32;
    let x = pixel % out_width * stride - w.padding[1] as u32;
    [picture * (w.height * w.width) as u32, y, x]
}

/// Where a workgroup writes its sums.
enum Results<'k, 'g> {
    Whole(GemmEpilogue<'k, 'g>),
    Gated(GatedEpilogue<'k, 'g>),
    /// Parts that are added up later.
    Parts(To4<'k>),
}

/// What becomes of values and their gates: bias, GEGLU and residual, and the result.
struct GatedEpilogue<'k, 'g> {
    gemm: &'g Gemm,
    bias: Option<From4<'k>>,
    residual: Option<From4<'k>>,
    out: To4<'k>,
}

impl<'k, 'g> GatedEpilogue<'k, 'g> {
    fn new(k: &'k Builder, g: &'g Gemm) -> Self {
        let bias = g.bias.map(|bias| From4::new(k, "bias", bias.dtype, g.n));
        let residual = g.residual.map(|dtype| From4::new(k, "residual", dtype, g.n));
        GatedEpilogue { gemm: g, bias, residual, out: To4::new(k, "out", g.out, g.n) }
    }

    fn write(&self, k: &'k Builder, row: U<'k>, column: U<'k>, values: [F<'k>; 4], gates: [F<'k>; 4]) {
        let g = self.gemm;
        let (at, left) = (row * g.n + column, k.lit(g.n) - column);
        // A bias for each picture has values and gates of one picture after the other.
        let picture = g.bias.and_then(|bias| bias.rows).map_or(k.lit(0u32), |rows| row / rows) * (2 * g.n);
        let shifted = |sums: [F<'k>; 4], half: u32| {
            let bias = self.bias.map(|bias| bias.at(k, picture + half + column, left));
            [0, 1, 2, 3].map(|i| {
                let scaled = if g.scale == 1.0 { sums[i] } else { sums[i] * g.scale };
                bias.map_or(scaled, |bias| scaled + bias[i])
            })
        };
        let (values, gates) = (shifted(values, 0), shifted(gates, g.n));
        let residual = self.residual.map(|residual| residual.at(k, at, left));
        let ended = |i: usize| {
            let gated = values[i] * gelu(k, gates[i]);
            residual.map_or(gated, |residual| gated + residual[i])
        };
        self.out.set(k, at, left, [0, 1, 2, 3].map(ended));
    }
}

/// A product by matrix units, in the way that suits the device and the product.
#[derive(Clone, Copy)]
pub(crate) enum MatrixProduct {
    Subgroups(Tiled),
    Warpgroups(WarpgroupGemm),
}

impl MatrixProduct {
    /// How to compute a product, if these units can.
    pub(crate) fn new(gemm: &Gemm, units: Units) -> Option<MatrixProduct> {
        let warpgroups = WarpgroupGemm::new(gemm).filter(|_| units.warpgroups).map(MatrixProduct::Warpgroups);
        warpgroups.or_else(|| Some(MatrixProduct::Subgroups(Tiled::new(gemm, units)?)))
    }

    fn split(&self) -> SplitSums {
        match self {
            MatrixProduct::Subgroups(tiled) => tiled.split(),
            MatrixProduct::Warpgroups(product) => product.split(),
        }
    }

    /// Bytes of the parts of sums, where they are split.
    pub(crate) fn scratch_bytes(&self) -> u64 {
        self.split().scratch_bytes()
    }

    /// The kernel that multiplies, and its workgroups.
    pub(crate) fn kernel(&self) -> Result<(Kernel, [u32; 3]), KernelError> {
        Ok(match self {
            MatrixProduct::Subgroups(tiled) => (tiled.kernel()?, tiled.groups()),
            MatrixProduct::Warpgroups(product) => (product.kernel()?, product.groups()),
        })
    }

    /// The runs of the product: the factors, then bias, residual and result, and a place for parts of sums.
    pub(crate) fn runs(&self, factors: [Binding; 2], rest: Vec<Binding>, sums: Binding) -> Runs {
        self.split().runs(self.kernel()?, factors, rest, sums)
    }
}
