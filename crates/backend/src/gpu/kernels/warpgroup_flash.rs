//! Attention by warpgroups, with a running softmax. Each warpgroup takes 64 queries through blocks of keys that copies bring into the workgroup's
//! memory: scores are products in registers, become weights there, and are multiplied with the values from there.

use impasto_graph::DType;
use impasto_kernel::{
    Buf, BufMut, Builder, Kernel, KernelError, LeftTile, MatrixLayout, Scalar, StoredBuf, Var, Vec2, Vec4,
    WarpgroupProduct,
};

use super::vec4::To4;
use super::warpgroup::{StagedSums, factor};
use super::{F, U, groups, piece, scalar};
use crate::shapes::Heads;

const ROWS: u32 = WarpgroupProduct::ROWS;
/// Elements (of 8 bytes) of a row of a tile, and factors in it.
const PITCH: u32 = 16;
const WIDTH: u32 = WarpgroupProduct::WIDTH;
/// Blocks of keys and values that are in memory at once.
const STAGES: u32 = 2;
/// By the width of heads: how many warpgroups take how many keys at a time. The fastest that were measured on an H200.
const SIZES: [(usize, (u32, u32)); 5] = [(48, (2, 64)), (64, (1, 128)), (96, (2, 64)), (128, (3, 128)), (256, (2, 64))];
/// Below every score: what the largest score is before the first. Times a few it is still a number.
const LEAST: f32 = -1e30;
/// Keys up to which all are one block.
const ONE_BLOCK: u32 = 128;

/// Attention, cut into blocks for warpgroups.
#[derive(Clone, Copy)]
pub(crate) struct WarpgroupFlash {
    heads: Heads,
    /// The type of queries, keys, weights and values: f16 or bf16.
    factor: Scalar,
    warpgroups: u32,
    /// Keys of a block.
    block: u32,
}

impl WarpgroupFlash {
    /// How to compute attention, if it can be.
    pub(crate) fn new(heads: &Heads, types: [DType; 3]) -> Option<WarpgroupFlash> {
        let whole = |n: usize| n.is_multiple_of(8) && n > 0;
        let widest = heads.width.max(heads.value_width);
        let plain = !heads.causal && types == [types[0]; 3];
        if !plain || !whole(heads.width) || !whole(heads.value_width) {
            return None;
        }
        let factor = factor(types[0])?;
        let (warpgroups, block) = SIZES.iter().find(|(most, _)| widest <= *most)?.1;
        let keys = (heads.keys as u32).next_multiple_of(16);
        let block = if keys <= ONE_BLOCK { keys } else { block };
        Some(WarpgroupFlash { heads: *heads, factor, warpgroups, block })
    }

    fn queries(&self) -> u32 {
        ROWS * self.warpgroups
    }

    fn threads(&self) -> u32 {
        WarpgroupProduct::INVOCATIONS * self.warpgroups
    }

    fn blocks(&self) -> u32 {
        let h = &self.heads;
        (h.batch * h.heads) as u32 * (h.queries as u32).div_ceil(self.queries())
    }

    pub(crate) fn groups(&self) -> [u32; 3] {
        groups(self.blocks().into())
    }

    /// Buffers: queries, keys, values, what is added to scores where something is, result.
    pub(crate) fn kernel(&self, to: DType) -> Result<Kernel, KernelError> {
        Builder::kernel("warpgroup_flash", [self.threads(), 1, 1], |k| self.write(k, to))
    }

    fn write(&self, k: &Builder, to: DType) {
        let group = FlashWarpgroups::new(self, k);
        let keys = group.keys;
        group.copy_queries();
        group.copy_block(k.lit(0u32), k.lit(0u32));
        group.clear();
        let softmax = RunningSoftmax {
            group: &group,
            row_max: [0; 2].map(|_| k.var(LEAST)),
            row_sum: [0; 2].map(|_| k.var(0f32)),
        };
        let stage = k.var(0u32);
        k.for_step(0u32, keys, self.block, |_, from| {
            // This block is there, and nobody reads the one before it any more.
            k.async_wait(0);
            k.barrier();
            let at = stage.get();
            let other = k.lit(group.stage_elements()) - at;
            group.copy_block(from + self.block, other);
            group.multiply_keys(at);
            k.warpgroup_wait(0);
            softmax.step(from);
            group.multiply_values(at);
            k.warpgroup_wait(0);
            stage.set(other);
        });
        // Nobody reads the tiles any more.
        k.barrier();
        softmax.write_results(to);
    }
}

