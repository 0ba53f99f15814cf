//! Products with the matrix units of a device. A workgroup computes a tile of the result: it brings a piece of both factors into its
//! own memory, as 16-bit floats, and its subgroups multiply matrices from there while the next piece is on its way. Sums are of `f32`.
//!
//! Where a result has too few tiles for a large device, the sum over `k` is split among workgroups, and a second kernel adds up their parts.

use half::f16;
use impasto_graph::DType;
use impasto_kernel::{Accumulator, Builder, Kernel, KernelError, MatrixA, MatrixB, MatrixLayout, Val, Vec4};

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
const SHRINK: f32 = 1.0 / 64.0;

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
        if !left || gemm.right_type != DType::F16 {
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
        let room = self.tile.down * self.tile.across * self.units.shape[0] * self.units.shape[1];
        8 * (self.tile.rows * PITCH + rows * pitch) + 4 * room
    }

    fn elements(&self) -> u64 {
        u64::from(self.gemm.batch) * u64::from(self.gemm.m) * u64::from(self.gemm.n)
    }

    /// Bytes of the parts of sums, where they are split.
    pub(crate) fn scratch_bytes(&self) -> u64 {
        if self.splits == 1 { 0 } else { 4 * self.elements() * u64::from(self.splits) }
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

    /// What adds up the parts. Buffers: parts, then bias, residual and result as they are.
    pub(crate) fn finish(&self) -> Option<(Result<Kernel, KernelError>, [u32; 3])> {
        let g = &self.gemm;
        let vec4s = self.elements().div_ceil(u64::from(g.n)) * u64::from(g.n.div_ceil(4));
        let kernel = Builder::kernel("finish", [super::LINE, 1, 1], |k| {
            let parts = From4::new(k, "parts", DType::F32, g.n);
            let ending = Ending::new(k, g);
            let number = super::element(k, vec4s as u32);
            let (row, column) = (number / g.n.div_ceil(4), number % g.n.div_ceil(4) * 4u32);
            let left = k.lit(g.n) - column;
            let at = row * g.n + column;
            let sum = |i: u32| parts.at(k, at + i * self.elements() as u32, left);
            let sums = (1..self.splits).fold(sum(0), |all, i| {
                let more = sum(i);
                [0, 1, 2, 3].map(|j| all[j] + more[j])
            });
            ending.write(k, row, column, sums);
        });
        (self.splits > 1).then(|| (kernel, groups_of_lines(vec4s)))
    }

    /// The runs of the product: the factors, then bias, residual and result, and a place for parts of sums.
    pub(crate) fn runs(&self, factors: [Binding; 2], rest: Vec<Binding>, sums: Binding) -> Runs {
        let run = |kernel, bindings, groups| Run { kernel, bindings, groups };
        let Some((finish, groups)) = self.finish() else {
            let parts = factors.into_iter().chain(rest).collect();
            return Ok(vec![run(self.kernel()?, parts, self.groups())]);
        };
        let parts = factors.into_iter().chain([sums]).collect();
        let ends = [sums].into_iter().chain(rest).collect();
        Ok(vec![run(self.kernel()?, parts, self.groups()), run(finish?, ends, groups)])
    }

    fn write<'k, const M: usize, const N: usize, const K: usize>(&self, k: &'k Builder) {
        let (g, t) = (&self.gemm, self.tile);
        let shrink = if g.left_type == DType::F32 { SHRINK } else { 1.0 };
        let a = From4::new(k, "a", g.left_type, g.depth);
        // A tap of a window begins anywhere in a row of the right side.
        let b = From4::new(k, "b", g.right_type, if g.right_transposed { g.depth } else { g.n });
        let [down, across] = self.tiles();
        let number = piece(k);
        k.if_(number.ge(g.batch * self.splits * down * across), || k.return_());
        let (tile, rest) = (number % (down * across), number / (down * across));
        let (product, split) = (rest % g.batch, rest / g.batch);
        let (row0, column0) = (tile / across * t.rows, tile % across * t.columns);
        let thread = k.local_index();

        // The pieces of this part of the sum.
        let each = self.pieces_of_part();
        let first = split * each;
        let end = (first + each).min(self.pieces());
        let deep = g.depth.div_ceil(DEPTH);
        let tile_a = k.shared::<Vec4<f16>>("tile_a", t.rows * PITCH);
        let [b_rows, b_fours, b_pitch] = self.right();
        let tile_b = k.shared::<Vec4<f16>>("tile_b", b_rows * b_pitch);
        let ways = [
            Carried::new(thread, self.threads(), t.rows, DEPTH / 4, PITCH),
            Carried::new(thread, self.threads(), b_rows, b_fours, b_pitch),
        ];
        let none: Halves = k.vector([f16::ZERO; 4].map(|zero| k.lit(zero)));
        let fetch = |number: U<'k>, i: usize, at: (U<'k>, U<'k>)| -> Halves<'k> {
            let (segment, from) = (number / deep, number % deep * DEPTH);
            let (row, column) = at;
            let (start, inside, left) = match (i, g.right_transposed) {
                (0, _) => {
                    let (start, there) = g.place(k, product, row0 + row, segment);
                    let at = from + column * 4u32;
                    (start + at, there & at.lt(g.depth), k.lit(g.depth) - at)
                }
                (_, true) => {
                    let (n, at) = (column0 + row, from + column * 4u32);
                    let start = (product * g.n + n) * g.k() + segment * g.depth + at;
                    (start, n.lt(g.n) & at.lt(g.depth), k.lit(g.depth) - at)
                }
                (_, false) => {
                    let (n, at) = (column0 + column * 4u32, from + row);
                    let start = (product * g.k() + segment * g.depth + at) * g.n + n;
                    (start, n.lt(g.n) & at.lt(g.depth), k.lit(g.n) - n)
                }
            };
            let (source, scale) = if i == 0 { (a, shrink) } else { (b, 1.0) };
            k.if_value(inside, || source.halves(k, start, left, scale), || none)
        };

        let carried: Vec<Vec<_>> =
            (0..2).map(|i| ways[i].places().map(|at| k.var(fetch(first, i, at))).collect()).collect();
        let subgroup = k.subgroup_id();
        let (tall, wide) = (t.rows / t.down, t.columns / t.across);
        let (my_row, my_column) = (subgroup / t.across * tall, subgroup % t.across * wide);
        let (tall_n, wide_n) = (tall / M as u32, wide / N as u32);
        let sums: Vec<_> = (0..tall_n * wide_n).map(|_| k.var(k.matrix_fill::<Accumulator<f32, M, N>>(0.0))).collect();
        k.for_(first, end, |_, number| {
            // Nobody reads the piece before any more.
            k.barrier();
            for (i, tile) in [tile_a, tile_b].into_iter().enumerate() {
                ways[i].stored().zip(&carried[i]).for_each(|(at, held)| tile.store(at, held.get()));
            }
            k.barrier();
            let next = number + 1u32;
            k.if_(next.lt(end), || {
                for i in 0..2 {
                    ways[i].places().zip(&carried[i]).for_each(|(at, held)| held.set(fetch(next, i, at)));
                }
            });
            for step in 0..DEPTH / K as u32 {
                let from = step * K as u32;
                let left: Vec<Val<MatrixA<f16, M, K>>> = (0..tall_n)
                    .map(|i| {
                        let at = (my_row + i * M as u32) * PITCH + from / 4;
                        k.matrix_load(tile_a, at, PITCH, MatrixLayout::Row)
                    })
                    .collect();
                for j in 0..wide_n {
                    let column = my_column + j * N as u32;
                    let right: Val<MatrixB<f16, K, N>> = if g.right_transposed {
                        k.matrix_load(tile_b, column * b_pitch + from / 4, b_pitch, MatrixLayout::Column)
                    } else {
                        k.matrix_load(tile_b, column / 4u32 + from * b_pitch, b_pitch, MatrixLayout::Row)
                    };
                    for (i, &left) in (0..).zip(&left) {
                        let sum = sums[(i * wide_n + j) as usize];
                        sum.set(k.matrix_mul_add(left, right, sum.get()));
                    }
                }
            }
        });

        // Where an element of a matrix lies is the device's affair: sums go through memory, a matrix at a time.
        let ending = (self.splits == 1).then(|| Ending::new(k, g));
        let parts = (self.splits > 1).then(|| To4::new(k, "parts", DType::F32, g.n));
        let room = k.shared::<f32>("room", t.down * t.across * (M * N) as u32);
        let begin = subgroup * (M * N) as u32;
        let (lane, vec4s) = (k.subgroup_lane(), N as u32 / 4);
        for (number, sum) in (0u32..).zip(&sums) {
            let (i, j) = (number / wide_n * M as u32, number % wide_n * N as u32);
            k.matrix_store(room, begin, N as u32, MatrixLayout::Row, sum.get());
            k.subgroup_barrier();
            k.for_step(lane, M as u32 * vec4s, self.units.subgroup, |_, four| {
                let (row, column) = (row0 + my_row + i + four / vec4s, column0 + my_column + j + four % vec4s * 4u32);
                k.if_(row.lt(g.m) & column.lt(g.n), || {
                    let sums = [0, 1, 2, 3].map(|c| {
                        let sum = room.load(begin + four * 4u32 + c);
                        if shrink == 1.0 { sum } else { sum * (1.0 / shrink) }
                    });
                    let row = product * g.m + row;
                    match (&ending, parts) {
                        (Some(ending), _) => ending.write(k, row, column, sums),
                        (None, Some(parts)) => {
                            let at = (split * (g.batch * g.m) + row) * g.n + column;
                            parts.set(k, at, k.lit(g.n) - column, sums);
                        }
                        (None, None) => {}
                    }
                });
            });
            k.subgroup_barrier();
        }
    }
}

