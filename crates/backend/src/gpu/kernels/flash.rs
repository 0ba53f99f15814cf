//! Attention with the matrix units of a device, and a running softmax. Each subgroup takes a few queries through blocks of keys that its
//! workgroup brings in: scores by matrices, through memory to the lanes that make weights of them, back as matrices onto the values.

use half::f16;
use impasto_graph::{DType, HIDDEN};
use impasto_kernel::{
    Accumulator, BufMut, Builder, Kernel, KernelError, MatrixA, MatrixB, MatrixLayout, StoredBuf, Val, Var, Vec4,
};

use super::matrices::{TileLoader, Units};
use super::vec4::{From4, Halves, To4};
use super::{F, U, groups, piece, scalar};
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
        if types != [DType::F16; 3] || wide > 160 || !vec4s || units.subgroup < units.shape[0] {
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

    /// Buffers: queries, keys, values, bias where there is one, result.
    pub(crate) fn kernel(&self, to: DType) -> Result<Kernel, KernelError> {
        Builder::kernel("flash", [self.threads(), 1, 1], |k| match self.units.shape {
            [16, 8, 16] => self.write::<16, 8, 16>(k, to),
            [8, 16, 16] => self.write::<8, 16, 16>(k, to),
            _ => self.write::<16, 16, 16>(k, to),
        })
    }

    fn write<const M: usize, const N: usize, const K: usize>(&self, k: &Builder, to: DType) {
        let group = FlashWorkgroup::new(self, k, to);
        // The queries pass through the place of the keys once; then the subgroup holds its own.
        group.load_queries();
        k.barrier();
        let subgroup = FlashSubgroup::<M, N, K>::new(&group);
        k.for_step(0u32, group.keys, self.block, |_, from| {
            // Nobody reads the block before any more.
            k.barrier();
            group.load_keys_and_values(from);
            k.barrier();
            subgroup.multiply_keys();
            k.subgroup_barrier();
            let rescale = subgroup.softmax_step(from);
            subgroup.add_values(rescale);
        });
        // Nobody reads the factors before any more.
        k.subgroup_barrier();
        subgroup.write_results();
    }
}

/// What a workgroup knows while the kernel is built: the block of queries that it computes, and its tiles of the operands.
struct FlashWorkgroup<'k> {
    k: &'k Builder,
    flash: Flash,
    heads: u32,
    queries: u32,
    keys: u32,
    width: u32,
    value_width: u32,
    /// Queries, keys and values.
    sources: [From4<'k>; 3],
    bias: Option<StoredBuf<'k, f32>>,
    out: To4<'k>,
    /// The first query of the block, its head and its picture.
    first: U<'k>,
    head: U<'k>,
    picture: U<'k>,
    thread: U<'k>,
    /// Queries or keys, and values, with the vec4s from one row to the next.
    tile: BufMut<'k, Vec4<f16>>,
    pitch: u32,
    value_tile: BufMut<'k, Vec4<f16>>,
    value_pitch: u32,
    zeros: Halves<'k>,
}