/// What a workgroup knows while the kernel is built: the queries that it computes, and its tiles.
struct FlashWarpgroups<'k> {
    k: &'k Builder,
    flash: WarpgroupFlash,
    /// Heads of queries, and of keys and values.
    heads: u32,
    kv_heads: u32,
    queries: u32,
    keys: u32,
    width: u32,
    value_width: u32,
    sources: [Buf<'k, Vec4<u32>>; 3],
    first: U<'k>,
    head: U<'k>,
    picture: U<'k>,
    thread: U<'k>,
    /// What is added to scores.
    bias: Option<StoredBuf<'k, f32>>,
    /// Stages of keys and values, then the queries.
    tiles: BufMut<'k, Vec2<u32>>,
    scores: BufMut<'k, f32>,
    /// Weights of the block, two to a register.
    weights: BufMut<'k, u32>,
    sums: BufMut<'k, f32>,
}

impl<'k> FlashWarpgroups<'k> {
    fn new(flash: &WarpgroupFlash, k: &'k Builder) -> FlashWarpgroups<'k> {
        let h = &flash.heads;
        let [heads, kv_heads, queries, keys, width, value_width] =
            [h.heads, h.kv_heads, h.queries, h.keys, h.width, h.value_width].map(|n| n as u32);
        let sources = ["q", "k", "v"].map(|name| k.buffer(name));
        let bias = h.bias.map(|bias| k.stored("bias", scalar(bias.dtype)));
        let number = piece(k);
        k.if_(number.ge(flash.blocks()), || k.return_());
        let per_head = queries.div_ceil(flash.queries());
        let first = number % per_head * flash.queries();
        let (head, picture) = (number / per_head % heads, number / (per_head * heads));
        let [wide, value_wide] = [width, value_width].map(|n| n.div_ceil(WIDTH));
        let elements = STAGES * flash.block * (wide + value_wide) * PITCH + flash.queries() * wide * PITCH;
        let staged = flash.queries() * StagedSums::pitch(value_width);
        FlashWarpgroups {
            k,
            flash: *flash,
            heads,
            kv_heads,
            queries,
            keys,
            width,
            value_width,
            sources,
            bias,
            first,
            head,
            picture,
            thread: k.local_index(),
            tiles: k.shared("tiles", elements.max(staged)),
            scores: k.registers("scores", flash.block / 2),
            weights: k.registers("weights", flash.block / 4),
            sums: k.registers("sums", value_width / 2),
        }
    }

    /// Elements of a stage: keys, then values.
    fn stage_elements(&self) -> u32 {
        let tiles = self.width.div_ceil(WIDTH) + self.value_width.div_ceil(WIDTH);
        self.flash.block * tiles * PITCH
    }

    fn queries_at(&self) -> u32 {
        STAGES * self.stage_elements()
    }

    /// Copies rows of a head, each `width` long and the rest of its last step of 16 zeros, to tiles of 64 columns beside each other.
    fn copy_rows(&self, source: usize, [rows, tokens, width]: [u32; 3], first: U<'k>, to: U<'k>) {
        let (k, threads) = (self.k, self.flash.threads());
        let chunks = width.div_ceil(16) * 2;
        let (heads, head) = match source {
            0 => (self.heads, self.head),
            _ => (self.kv_heads, self.head / (self.heads / self.kv_heads)),
        };
        let from_row = |token: U<'k>| ((self.picture * tokens + token) * heads + head) * (width / 8);
        // Blocks begin at multiples of their rows.
        let there = |row: U<'k>, chunk: U<'k>| {
            let all_rows = tokens.is_multiple_of(rows);
            match (all_rows, width.is_multiple_of(16)) {
                (true, true) => k.lit(true),
                (true, false) => chunk.lt(width / 8),
                (false, true) => (first + row).lt(tokens),
                (false, false) => (first + row).lt(tokens) & chunk.lt(width / 8),
            }
        };
        // Rows are swizzled.
        let place = |row: U<'k>, chunk: U<'k>| {
            to + (chunk / 8u32 * rows + row) * PITCH + ((chunk % 8u32) ^ (row % 8u32)) * 2u32
        };
        let source = self.sources[source];
        let at_once = threads / chunks;
        if threads.is_multiple_of(chunks) && at_once.is_multiple_of(8) && rows.is_multiple_of(at_once) {
            // All rows of an invocation have the same place in eight, and are as far apart in both memories.
            let (row, chunk) = (self.thread / chunks, self.thread % chunks);
            let (at, from) = (place(row, chunk), from_row(first + row) + chunk);
            for i in 0..rows / at_once {
                let (at, from) = (at + i * at_once * PITCH, from + i * at_once * heads * (width / 8));
                k.async_copy(self.tiles, at, source, from, there(row + i * at_once, chunk));
            }
            return;
        }
        let copy = |i: U<'k>| {
            let (row, chunk) = (i / chunks, i % chunks);
            k.async_copy(self.tiles, place(row, chunk), source, from_row(first + row) + chunk, there(row, chunk));
        };
        for i in (0..rows * chunks).step_by(threads as usize) {
            let own = self.thread + i;
            match i + threads <= rows * chunks {
                true => copy(own),
                false => k.if_(own.lt(rows * chunks), || copy(own)),
            }
        }
    }