/// Where sums end.
struct Ending<'k> {
    gemm: Gemm,
    bias: Option<From4<'k>>,
    residual: Option<From4<'k>>,
    out: To4<'k>,
}

impl<'k> Ending<'k> {
    fn new(k: &'k Builder, g: &Gemm) -> Ending<'k> {
        let bias = g.bias.map(|bias| From4::new(k, "bias", bias.dtype, g.n));
        let residual = g.residual.map(|dtype| From4::new(k, "residual", dtype, g.n));
        Ending { gemm: *g, bias, residual, out: To4::new(k, "out", g.out, g.n) }
    }

    /// Four neighbours; `row` counts the rows of all products.
    fn write(&self, k: &'k Builder, row: U<'k>, column: U<'k>, sums: [F<'k>; 4]) {
        let g = &self.gemm;
        let (at, left) = (row * g.n + column, k.lit(g.n) - column);
        let bias = self.bias.map(|bias| bias.at(k, g.bias_place(k, row, column), left));
        let residual = self.residual.map(|residual| residual.at(k, at, left));
        let ended = |i: usize| g.ended(k, sums[i], bias.map(|b| b[i]), residual.map(|r| r[i]));
        self.out.set(k, at, left, [0, 1, 2, 3].map(ended));
    }
}

/// How the invocations of a workgroup share out the vec4s of a piece: neighbours take neighbours.
pub(super) struct Carried<'k> {
    thread: U<'k>,
    threads: u32,
    rows: u32,
    vec4s: u32,
    pitch: u32,
}