impl<'k> FlashWorkgroup<'k> {
    fn new(flash: &Flash, k: &'k Builder, to: DType) -> FlashWorkgroup<'k> {
        let h = &flash.heads;
        let [heads, queries, keys, width, value_width] =
            [h.heads, h.queries, h.keys, h.width, h.value_width].map(|n| n as u32);
        let sources =
            ["q", "k", "v"].map(|name| From4::new(k, name, DType::F16, if name == "v" { value_width } else { width }));
        let bias = h.bias.map(|bias| k.stored("bias", scalar(bias.dtype)));
        let out = To4::new(k, "out", to, value_width);
        let number = piece(k);
        k.if_(number.ge(flash.blocks()), || k.return_());
        let per_head = queries.div_ceil(flash.queries());
        let first = number % per_head * flash.queries();
        let (head, picture) = (number / per_head % heads, number / (per_head * heads));
        let thread = k.local_index();

        let [pitch, value_pitch] = flash.widths().map(|width| width / 4 + 2);
        let tile = k.shared("tile", flash.block.max(flash.queries()) * pitch);
        let value_tile = k.shared("tile_v", flash.block * value_pitch);
        let zeros = k.vector([f16::ZERO; 4].map(|zero| k.lit(zero)));
        FlashWorkgroup {
            k,
            flash: *flash,
            heads,
            queries,
            keys,
            width,
            value_width,
            sources,
            bias,
            out,
            first,
            head,
            picture,
            thread,
            tile,
            pitch,
            value_tile,
            value_pitch,
            zeros,
        }
    }

    /// Where a query of this head begins in a tensor whose heads are so wide.
    fn query_row(&self, query: U<'k>, width: u32) -> U<'k> {
        ((self.picture * self.queries + query) * self.heads + self.head) * width
    }

    /// Where a key of this head begins in a tensor whose heads are so wide.
    fn key_row(&self, key: U<'k>, width: u32) -> U<'k> {
        let Heads { heads, kv_heads, .. } = self.flash.heads;
        let head = if heads == kv_heads { self.head } else { self.head / (heads / kv_heads) as u32 };
        ((self.picture * self.keys + key) * kv_heads as u32 + head) * width
    }

    /// One vec4 of an operand, at a token of so many, which begins at `row`, and a vec4 of it; zeros where it ends.
    fn fetch(&self, from: From4<'k>, column: U<'k>, [token, row]: [U<'k>; 2], tokens: u32, width: u32) -> Halves<'k> {
        let (k, column) = (self.k, column * 4u32);
        let place = row + column;
        k.if_value(token.lt(tokens) & column.lt(width), || from.halves(k, place, k.lit(4u32), 1.0), || self.zeros)
    }

    /// How a tile of so many rows, each with the vec4s of this width, is loaded.
    fn loader(&self, rows: u32, width: u32, pitch: u32) -> TileLoader<'k> {
        TileLoader::new(self.thread, self.flash.threads(), rows, width / 4, pitch)
    }

    fn load_queries(&self) {
        let ([wide, _], [source, ..]) = (self.flash.widths(), self.sources);
        let loader = self.loader(self.flash.queries(), wide, self.pitch);
        loader.each(self.k, |(row, column), to| {
            let query = self.first + row;
            let at = [query, self.query_row(query, self.width)];
            self.tile.store(to, self.fetch(source, column, at, self.queries, self.width));
        });
    }

    /// Loads the block of keys and values that begins here.
    fn load_keys_and_values(&self, from: U<'k>) {
        let ([wide, values_wide], [_, keys, values]) = (self.flash.widths(), self.sources);
        let fetch = |source: From4<'k>, (row, column): (U<'k>, U<'k>), width: u32| {
            let key = from + row;
            self.fetch(source, column, [key, self.key_row(key, width)], self.keys, width)
        };
        let loader = self.loader(self.flash.block, wide, self.pitch);
        loader.each(self.k, |at, to| self.tile.store(to, fetch(keys, at, self.width)));
        let loader = self.loader(self.flash.block, values_wide, self.value_pitch);
        loader.each(self.k, |at, to| self.value_tile.store(to, fetch(values, at, self.value_width)));
    }
}

/// What a subgroup knows while the kernel is built: its queries, its share of the workgroup's memory, and its softmax so far.
struct FlashSubgroup<'k, 'g, const M: usize, const N: usize, const K: usize> {
    group: &'g FlashWorkgroup<'k>,
    id: U<'k>,
    lane: U<'k>,
    queries: Vec<Val<'k, MatrixA<f16, M, K>>>,
    scores: BufMut<'k, f32>,
    weights: BufMut<'k, f16>,
    factors: BufMut<'k, f32>,
    /// Where its own rows of scores and weights begin.
    first_score: U<'k>,
    first_weight: U<'k>,
    /// Lanes that share a row, of which each has every so-manyth element; the row of this lane, and its number among those.
    lanes_per_row: u32,
    row: U<'k>,
    part: U<'k>,
    /// The largest score of the row so far. The sum of this lane's weights, under that.
    row_max: Var<'k, f32>,
    row_sum: Var<'k, f32>,
    /// The weighted values, as matrices beside each other.
    sums: Vec<Var<'k, Accumulator<f32, M, N>>>,
}

impl<'k, 'g, const M: usize, const N: usize, const K: usize> FlashSubgroup<'k, 'g, M, N, K> {
    /// Takes the queries out of the workgroup's tile.
    fn new(group: &'g FlashWorkgroup<'k>) -> Self {
        let (k, flash) = (group.k, &group.flash);
        let [wide, values_wide] = flash.widths();
        let id = k.subgroup_id();
        let row = |i: u32| id * (M as u32 * group.pitch) + i * K as u32 / 4;
        let queries =
            (0..wide / K as u32).map(|i| k.matrix_load(group.tile, row(i), group.pitch, MatrixLayout::Row)).collect();
        let [score_pitch, weight_pitch] = flash.pitches();
        let scores = k.shared("scores", flash.queries() * score_pitch);
        let weights = k.shared("weights", flash.queries() * weight_pitch);
        let factors = k.shared("factors", flash.queries());
        let (first_score, first_weight) = (id * (M as u32 * score_pitch), id * (M as u32 * weight_pitch));
        let lanes_per_row = flash.units.subgroup / M as u32;
        let lane = k.subgroup_lane();
        let (row, part) = (lane / lanes_per_row, lane % lanes_per_row);
        let (row_max, row_sum) = (k.var(f32::MIN), k.var(0f32));
        let sums = (0..values_wide / N as u32).map(|_| k.var(k.matrix_fill::<Accumulator<f32, M, N>>(0.0))).collect();
        FlashSubgroup {
            group,
            id,
            lane,
            queries,
            scores,
            weights,
            factors,
            first_score,
            first_weight,
            lanes_per_row,
            row,
            part,
            row_max,
            row_sum,
            sums,
        }
    }

    /// Combines a value of each lane with those of the lanes that share its row.
    fn reduce_row(&self, own: F<'k>, f: impl Fn(F<'k>, F<'k>) -> F<'k>) -> F<'k> {
        let steps = (0..self.lanes_per_row.ilog2()).map(|i| 1 << i);
        steps.fold(own, |own, distance: u32| f(own, own.subgroup_shuffle_xor(distance)))
    }

    /// A matrix whose rows have the number of their lanes in every element.
    fn by_row(&self, x: F<'k>) -> Val<'k, Accumulator<f32, M, N>> {
        let k = self.group.k;
        k.if_(self.part.eq(0), || self.factors.store(self.id * M as u32 + self.row, x));
        k.subgroup_barrier();
        // Without a distance from column to column, every column is the same.
        k.matrix_load(self.factors, self.id * M as u32, 0u32, MatrixLayout::Column)
    }

    /// Scores of the block of keys, to memory.
    fn multiply_keys(&self) {
        let (k, tile, pitch) = (self.group.k, self.group.tile, self.group.pitch);
        let [score_pitch, _] = self.group.flash.pitches();
        for j in 0..self.group.flash.block / N as u32 {
            let zero = k.matrix_fill::<Accumulator<f32, M, N>>(0.0);
            let dot = self.queries.iter().zip(0u32..).fold(zero, |dot, (&query, i)| {
                let at = k.lit(j * N as u32 * pitch + i * K as u32 / 4);
                let key: Val<MatrixB<f16, K, N>> = k.matrix_load(tile, at, pitch, MatrixLayout::Column);
                k.matrix_mul_add(query, key, dot)
            });
            k.matrix_store(self.scores, self.first_score + j * N as u32, score_pitch, MatrixLayout::Row, dot);
        }
    }

    /// Scores of the block that begins here to weights, under the largest score so far; by what earlier weights are too large now.
    fn softmax_step(&self, from: U<'k>) -> F<'k> {
        let FlashWorkgroup { k, ref flash, keys, .. } = *self.group;
        let [score_pitch, weight_pitch] = flash.pitches();
        let share = self.lanes_per_row;
        let query = self.group.first + self.id * M as u32 + self.row;
        let columns: Vec<U<'k>> = (0..flash.block / share).map(|i| self.part + i * share).collect();
        let own: Vec<F<'k>> = columns
            .iter()
            .map(|&column| {
                let at = self.first_score + self.row * score_pitch + column;
                let mut score = self.scores.load(at) * flash.heads.scale;
                let key = from + column;
                if let (Some(bias), Some(from_bias)) = (self.group.bias, flash.heads.bias) {
                    let at = from_bias.place(self.group.picture, self.group.head, query) + key;
                    let inside = key.lt(keys) & query.lt(self.group.queries);
                    score = score + k.if_value(inside, || bias.load(at).max(HIDDEN), || k.lit(0f32));
                }
                if flash.heads.causal {
                    score = key.le(query + (keys - self.group.queries)).select(score, f32::MIN);
                }
                match keys.is_multiple_of(flash.block) {
                    true => score,
                    false => key.lt(keys).select(score, f32::MIN),
                }
            })
            .collect();
        let largest = own[1..].iter().fold(own[0], |a, &b| a.max(b));
        let row_max = self.reduce_row(largest, |a, b| a.max(b)).max(self.row_max.get());
        let rescale = (self.row_max.get() - row_max).exp();
        self.row_max.set(row_max);
        let mut sum = k.lit(0f32);
        for (&column, &score) in columns.iter().zip(&own) {
            // What is not there is infinitely far below.
            let weight = (score - row_max).exp();
            self.weights.store(self.first_weight + self.row * weight_pitch + column, weight.to::<f16>());
            sum = sum + weight;
        }
        self.row_sum.set(self.row_sum.get() * rescale + sum);
        rescale
    }

    /// Rescales the sums, and adds the values of the block, times their weights.
    fn add_values(&self, rescale: F<'k>) {
        let (k, pitch) = (self.group.k, self.group.value_pitch);
        let [_, weight_pitch] = self.group.flash.pitches();
        let rescale = self.by_row(rescale);
        for sum in &self.sums {
            sum.set(sum.get().times(rescale));
        }
        for i in 0..self.group.flash.block / K as u32 {
            let at = self.first_weight + i * K as u32;
            let weight: Val<MatrixA<f16, M, K>> = k.matrix_load(self.weights, at, weight_pitch, MatrixLayout::Row);
            for (j, sum) in (0u32..).zip(&self.sums) {
                let at = k.lit(i * K as u32 * pitch + j * N as u32 / 4);
                let tile = self.group.value_tile;
                let value: Val<MatrixB<f16, K, N>> = k.matrix_load(tile, at, pitch, MatrixLayout::Row);
                sum.set(k.matrix_mul_add(weight, value, sum.get()));
            }
        }
    }

    /// Divides the sums by those of the weights and writes them, through the memory of the scores.
    fn write_results(&self) {
        let FlashWorkgroup { k, queries, value_width, first, .. } = *self.group;
        let normalise = self.by_row(k.lit(1f32) / self.reduce_row(self.row_sum.get(), |a, b| a + b));
        for (j, sum) in (0u32..).zip(&self.sums) {
            let normalised = sum.get().times(normalise);
            k.matrix_store(self.scores, self.first_score, N as u32, MatrixLayout::Row, normalised);
            k.subgroup_barrier();
            let vec4s = N as u32 / 4;
            k.for_step(self.lane, M as u32 * vec4s, self.group.flash.units.subgroup, |_, i| {
                let (query, column) = (first + self.id * M as u32 + i / vec4s, i % vec4s * 4u32 + j * N as u32);
                k.if_(query.lt(queries) & column.lt(value_width), || {
                    let at = self.group.query_row(query, value_width) + column;
                    let x = [0, 1, 2, 3].map(|c| self.scores.load(self.first_score + i * 4u32 + c));
                    self.group.out.set(k, at, k.lit(4u32), x);
                });
            });
            k.subgroup_barrier();
        }
    }
}