    fn copy_queries(&self) {
        let rows = [self.flash.queries(), self.queries, self.width];
        self.copy_rows(0, rows, self.first, self.k.lit(self.queries_at()));
    }

    /// Starts to copy the block of keys and values from here on, if there is one, and ends a group of copies.
    fn copy_block(&self, from: U<'k>, to: U<'k>) {
        let (k, block) = (self.k, self.flash.block);
        k.if_(from.lt(self.keys), || {
            self.copy_rows(1, [block, self.keys, self.width], from, to);
            let values = to + block * self.width.div_ceil(WIDTH) * PITCH;
            self.copy_rows(2, [block, self.keys, self.value_width], from, values);
        });
        k.async_commit();
    }

    /// What is added to the score of a key, for a row from this invocation's first on.
    fn bias_of(&self, row: u32, key: U<'k>) -> Option<F<'k>> {
        let [of_picture, of_head, of_query] = self.flash.heads.bias?.strides.map(|n| n as u32);
        let own = self.thread / 32u32 * 16u32 + self.thread % 32u32 / 4u32;
        // What is not there is computed with the last, and not used.
        let (query, key) = ((self.first + own + row).min(self.queries - 1), key.min(self.keys - 1));
        Some(self.bias?.load(self.picture * of_picture + self.head * of_head + query * of_query + key))
    }

    fn clear(&self) {
        for i in 0..self.value_width / 2 {
            self.sums.store(i, 0f32);
        }
    }

    /// Starts the products of queries and keys, tile by tile of their width.
    fn multiply_keys(&self, at: U<'k>) {
        let (k, block) = (self.k, self.flash.block);
        let warpgroup = self.thread / WarpgroupProduct::INVOCATIONS;
        for tile in 0..self.width.div_ceil(WIDTH) {
            let steps = (self.width - tile * WIDTH).min(WIDTH).div_ceil(16);
            let query = warpgroup * (ROWS * PITCH) + (self.queries_at() + tile * self.flash.queries() * PITCH);
            let key = at + tile * block * PITCH;
            let (a, b) = (LeftTile::At(self.tiles, query), (self.tiles, key));
            k.warpgroup_mul_add(self.scores, a, b, [block, steps], self.flash.factor, MatrixLayout::Column, tile > 0);
        }
    }

    /// Starts the product of weights and values.
    fn multiply_values(&self, at: U<'k>) {
        let (k, block) = (self.k, self.flash.block);
        let values = at + block * self.width.div_ceil(WIDTH) * PITCH;
        let (a, b) = (LeftTile::Registers(self.weights), (self.tiles, values));
        let size = [self.value_width, block / 16];
        k.warpgroup_mul_add(self.sums, a, b, size, self.flash.factor, MatrixLayout::Row, true);
    }
}

/// The softmax so far of the two rows of which each invocation has a quarter.
struct RunningSoftmax<'k, 'g> {
    group: &'g FlashWarpgroups<'k>,
    /// The largest score of each row.
    row_max: [Var<'k, f32>; 2],
    /// The sum of this invocation's weights of each row.
    row_sum: [Var<'k, f32>; 2],
}

impl<'k> RunningSoftmax<'k, '_> {
    /// Combines a value with those of the three invocations that have the rest of its row.
    fn reduce_row(own: F<'k>, f: impl Fn(F<'k>, F<'k>) -> F<'k>) -> F<'k> {
        [1u32, 2].into_iter().fold(own, |own, distance| f(own, own.subgroup_shuffle_xor(distance)))
    }

