//! Products with the matrix units of a device. A workgroup computes a tile of the result: it brings a piece of both factors into its
//! own memory, as 16-bit floats, and its subgroups multiply matrices from there while the next piece is on its way. Sums are of `f32`.
//!
//! Where a result has too few tiles for a large device, the sum over `k` is split among workgroups, and a second kernel adds up their parts.

use half::f16;
use impasto_graph::DType;
use impasto_kernel::{
    Accumulator, BufMut, Builder, Kernel, KernelError, MatrixA, MatrixB, MatrixLayout, Val, Var, Vec4,
};

use super::super::{Binding, Run, Runs};
use super::gemm::Gemm;
use super::vec4::{From4, Halves, To4};
use super::{F, U, groups, groups_of_lines, piece};

/// What a device multiplies: a subgroup of so many invocations makes (m, n) of (m, k) and (k, n).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Units {
    pub(crate) subgroup: u32,
    pub(crate) shape: [u32; 3],
    /// Bytes of memory that a workgroup has, and the invocations that it may have.
    pub(crate) shared: u32,
    pub(crate) invocations: u32,
    /// Whether four subgroups multiply together from the workgroup's memory.
    pub(crate) warpgroups: bool,
}

impl Units {
    /// The shapes that kernels are written for, the best first.
    pub(crate) const SHAPES: [[u32; 3]; 3] = [[16, 16, 16], [16, 8, 16], [8, 16, 16]];
}

/// What a workgroup computes, and how its subgroups lie in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tile {
    rows: u32,
    columns: u32,
    down: u32,
    across: u32,
}

const fn tile(rows: u32, columns: u32, down: u32, across: u32) -> Tile {
    Tile { rows, columns, down, across }
}

/// With what a tile of this size reaches of the speed of the largest.
const TILES: [(Tile, f64); 4] =
    [(tile(128, 128, 2, 4), 1.0), (tile(128, 64, 4, 2), 0.9), (tile(64, 64, 2, 2), 0.7), (tile(128, 32, 4, 1), 0.6)];

/// Of `k` at a time, and the vec4s of a row of it in the workgroup's memory: two more than needed, so that rows lie in different banks.
const DEPTH: u32 = 64;
const PITCH: u32 = DEPTH / 4 + 2;

/// Workgroups that a large device runs at once.
const AT_ONCE: u32 = 128;
/// The most parts that a sum is split into, and the fewest pieces of `k` that make a part.
const MOST_SPLITS: u32 = 16;
const FEWEST: u32 = 4;

/// Left factors that are 32-bit floats may be larger than halves can be: they are made smaller, and the sums larger again. What is lost are
/// digits of numbers below 1/256.
pub(crate) const LEFT_SCALE: f32 = 1.0 / 64.0;

/// A product, cut into tiles.
#[derive(Clone, Copy)]
pub(crate) struct Tiled {
    gemm: Gemm,
    units: Units,
    tile: Tile,
    splits: u32,
}

impl Tiled {
    /// How to compute a product with matrices, if it can be.
    pub(crate) fn new(gemm: &Gemm, units: Units) -> Option<Tiled> {
        let left = matches!(gemm.left_type, DType::F16 | DType::F32);
        if !left || gemm.right_type != DType::F16 || gemm.geglu {
            return None;
        }
        let count = |t: Tile| u64::from(gemm.batch) * u64::from(gemm.m.div_ceil(t.rows) * gemm.n.div_ceil(t.columns));
        let cost = |&(t, speed): &(Tile, f64)| {
            count(t).div_ceil(AT_ONCE.into()) as f64 * f64::from(t.rows * t.columns) / speed
        };
        let fits = |t: Tile| {
            let made = Tiled { gemm: *gemm, units, tile: t, splits: 1 };
            made.threads() <= units.invocations && made.shared_bytes() <= units.shared
        };
        let fitting = TILES.into_iter().filter(|(t, _)| fits(*t));
        let (tile, _) = fitting.min_by(|a, b| cost(a).total_cmp(&cost(b)))?;
        let mut tiled = Tiled { gemm: *gemm, units, tile, splits: 1 };
        while count(tile) * u64::from(2 * tiled.splits) <= 2 * u64::from(AT_ONCE)
            && tiled.splits < MOST_SPLITS
            && tiled.pieces() / (2 * tiled.splits) >= FEWEST
        {
            tiled.splits *= 2;
        }
        // No part without pieces, which would begin after the end of the factors.
        tiled.splits = tiled.pieces().div_ceil(tiled.pieces_of_part());
        Some(tiled)
    }

