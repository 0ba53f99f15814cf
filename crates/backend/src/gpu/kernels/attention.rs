//! Attention with a running softmax: a workgroup takes a block of queries through blocks of keys. When a larger score comes up, what was summed
//! so far is scaled down; the matrix of scores never exists.

use impasto_graph::{DType, HIDDEN};
use impasto_kernel::{BufMut, Builder, Kernel, KernelError, StoredBuf, StoredBufMut, Var};

use super::{F, U, groups, piece, scalar};
use crate::shapes::{Heads, ScoreBias};

/// Invocations are a square, and each has every 16th row and column of what is computed.
const SIDE: u32 = 16;
/// Queries of a block, and keys of one.
const BLOCK: u32 = 32;
const EACH: u32 = BLOCK / SIDE;
/// Of a head's width at a time.
const DEPTH: u32 = 16;
/// Of a value's width at a time.
const PART: u32 = 32;

/// Blocks of queries, of all heads and pictures.
fn blocks(h: &Heads) -> u32 {
    (h.batch * h.heads * h.queries.div_ceil(BLOCK as usize)) as u32
}

pub(crate) fn workgroups(h: &Heads) -> [u32; 3] {
    groups(blocks(h).into())
}

/// Buffers: queries, keys, values, bias where there is one, result.
pub(crate) fn attention(h: &Heads, types: [DType; 4]) -> Result<Kernel, KernelError> {
    Builder::kernel("attention", [SIDE, SIDE, 1], |k| write(k, h, types))
}

fn write(k: &Builder, h: &Heads, types: [DType; 4]) {
    let group = AttentionWorkgroup::new(k, h, types);
    let sums: Vec<_> = (0..EACH * group.columns_each()).map(|_| k.var(0f32)).collect();
    group.start_softmax();
    k.for_step(0u32, group.keys, BLOCK, |_, from| {
        let dots: Vec<_> = (0..EACH * EACH).map(|_| k.var(0f32)).collect();
        k.for_step(0u32, group.width, DEPTH, |_, at| {
            group.load_queries_and_keys(at, from);
            k.barrier();
            group.multiply_keys(&dots);
            k.barrier();
        });
        group.store_scores(from, &dots);
        k.barrier();
        k.if_(group.thread.lt(BLOCK), || group.softmax_step());
        k.barrier();
        for part in 0..group.value_width.div_ceil(PART) {
            group.load_values(from, part);
            k.barrier();
            group.add_values(part, &sums);
            k.barrier();
        }
    });
    group.write_results(&sums);
}

impl ScoreBias {
    /// Where the biases of a query begin.
    pub(super) fn place<'k>(&self, picture: U<'k>, head: U<'k>, query: U<'k>) -> U<'k> {
        let [by_picture, by_head, by_query] = self.strides.map(|n| n as u32);
        picture * by_picture + head * by_head + query * by_query
    }
}

/// What a workgroup knows while the kernel is built: the block of queries that it computes, and its memory.
struct AttentionWorkgroup<'k> {
    k: &'k Builder,
    h: Heads,
    heads: u32,
    queries: u32,
    keys: u32,
    width: u32,
    value_width: u32,
    /// Queries, keys and values.
    sources: [StoredBuf<'k, f32>; 3],
    bias: Option<StoredBuf<'k, f32>>,
    out: StoredBufMut<'k, f32>,
    query_tile: BufMut<'k, f32>,
    key_tile: BufMut<'k, f32>,
    value_tile: BufMut<'k, f32>,
    /// Scores, then weights.
    scores: BufMut<'k, f32>,
    /// Of each query: the largest score so far, the sum of weights under that, and by what earlier weights are too large now.
    row_max: BufMut<'k, f32>,
    row_sum: BufMut<'k, f32>,
    rescale: BufMut<'k, f32>,
    x: U<'k>,
    y: U<'k>,
    thread: U<'k>,
    /// The first query of the block, its head and its picture.
    first: U<'k>,
    head: U<'k>,
    picture: U<'k>,
}