    /// Makes weights of the scores of the block that begins here, under the largest score so far, and the sums smaller by as much.
    fn step(&self, from: U<'k>) {
        let FlashWarpgroups { k, ref flash, keys, value_width, scores, weights, sums, .. } = *self.group;
        let lane = k.subgroup_lane();
        let whole = keys.is_multiple_of(flash.block);
        // Powers of two are what devices compute.
        let (scale, log2) = (flash.heads.scale, std::f32::consts::LOG2_E);
        let score = |i: u32| {
            let [row, column] = WarpgroupProduct::place(0, i);
            let column = from + column + lane % 4u32 * 2u32;
            let score = match self.group.bias_of(row, column) {
                Some(bias) => scores.load(i).mul_add(k.lit(scale), bias),
                None => scores.load(i),
            };
            if whole { score } else { column.lt(keys).select(score, f32::MIN) }
        };
        let scale = if flash.heads.bias.is_some() { log2 } else { scale * log2 };
        // Elements of both rows alternate in twos.
        let all: Vec<F<'k>> = (0..flash.block / 2).map(score).collect();
        let row = |half: usize| all.iter().enumerate().filter(move |(i, _)| i / 2 % 2 == half).map(|(_, &x)| x);
        let shift = [0, 1].map(|half: usize| {
            let largest = row(half).reduce(|a, b| a.max(b)).unwrap_or(k.lit(f32::MIN));
            let before = self.row_max[half].get();
            let row_max = Self::reduce_row(largest, |a, b| a.max(b)).max(before);
            self.row_max[half].set(row_max);
            let rescale = ((before - row_max) * scale).exp2();
            self.row_sum[half].set(self.row_sum[half].get() * rescale);
            for i in (0..value_width / 2).filter(|i| i / 2 % 2 == half as u32) {
                sums.store(i, sums.load(i) * rescale);
            }
            row_max * -scale
        });
        for i in (0..flash.block / 2).step_by(2) {
            let half = (i / 2 % 2) as usize;
            // What is not there is infinitely far below.
            let two = [0, 1].map(|j| all[(i + j) as usize].mul_add(k.lit(scale), shift[half]).exp2());
            self.row_sum[half].set(self.row_sum[half].get() + two[0] + two[1]);
            weights.store(i / 2, k.pack(flash.factor, two));
        }
    }

    /// Divides the sums by those of the weights and writes them, through memory.
    fn write_results(&self, to: DType) {
        let FlashWarpgroups { k, heads, queries, value_width, sums, .. } = *self.group;
        let out = To4::new(k, "out", to, value_width);
        let share = self.row_sum.map(|sum| k.lit(1f32) / Self::reduce_row(sum.get(), |a, b| a + b));
        let staged = StagedSums::new(k, self.group.tiles, value_width);
        staged.store(|i| sums.load(i) * share[(i / 2 % 2) as usize]);
        k.subgroup_barrier();
        let vec4s = value_width / 4;
        k.for_step(k.subgroup_lane(), 16 * vec4s, 32, |_, vec4| {
            let (row, column) = (vec4 / vec4s, vec4 % vec4s * 4u32);
            let query = self.group.first + staged.first_row() + row;
            k.if_(query.lt(queries), || {
                let token = (self.group.picture * queries + query) * heads + self.group.head;
                out.set(k, token * value_width + column, k.lit(4u32), staged.load(row, column));
            });
        });
    }
}