    /// Pieces of `k`.
    fn pieces(&self) -> u32 {
        self.gemm.segments * self.gemm.depth.div_ceil(DEPTH)
    }

    /// Pieces of `k` that one part of a sum takes, or what is left of them.
    fn pieces_of_part(&self) -> u32 {
        self.pieces().div_ceil(self.splits)
    }

    fn tiles(&self) -> [u32; 2] {
        [self.gemm.m.div_ceil(self.tile.rows), self.gemm.n.div_ceil(self.tile.columns)]
    }

    fn threads(&self) -> u32 {
        self.units.subgroup * self.tile.down * self.tile.across
    }

    /// Rows, vec4s of a row, and from one row to the next, of the right factor in the workgroup's memory.
    fn right(&self) -> [u32; 3] {
        let columns = self.tile.columns;
        let [rows, vec4s] = if self.gemm.right_transposed { [columns, DEPTH / 4] } else { [DEPTH, columns / 4] };
        [rows, vec4s, vec4s + 2]
    }

    fn shared_bytes(&self) -> u32 {
        let [rows, _, pitch] = self.right();
        let staging = self.tile.down * self.tile.across * self.units.shape[0] * self.units.shape[1];
        8 * (self.tile.rows * PITCH + rows * pitch) + 4 * staging
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
        Builder::kernel("matrix_gemm", [self.threads(), 1, 1], |k| match self.units.shape {
            [16, 8, 16] => self.write::<16, 8, 16>(k),
            [8, 16, 16] => self.write::<8, 16, 16>(k),
            _ => self.write::<16, 16, 16>(k),
        })
    }

    fn write<const M: usize, const N: usize, const K: usize>(&self, k: &Builder) {
        let group = GemmWorkgroup::new(self, k);
        let staging = group.fetch_first();
        let subgroup = GemmSubgroup::<M, N>::new(self, k);
        k.for_(group.first, group.end, |_, number| {
            // Nobody reads the piece before any more.
            k.barrier();
            group.store_tiles(&staging);
            k.barrier();
            group.fetch_next(number, &staging);
            for step in 0..DEPTH / K as u32 {
                subgroup.multiply::<K>(&group, step * K as u32);
            }
        });
        group.write_sums(&subgroup);
    }

    /// What the left factor is multiplied with on its way to halves.
    fn left_scale(&self) -> f32 {
        if self.gemm.left_type == DType::F32 { LEFT_SCALE } else { 1.0 }
    }
}

/// The sums of a product that workgroups share out: each adds up a part, and a second kernel adds up the parts.
#[derive(Clone, Copy)]
pub(crate) struct SplitSums {
    pub(super) gemm: Gemm,
    pub(super) splits: u32,
}

impl SplitSums {
    fn elements(&self) -> u64 {
        u64::from(self.gemm.batch) * u64::from(self.gemm.m) * u64::from(self.gemm.n)
    }

    /// Bytes of the parts, where there are several.
    pub(crate) fn scratch_bytes(&self) -> u64 {
        if self.splits == 1 { 0 } else { 4 * self.elements() * u64::from(self.splits) }
    }

