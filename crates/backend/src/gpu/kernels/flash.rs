//! Attention with the matrix units of a device, and a running softmax. Each subgroup takes a few queries through blocks of keys that its
//! workgroup brings in: scores by matrices, through memory to the lanes that make weights of them, back as matrices onto the values.

use half::f16;
use impasto_graph::DType;
use impasto_kernel::{Accumulator, Builder, Kernel, KernelError, MatrixA, MatrixB, MatrixLayout, Val, Vec4};

use super::matrices::{Carried, Units};
use super::vec4::{From4, Halves, To4};
use super::{U, groups, piece};
use crate::shapes::Heads;

/// Attention, cut into blocks.
#[derive(Clone, Copy)]
pub(crate) struct Flash {
    heads: Heads,
    units: Units,
    /// Subgroups of a workgroup, each with as many queries as a matrix has rows.
    subgroups: u32,
    /// Keys of a block.
    block: u32,
}

impl Flash {
    /// How to compute attention with matrices, if it can be.
    pub(crate) fn new(heads: &Heads, types: [DType; 3], units: Units) -> Option<Flash> {
        let wide = heads.width.max(heads.value_width);
        let vec4s = heads.width.is_multiple_of(4) && heads.value_width.is_multiple_of(4);
        if types != [DType::F16; 3] || heads.causal || wide > 160 || !vec4s || units.subgroup < units.shape[0] {
            return None;
        }
        let sizes = [(4, 64), (4, 32), (2, 32), (1, 32)];
        let all = sizes.map(|(subgroups, block)| Flash { heads: *heads, units, subgroups, block });
        all.into_iter().find(|f| f.shared_bytes() <= units.shared)
    }

    /// Queries of a workgroup.
    fn queries(&self) -> u32 {
        self.subgroups * self.units.shape[0]
    }

    fn threads(&self) -> u32 {
        self.subgroups * self.units.subgroup
    }

    /// Widths of queries and of values, as whole matrices.
    fn widths(&self) -> [u32; 2] {
        let [_, n, k] = self.units.shape;
        [(self.heads.width as u32).next_multiple_of(k), (self.heads.value_width as u32).next_multiple_of(n)]
    }

    /// From one row of scores, and of weights, to the next: more than needed, so that rows lie in different banks.
    fn pitches(&self) -> [u32; 2] {
        [self.block + 4, self.block + 8]
    }

    fn shared_bytes(&self) -> u32 {
        let [wide, values] = self.widths();
        let rows = self.block.max(self.queries());
        let tiles = 8 * (rows * (wide / 4 + 2) + self.block * (values / 4 + 2));
        let [scores, weights] = self.pitches();
        tiles + self.queries() * (4 * scores + 2 * weights + 4)
    }

    fn blocks(&self) -> u32 {
        let h = &self.heads;
        (h.batch * h.heads) as u32 * (h.queries as u32).div_ceil(self.queries())
    }

    pub(crate) fn groups(&self) -> [u32; 3] {
        groups(self.blocks().into())
    }

    /// Buffers: queries, keys, values, result.
    pub(crate) fn kernel(&self, to: DType) -> Result<Kernel, KernelError> {
        Builder::kernel("flash", [self.threads(), 1, 1], |k| match self.units.shape {
            [16, 8, 16] => self.write::<16, 8, 16>(k, to),
            [8, 16, 16] => self.write::<8, 16, 16>(k, to),
            _ => self.write::<16, 16, 16>(k, to),
        })
    }