impl<'k> Carried<'k> {
    pub(super) fn new(thread: U<'k>, threads: u32, rows: u32, vec4s: u32, pitch: u32) -> Carried<'k> {
        Carried { thread, threads, rows, vec4s, pitch }
    }

    /// Row and four of each that this invocation carries.
    fn places(&self) -> impl Iterator<Item = (U<'k>, U<'k>)> {
        let (thread, vec4s, at_once) = (self.thread, self.vec4s, self.threads / self.vec4s);
        (0..(self.rows / at_once).max(1)).map(move |i| (thread / vec4s + i * at_once, thread % vec4s))
    }

    /// Does something for each four of the piece, which is at a row and a four of it and lies somewhere in the workgroup's memory.
    pub(super) fn each(&self, k: &'k Builder, act: impl Fn((U<'k>, U<'k>), U<'k>)) {
        k.for_step(self.thread, self.rows * self.vec4s, self.threads, |_, i| {
            let (row, four) = (i / self.vec4s, i % self.vec4s);
            act((row, four), row * self.pitch + four);
        });
    }

    /// Where they lie in the workgroup's memory.
    fn stored(&self) -> impl Iterator<Item = U<'k>> {
        let pitch = self.pitch;
        self.places().map(move |(row, four)| row * pitch + four)
    }
}

#[cfg(test)]
#[path = "matrices_tests.rs"]
mod tests;