    /// What adds up the parts. Buffers: parts, then bias, residual and result as they are.
    pub(crate) fn finish(&self) -> Option<(Result<Kernel, KernelError>, [u32; 3])> {
        let g = &self.gemm;
        let vec4s = self.elements().div_ceil(u64::from(g.n)) * u64::from(g.n.div_ceil(4));
        let kernel = Builder::kernel("finish", [super::LINE, 1, 1], |k| {
            let parts = From4::new(k, "parts", DType::F32, g.n);
            let epilogue = GemmEpilogue::new(k, g);
            let number = super::element(k, vec4s as u32);
            let (row, column) = (number / g.n.div_ceil(4), number % g.n.div_ceil(4) * 4u32);
            let left = k.lit(g.n) - column;
            let at = row * g.n + column;
            let sum = |i: u32| parts.at(k, at + i * self.elements() as u32, left);
            let sums = (1..self.splits).fold(sum(0), |all, i| {
                let more = sum(i);
                [0, 1, 2, 3].map(|j| all[j] + more[j])
            });
            epilogue.write(k, row, column, sums);
        });
        (self.splits > 1).then(|| (kernel, groups_of_lines(vec4s)))
    }

    /// The runs of a product by this kernel: the factors, then bias, residual and result, and a place for parts of sums.
    pub(crate) fn runs(
        &self,
        (kernel, groups): (Kernel, [u32; 3]),
        factors: [Binding; 2],
        rest: Vec<Binding>,
        sums: Binding,
    ) -> Runs {
        let Some((finish, finish_groups)) = self.finish() else {
            return Ok(vec![Run { kernel, bindings: factors.into_iter().chain(rest).collect(), groups }]);
        };
        let parts = factors.into_iter().chain([sums]).collect();
        let ends = [sums].into_iter().chain(rest).collect();
        Ok(vec![
            Run { kernel, bindings: parts, groups },
            Run { kernel: finish?, bindings: ends, groups: finish_groups },
        ])
    }
}

/// A factor of the product.
#[derive(Clone, Copy)]
enum Side {
    Left,
    Right,
}

/// Where a factor is read, and the tile of it in the workgroup's memory.
struct GemmOperand<'k> {
    source: From4<'k>,
    scale: f32,
    tile: BufMut<'k, Vec4<f16>>,
    loader: TileLoader<'k>,
}

/// The vec4s of both factors that an invocation has fetched and not yet stored.
type Staging<'k> = [Vec<Var<'k, Vec4<f16>>>; 2];

/// What a workgroup knows while the kernel is built: the tile of the result that it computes, and its tiles of the factors.
struct GemmWorkgroup<'k> {
    k: &'k Builder,
    tiled: Tiled,
    /// The product of the batch, and the part of its sum.
    product: U<'k>,
    split: U<'k>,
    /// The first row and column of the tile.
    row: U<'k>,
    column: U<'k>,
    /// The first piece of `k` of this part, and the first after it.
    first: U<'k>,
    end: U<'k>,
    left: GemmOperand<'k>,
    right: GemmOperand<'k>,
    zeros: Halves<'k>,
}

impl<'k> GemmWorkgroup<'k> {
    fn new(tiled: &Tiled, k: &'k Builder) -> GemmWorkgroup<'k> {
        let (g, t) = (&tiled.gemm, tiled.tile);
        let a = From4::new(k, "a", g.left_type, g.depth);
        // A tap of a window begins anywhere in a row of the right side.
        let b = From4::new(k, "b", g.right_type, if g.right_transposed { g.depth } else { g.n });
        let [down, across] = tiled.tiles();
        let number = piece(k);
        k.if_(number.ge(g.batch * tiled.splits * down * across), || k.return_());
        let (tile, rest) = (number % (down * across), number / (down * across));
        let (product, split) = (rest % g.batch, rest / g.batch);
        let (row, column) = (tile / across * t.rows, tile % across * t.columns);
        let thread = k.local_index();

        let each = tiled.pieces_of_part();
        let first = split * each;
        let end = (first + each).min(tiled.pieces());
        let operand = |name: &str, source: From4<'k>, scale: f32, [rows, vec4s, pitch]: [u32; 3]| GemmOperand {
            source,
            scale,
            tile: k.shared(name, rows * pitch),
            loader: TileLoader::new(thread, tiled.threads(), rows, vec4s, pitch),
        };
        let left = operand("tile_a", a, tiled.left_scale(), [t.rows, DEPTH / 4, PITCH]);
        let right = operand("tile_b", b, 1.0, tiled.right());
        let zeros = k.vector([f16::ZERO; 4].map(|zero| k.lit(zero)));
        GemmWorkgroup { k, tiled: *tiled, product, split, row, column, first, end, left, right, zeros }
    }