impl<'k> AttentionWorkgroup<'k> {
    fn new(k: &'k Builder, h: &Heads, [q, keys, v, to]: [DType; 4]) -> AttentionWorkgroup<'k> {
        let sources = [("q", q), ("k", keys), ("v", v)].map(|(name, dtype)| k.stored(name, scalar(dtype)));
        let [heads, queries, keys, width, value_width] =
            [h.heads, h.queries, h.keys, h.width, h.value_width].map(|n| n as u32);
        let bias = h.bias.map(|bias| k.stored("bias", scalar(bias.dtype)));
        let out = k.stored_mut("out", scalar(to));
        // From one row to the next one more than needed, so that neighbours lie in different banks.
        let [query_tile, key_tile] = ["tile_q", "tile_k"].map(|name| k.shared(name, BLOCK * (DEPTH + 1)));
        let scores = k.shared("scores", BLOCK * (BLOCK + 1));
        let value_tile = k.shared("tile_v", BLOCK * (PART + 1));
        let [row_max, row_sum, rescale] = ["most", "total", "factor"].map(|name| k.shared(name, BLOCK));
        let (x, y, thread) = (k.local_id(0), k.local_id(1), k.local_index());

        let number = piece(k);
        k.if_(number.ge(blocks(h)), || k.return_());
        let per_head = queries.div_ceil(BLOCK);
        let first = number % per_head * BLOCK;
        let (head, picture) = (number / per_head % heads, number / (per_head * heads));
        AttentionWorkgroup {
            k,
            h: *h,
            heads,
            queries,
            keys,
            width,
            value_width,
            sources,
            bias,
            out,
            query_tile,
            key_tile,
            value_tile,
            scores,
            row_max,
            row_sum,
            rescale,
            x,
            y,
            thread,
            first,
            head,
            picture,
        }
    }

    /// Columns of values that an invocation has.
    fn columns_each(&self) -> u32 {
        self.value_width.div_ceil(SIDE)
    }

    /// Where a query of this head begins in a tensor whose heads are so wide.
    fn query_row(&self, query: U<'k>, width: u32) -> U<'k> {
        ((self.picture * self.queries + query) * self.heads + self.head) * width
    }

    /// Where a key of this head begins in a tensor whose heads are so wide.
    fn key_row(&self, key: U<'k>, width: u32) -> U<'k> {
        let Heads { heads, kv_heads, .. } = self.h;
        let head = if heads == kv_heads { self.head } else { self.head / (heads / kv_heads) as u32 };
        ((self.picture * self.keys + key) * kv_heads as u32 + head) * width
    }

    fn start_softmax(&self) {
        self.k.if_(self.thread.lt(BLOCK), || {
            self.row_max.store(self.thread, f32::MIN);
            self.row_sum.store(self.thread, 0f32);
        });
    }

    /// Loads a part of the width of the queries, and of the keys from here on.
    fn load_queries_and_keys(&self, at: U<'k>, from: U<'k>) {
        let (k, width, [q, keys, _]) = (self.k, self.width, self.sources);
        let (depth, token) = (self.thread % DEPTH, self.thread / DEPTH);
        for i in 0..EACH {
            let token = token + i * SIDE;
            let inside = (at + depth).lt(width);
            let (query, key) = (self.first + token, from + token);
            let loads = [
                (self.query_tile, q, query.lt(self.queries), self.query_row(query, width)),
                (self.key_tile, keys, key.lt(self.keys), self.key_row(key, width)),
            ];
            for (tile, source, exists, row) in loads {
                let there = inside & exists;
                let place = row + at + depth;
                let value = k.if_value(there, || source.load(place), || k.lit(0f32));
                tile.store(token * (DEPTH + 1) + depth, value);
            }
        }
    }

    /// Adds the product of the tiles to those of queries and keys.
    fn multiply_keys(&self, dots: &[Var<'k, f32>]) {
        self.k.for_(0u32, DEPTH, |_, d| {
            let side = |tile: BufMut<'k, f32>, own: U<'k>| -> Vec<F<'k>> {
                (0..EACH).map(|i| tile.load((own + i * SIDE) * (DEPTH + 1) + d)).collect()
            };
            let (left, right) = (side(self.query_tile, self.y), side(self.key_tile, self.x));
            for (n, dot) in dots.iter().enumerate() {
                dot.set(left[n / EACH as usize].mul_add(right[n % EACH as usize], dot.get()));
            }
        });
    }

    /// Stores the scores of the keys from here on; those that a query does not see are the smallest there are.
    fn store_scores(&self, from: U<'k>, dots: &[Var<'k, f32>]) {
        let k = self.k;
        for (n, dot) in (0..).zip(dots) {
            let (query, key) = (self.y + n / EACH * SIDE, self.x + n % EACH * SIDE);
            let mut visible = (from + key).lt(self.keys);
            if self.h.causal {
                visible = visible & (from + key).le(self.first + query + (self.keys - self.queries));
            }
            let mut score = dot.get() * self.h.scale;
            if let (Some(bias), Some(from_bias)) = (self.bias, self.h.bias) {
                let inside = (from + key).lt(self.keys) & (self.first + query).lt(self.queries);
                let at = from_bias.place(self.picture, self.head, self.first + query) + from + key;
                score = score + k.if_value(inside, || bias.load(at).max(HIDDEN), || k.lit(0f32));
            }
            let score = visible.select(score, f32::MIN);
            self.scores.store(query * (BLOCK + 1) + key, score);
        }
    }

    /// Scores of a row to weights, under the largest score so far.
    fn softmax_step(&self) {
        let (k, t, scores) = (self.k, self.thread, self.scores);
        let before = self.row_max.load(t);
        let largest = k.var(before);
        let place = |i: U<'k>| -> U<'k> { t * (BLOCK + 1) + i };
        k.for_(0u32, BLOCK, |_, i| largest.set(largest.get().max(scores.load(place(i)))));
        let now = largest.get();
        let rescale = (before - now).exp();
        let sum = k.var(self.row_sum.load(t) * rescale);
        k.for_(0u32, BLOCK, |_, i| {
            // What is not visible weighs nothing, also where nothing visible has come yet.
            let score = scores.load(place(i));
            let weight = score.gt(f32::MIN).select((score - now).exp(), 0f32);
            scores.store(place(i), weight);
            sum.set(sum.get() + weight);
        });
        self.row_max.store(t, now);
        self.row_sum.store(t, sum.get());
        self.rescale.store(t, rescale);
    }

    /// Loads a part of the width of the values from here on.
    fn load_values(&self, from: U<'k>, part: u32) {
        let (k, [.., values]) = (self.k, self.sources);
        for i in 0..BLOCK * PART / (SIDE * SIDE) {
            let place = self.thread + i * (SIDE * SIDE);
            let (key, column) = (place / PART, place % PART);
            let there = (from + key).lt(self.keys) & (column + part * PART).lt(self.value_width);
            let at = self.key_row(from + key, self.value_width) + part * PART + column;
            self.value_tile.store(key * (PART + 1) + column, k.if_value(there, || values.load(at), || k.lit(0f32)));
        }
    }

    /// Rescales the sums of a part of the width, and adds the values of the tile, times their weights.
    fn add_values(&self, part: u32, sums: &[Var<'k, f32>]) {
        let all = self.columns_each();
        let columns: Vec<u32> = (part * PART / SIDE..((part + 1) * PART / SIDE).min(all)).collect();
        for r in 0..EACH {
            let query = self.y + r * SIDE;
            let rescale = self.rescale.load(query);
            let mine = |c: u32| sums[(r * all + c) as usize];
            columns.iter().for_each(|&c| mine(c).set(mine(c).get() * rescale));
            self.k.for_(0u32, BLOCK, |_, key| {
                let weight = self.scores.load(query * (BLOCK + 1) + key);
                for (n, &c) in (0..).zip(&columns) {
                    let value = self.value_tile.load(key * (PART + 1) + self.x + n * SIDE);
                    mine(c).set(weight.mul_add(value, mine(c).get()));
                }
            });
        }
    }

    /// Divides the sums by those of the weights, and writes them.
    fn write_results(&self, sums: &[Var<'k, f32>]) {
        let (k, all) = (self.k, self.columns_each());
        for r in 0..EACH {
            let query = self.y + r * SIDE;
            k.if_((self.first + query).lt(self.queries), || {
                let normalise = k.lit(1f32) / self.row_sum.load(query);
                for c in 0..all {
                    let column = self.x + c * SIDE;
                    k.if_(column.lt(self.value_width), || {
                        let at = self.query_row(self.first + query, self.value_width) + column;
                        self.out.store(at, sums[(r * all + c) as usize].get() * normalise);
                    });
                }
            });
        }
    }
}