    fn write<'k, const M: usize, const N: usize, const K: usize>(&self, k: &'k Builder, to: DType) {
        let h = &self.heads;
        let [heads, queries, seen, width, value_width] =
            [h.heads, h.queries, h.keys, h.width, h.value_width].map(|n| n as u32);
        let [q, keys, values] =
            ["q", "k", "v"].map(|name| From4::new(k, name, DType::F16, if name == "v" { value_width } else { width }));
        let out = To4::new(k, "out", to, value_width);
        let number = piece(k);
        k.if_(number.ge(self.blocks()), || k.return_());
        let per_head = queries.div_ceil(self.queries());
        let first = number % per_head * self.queries();
        let (head, picture) = (number / per_head % heads, number / (per_head * heads));
        let thread = k.local_index();

        let [wide, wide_v] = self.widths();
        let [pitch, pitch_v] = [wide / 4 + 2, wide_v / 4 + 2];
        let tile = k.shared::<Vec4<f16>>("tile", self.block.max(self.queries()) * pitch);
        let tile_v = k.shared::<Vec4<f16>>("tile_v", self.block * pitch_v);
        let none: Halves = k.vector([f16::ZERO; 4].map(|zero| k.lit(zero)));
        let fetch = |from: From4<'k>, at: (U<'k>, U<'k>), start: U<'k>, tokens: u32, w: u32| -> Halves<'k> {
            let (token, column) = (start + at.0, at.1 * 4u32);
            let place = ((picture * tokens + token) * heads + head) * w + column;
            k.if_value(token.lt(tokens) & column.lt(w), || from.halves(k, place, k.lit(4u32), 1.0), || none)
        };

        // The queries pass through the place of the keys once; then the subgroup holds its own.
        let way_q = Carried::new(thread, self.threads(), self.queries(), wide / 4, pitch);
        way_q.each(k, |at, to| tile.store(to, fetch(q, at, first, queries, width)));
        k.barrier();
        let subgroup = k.subgroup_id();
        let mine: Vec<Val<MatrixA<f16, M, K>>> = (0..wide / K as u32)
            .map(|i| k.matrix_load(tile, subgroup * (M as u32 * pitch) + i * K as u32 / 4, pitch, MatrixLayout::Row))
            .collect();

        let [score_pitch, weight_pitch] = self.pitches();
        let scores = k.shared::<f32>("scores", self.queries() * score_pitch);
        let weights = k.shared::<f16>("weights", self.queries() * weight_pitch);
        let factors = k.shared::<f32>("factors", self.queries());
        let (my_scores, my_weights) = (subgroup * (M as u32 * score_pitch), subgroup * (M as u32 * weight_pitch));
        // Some lanes share a row, of which each has every so-manyth element.
        let share = self.units.subgroup / M as u32;
        let lane = k.subgroup_lane();
        let (row, part) = (lane / share, lane % share);
        let together = |own: Val<'k, f32>, f: &dyn Fn(Val<'k, f32>, Val<'k, f32>) -> Val<'k, f32>| {
            let steps = (0..share.ilog2()).map(|i| 1 << i);
            steps.fold(own, |own, distance: u32| f(own, own.subgroup_shuffle_xor(distance)))
        };
        let by_row = |x: Val<'k, f32>| -> Val<'k, Accumulator<f32, M, N>> {
            k.if_(part.eq(0), || factors.store(subgroup * M as u32 + row, x));
            k.subgroup_barrier();
            // Without a distance from column to column, every column is the same.
            k.matrix_load(factors, subgroup * M as u32, 0u32, MatrixLayout::Column)
        };
        let (most, total) = (k.var(f32::MIN), k.var(0f32));
        let sums: Vec<_> =
            (0..wide_v / N as u32).map(|_| k.var(k.matrix_fill::<Accumulator<f32, M, N>>(0.0))).collect();
        let way_k = Carried::new(thread, self.threads(), self.block, wide / 4, pitch);
        let way_v = Carried::new(thread, self.threads(), self.block, wide_v / 4, pitch_v);
        k.for_step(0u32, seen, self.block, |_, from| {
            // Nobody reads the block before any more.
            k.barrier();
            way_k.each(k, |at, to| tile.store(to, fetch(keys, at, from, seen, width)));
            way_v.each(k, |at, to| tile_v.store(to, fetch(values, at, from, seen, value_width)));
            k.barrier();
            for j in 0..self.block / N as u32 {
                let dot = mine.iter().zip(0u32..).fold(k.matrix_fill::<Accumulator<f32, M, N>>(0.0), |dot, (&q, i)| {
                    let at = k.lit(j * N as u32 * pitch + i * K as u32 / 4);
                    let key: Val<MatrixB<f16, K, N>> = k.matrix_load(tile, at, pitch, MatrixLayout::Column);
                    k.matrix_mul_add(q, key, dot)
                });
                k.matrix_store(scores, my_scores + j * N as u32, score_pitch, MatrixLayout::Row, dot);
            }
            k.subgroup_barrier();
            let columns: Vec<U<'k>> = (0..self.block / share).map(|i| part + i * share).collect();
            let own: Vec<Val<f32>> = columns
                .iter()
                .map(|&column| {
                    let score = scores.load(my_scores + row * score_pitch + column) * h.scale;
                    match seen.is_multiple_of(self.block) {
                        true => score,
                        false => (from + column).lt(seen).select(score, f32::MIN),
                    }
                })
                .collect();
            let largest = own[1..].iter().fold(own[0], |a, &b| a.max(b));
            let now = together(largest, &|a, b| a.max(b)).max(most.get());
            let shrink = (most.get() - now).exp();
            most.set(now);
            let mut sum = k.lit(0f32);
            for (&column, &score) in columns.iter().zip(&own) {
                // What is not there is infinitely far below.
                let weight = (score - now).exp();
                weights.store(my_weights + row * weight_pitch + column, weight.to::<f16>());
                sum = sum + weight;
            }
            total.set(total.get() * shrink + sum);
            let shrink = by_row(shrink);
            for sum in &sums {
                sum.set(sum.get().times(shrink));
            }
            for i in 0..self.block / K as u32 {
                let at = my_weights + i * K as u32;
                let weight: Val<MatrixA<f16, M, K>> = k.matrix_load(weights, at, weight_pitch, MatrixLayout::Row);
                for (j, sum) in (0u32..).zip(&sums) {
                    let at = k.lit(i * K as u32 * pitch_v + j * N as u32 / 4);
                    let value: Val<MatrixB<f16, K, N>> = k.matrix_load(tile_v, at, pitch_v, MatrixLayout::Row);
                    sum.set(k.matrix_mul_add(weight, value, sum.get()));
                }
            }
        });
        // Nobody reads the factors before any more.
        k.subgroup_barrier();
        let share_of_all = by_row(k.lit(1f32) / together(total.get(), &|a, b| a + b));
        for (j, sum) in (0u32..).zip(&sums) {
            k.matrix_store(scores, my_scores, N as u32, MatrixLayout::Row, sum.get().times(share_of_all));
            k.subgroup_barrier();
            let vec4s = N as u32 / 4;
            k.for_step(lane, M as u32 * vec4s, self.units.subgroup, |_, i| {
                let (query, column) = (first + subgroup * M as u32 + i / vec4s, i % vec4s * 4u32 + j * N as u32);
                k.if_(query.lt(queries) & column.lt(value_width), || {
                    let at = ((picture * queries + query) * heads + head) * value_width + column;
                    let x = [0, 1, 2, 3].map(|c| scores.load(my_scores + i * 4u32 + c));
                    out.set(k, at, k.lit(4u32), x);
                });
            });
            k.subgroup_barrier();
        }
    }
}