    fn operand(&self, side: Side) -> &GemmOperand<'k> {
        match side {
            Side::Left => &self.left,
            Side::Right => &self.right,
        }
    }

    /// One vec4 of a piece of `k`, at a row and a vec4 of the tile; zeros outside of the factor.
    fn fetch(&self, piece: U<'k>, side: Side, at: (U<'k>, U<'k>)) -> Halves<'k> {
        let (k, g, product) = (self.k, &self.tiled.gemm, self.product);
        let deep = g.depth.div_ceil(DEPTH);
        let (segment, from) = (piece / deep, piece % deep * DEPTH);
        let (row, column) = at;
        let (start, inside, remaining) = match (side, g.right_transposed) {
            (Side::Left, _) => {
                let (start, there) = g.place(k, product, self.row + row, segment);
                let at = from + column * 4u32;
                (start + at, there & at.lt(g.depth), k.lit(g.depth) - at)
            }
            (Side::Right, true) => {
                let (n, at) = (self.column + row, from + column * 4u32);
                let start = (product * g.n + n) * g.k() + segment * g.depth + at;
                (start, n.lt(g.n) & at.lt(g.depth), k.lit(g.depth) - at)
            }
            (Side::Right, false) => {
                let (n, at) = (self.column + column * 4u32, from + row);
                let start = (product * g.k() + segment * g.depth + at) * g.n + n;
                (start, n.lt(g.n) & at.lt(g.depth), k.lit(g.n) - n)
            }
        };
        let operand = self.operand(side);
        k.if_value(inside, || operand.source.halves(k, start, remaining, operand.scale), || self.zeros)
    }

    /// Fetches the first piece of both factors.
    fn fetch_first(&self) -> Staging<'k> {
        [Side::Left, Side::Right].map(|side| {
            let places = self.operand(side).loader.places();
            places.map(|at| self.k.var(self.fetch(self.first, side, at))).collect()
        })
    }

    /// Fetches the piece after this one, where there is one.
    fn fetch_next(&self, piece: U<'k>, staging: &Staging<'k>) {
        let next = piece + 1u32;
        self.k.if_(next.lt(self.end), || {
            for (side, staged) in [Side::Left, Side::Right].into_iter().zip(staging) {
                let places = self.operand(side).loader.places();
                places.zip(staged).for_each(|(at, vec4)| vec4.set(self.fetch(next, side, at)));
            }
        });
    }

    /// Stores what was fetched in the tiles.
    fn store_tiles(&self, staging: &Staging<'k>) {
        for (operand, staged) in [&self.left, &self.right].into_iter().zip(staging) {
            operand.loader.stored().zip(staged).for_each(|(at, vec4)| operand.tile.store(at, vec4.get()));
        }
    }

    /// Writes the sums of a subgroup. Where an element of a matrix lies is the device's affair: sums go through memory, a matrix at a time.
    fn write_sums<const M: usize, const N: usize>(&self, subgroup: &GemmSubgroup<'k, M, N>) {
        let (k, g, t) = (self.k, &self.tiled.gemm, self.tiled.tile);
        let to = match self.tiled.splits {
            1 => Destination::Result(GemmEpilogue::new(k, g)),
            _ => Destination::Parts(To4::new(k, "parts", DType::F32, g.n)),
        };
        let staging = k.shared::<f32>("room", t.down * t.across * (M * N) as u32);
        let begin = subgroup.id * (M * N) as u32;
        let (lane, vec4s) = (k.subgroup_lane(), N as u32 / 4);
        for (number, sum) in (0u32..).zip(&subgroup.sums) {
            let (i, j) = (number / subgroup.across * M as u32, number % subgroup.across * N as u32);
            k.matrix_store(staging, begin, N as u32, MatrixLayout::Row, sum.get());
            k.subgroup_barrier();
            k.for_step(lane, M as u32 * vec4s, self.tiled.units.subgroup, |_, vec4| {
                let row = self.row + subgroup.row + i + vec4 / vec4s;
                let column = self.column + subgroup.column + j + vec4 % vec4s * 4u32;
                k.if_(row.lt(g.m) & column.lt(g.n), || {
                    let scale = self.tiled.left_scale();
                    let sums = [0, 1, 2, 3].map(|c| {
                        let sum = staging.load(begin + vec4 * 4u32 + c);
                        if scale == 1.0 { sum } else { sum * (1.0 / scale) }
                    });
                    self.write_vec4(&to, row, column, sums);
                });
            });
            k.subgroup_barrier();
        }
    }

    /// Writes four neighbours of the product's result, or of a part of its sums.
    fn write_vec4(&self, to: &Destination<'k, '_>, row: U<'k>, column: U<'k>, sums: [F<'k>; 4]) {
        let (k, g) = (self.k, &self.tiled.gemm);
        let row = self.product * g.m + row;
        match to {
            Destination::Result(epilogue) => epilogue.write(k, row, column, sums),
            Destination::Parts(parts) => {
                let at = (self.split * (g.batch * g.m) + row) * g.n + column;
                parts.set(k, at, k.lit(g.n) - column, sums);
            }
        }
    }
}

/// What a subgroup computes of its workgroup's tile.
struct GemmSubgroup<'k, const M: usize, const N: usize> {
    id: U<'k>,
    /// Where its first row and column lie in the tile.
    row: U<'k>,
    column: U<'k>,
    /// Matrices below and beside each other.
    down: u32,
    across: u32,
    /// The matrices, row by row.
    sums: Vec<Var<'k, Accumulator<f32, M, N>>>,
}

impl<'k, const M: usize, const N: usize> GemmSubgroup<'k, M, N> {
    fn new(tiled: &Tiled, k: &'k Builder) -> Self {
        let (id, t) = (k.subgroup_id(), tiled.tile);
        let (tall, wide) = (t.rows / t.down, t.columns / t.across);
        let (row, column) = (id / t.across * tall, id % t.across * wide);
        let (down, across) = (tall / M as u32, wide / N as u32);
        let sums = (0..down * across).map(|_| k.var(k.matrix_fill::<Accumulator<f32, M, N>>(0.0))).collect();
        GemmSubgroup { id, row, column, down, across, sums }
    }

    /// Adds the product of the tiles' elements of `k` from here on, as many as a matrix has.
    fn multiply<const K: usize>(&self, group: &GemmWorkgroup<'k>, from: u32) {
        let (k, [_, _, pitch]) = (group.k, group.tiled.right());
        let (tile_a, tile_b) = (group.left.tile, group.right.tile);
        let left: Vec<Val<MatrixA<f16, M, K>>> = (0..self.down)
            .map(|i| {
                let at = (self.row + i * M as u32) * PITCH + from / 4;
                k.matrix_load(tile_a, at, PITCH, MatrixLayout::Row)
            })
            .collect();
        for j in 0..self.across {
            let column = self.column + j * N as u32;
            let right: Val<MatrixB<f16, K, N>> = if group.tiled.gemm.right_transposed {
                k.matrix_load(tile_b, column * pitch + from / 4, pitch, MatrixLayout::Column)
            } else {
                k.matrix_load(tile_b, column / 4u32 + from * pitch, pitch, MatrixLayout::Row)
            };
            for (i, &left) in (0..).zip(&left) {
                let sum = self.sums[(i * self.across + j) as usize];
                sum.set(k.matrix_mul_add(left, right, sum.get()));
            }
        }
    }
}

/// Where a workgroup writes its sums.
enum Destination<'k, 'g> {
    Result(GemmEpilogue<'k, 'g>),
    /// Parts that [`Tiled::finish`] adds up.
    Parts(To4<'k>),
}

/// What becomes of whole sums: bias, activation and residual, and the result.
pub(super) struct GemmEpilogue<'k, 'g> {
    gemm: &'g Gemm,
    bias: Option<From4<'k>>,
    residual: Option<From4<'k>>,
    out: To4<'k>,
}

impl<'k, 'g> GemmEpilogue<'k, 'g> {
    pub(super) fn new(k: &'k Builder, g: &'g Gemm) -> Self {
        let bias = g.bias.map(|bias| From4::new(k, "bias", bias.dtype, g.n));
        let residual = g.residual.map(|dtype| From4::new(k, "residual", dtype, g.n));
        GemmEpilogue { gemm: g, bias, residual, out: To4::new(k, "out", g.out, g.n) }
    }

    /// Four neighbours; `row` counts the rows of all products.
    pub(super) fn write(&self, k: &'k Builder, row: U<'k>, column: U<'k>, sums: [F<'k>; 4]) {
        let g = self.gemm;
        let (at, left) = (row * g.n + column, k.lit(g.n) - column);
        let bias = self.bias.map(|bias| bias.at(k, g.bias_place(k, row, column), left));
        let residual = self.residual.map(|residual| residual.at(k, at, left));
        let ended = |i: usize| g.ended(k, sums[i], bias.map(|b| b[i]), residual.map(|r| r[i]));
        self.out.set(k, at, left, [0, 1, 2, 3].map(ended));
    }
}

/// How the invocations of a workgroup share out the vec4s of a tile that is loaded: neighbours take neighbours.
pub(super) struct TileLoader<'k> {
    thread: U<'k>,
    threads: u32,
    rows: u32,
    vec4s: u32,
    pitch: u32,
}

impl<'k> TileLoader<'k> {
    pub(super) fn new(thread: U<'k>, threads: u32, rows: u32, vec4s: u32, pitch: u32) -> TileLoader<'k> {
        TileLoader { thread, threads, rows, vec4s, pitch }
    }

    /// Row and vec4 of each that this invocation loads.
    fn places(&self) -> impl Iterator<Item = (U<'k>, U<'k>)> {
        let (thread, vec4s, at_once) = (self.thread, self.vec4s, self.threads / self.vec4s);
        (0..(self.rows / at_once).max(1)).map(move |i| (thread / vec4s + i * at_once, thread % vec4s))
    }

    /// Does something for each vec4 of the tile: given its row and its place in that, and where it lies in the workgroup's memory.
    pub(super) fn each(&self, k: &'k Builder, act: impl Fn((U<'k>, U<'k>), U<'k>)) {
        k.for_step(self.thread, self.rows * self.vec4s, self.threads, |_, i| {
            let (row, vec4) = (i / self.vec4s, i % self.vec4s);
            act((row, vec4), row * self.pitch + vec4);
        });
    }

    /// Where they lie in the workgroup's memory.
    fn stored(&self) -> impl Iterator<Item = U<'k>> {
        let pitch = self.pitch;
        self.places().map(move |(row, vec4)| row * pitch + vec4)
    }
}

#[cfg(test)]
#[path = "matrices_tests.rs"]
mod tests;
