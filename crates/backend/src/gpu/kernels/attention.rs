//! Attention with a running softmax: a workgroup takes a block of queries through blocks of keys. When a larger score comes up, what was summed
//! so far is scaled down; the matrix of scores never exists.

use impasto_graph::DType;
use impasto_kernel::{BufMut, Builder, Kernel, KernelError};

use super::{F, U, groups, piece, scalar};
use crate::shapes::Heads;

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

/// Buffers: queries, keys, values, result.
pub(crate) fn attention(h: &Heads, types: [DType; 4]) -> Result<Kernel, KernelError> {
    Builder::kernel("attention", [SIDE, SIDE, 1], |k| write(k, h, types))
}

fn write<'k>(k: &'k Builder, h: &Heads, [q, keys, v, to]: [DType; 4]) {
    let [heads, queries, seen, width, value_width] =
        [h.heads, h.queries, h.keys, h.width, h.value_width].map(|n| n as u32);
    let parts = value_width.div_ceil(SIDE);
    let [q, keys, v] = [("q", q), ("k", keys), ("v", v)].map(|(name, dtype)| k.stored::<f32>(name, scalar(dtype)));
    let out = k.stored_mut::<f32>("out", scalar(to));
    // From one row to the next one more than needed, so that neighbours lie in different banks.
    let [tile_q, tile_k] = ["tile_q", "tile_k"].map(|name| k.shared::<f32>(name, BLOCK * (DEPTH + 1)));
    let scores = k.shared::<f32>("scores", BLOCK * (BLOCK + 1));
    let tile_v = k.shared::<f32>("tile_v", BLOCK * (PART + 1));
    let [most, total, factor] = ["most", "total", "factor"].map(|name| k.shared::<f32>(name, BLOCK));
    let (x, y, t) = (k.local_id(0), k.local_id(1), k.local_index());

    let number = piece(k);
    k.if_(number.ge(blocks(h)), || k.return_());
    let per_head = queries.div_ceil(BLOCK);
    let first = number % per_head * BLOCK;
    let (head, picture) = (number / per_head % heads, number / (per_head * heads));
    let row = |token: U<'k>, tokens: u32, w: u32| -> U<'k> { ((picture * tokens + token) * heads + head) * w };

    let sums: Vec<_> = (0..EACH * parts).map(|_| k.var(0f32)).collect();
    k.if_(t.lt(BLOCK), || {
        most.store(t, f32::MIN);
        total.store(t, 0f32);
    });
    k.for_step(0u32, seen, BLOCK, |_, from| {
        let dots: Vec<_> = (0..EACH * EACH).map(|_| k.var(0f32)).collect();
        k.for_step(0u32, width, DEPTH, |_, at| {
            let (depth, token) = (t % DEPTH, t / DEPTH);
            for i in 0..EACH {
                let token = token + i * SIDE;
                let inside = (at + depth).lt(width);
                for (tile, source, start, tokens) in [(tile_q, q, first, queries), (tile_k, keys, from, seen)] {
                    let there = inside & (start + token).lt(tokens);
                    let place = row(start + token, tokens, width) + at + depth;
                    let value = k.if_value(there, || source.load(place), || k.lit(0f32));
                    tile.store(token * (DEPTH + 1) + depth, value);
                }
            }
            k.barrier();
            k.for_(0u32, DEPTH, |_, d| {
                let side = |tile: BufMut<'k, f32>, own: U<'k>| -> Vec<F<'k>> {
                    (0..EACH).map(|i| tile.load((own + i * SIDE) * (DEPTH + 1) + d)).collect()
                };
                let (left, right) = (side(tile_q, y), side(tile_k, x));
                for (n, dot) in dots.iter().enumerate() {
                    dot.set(left[n / EACH as usize].mul_add(right[n % EACH as usize], dot.get()));
                }
            });
            k.barrier();
        });
        for (n, dot) in (0..).zip(&dots) {
            let (query, key) = (y + n / EACH * SIDE, x + n % EACH * SIDE);
            let mut visible = (from + key).lt(seen);
            if h.causal {
                visible = visible & (from + key).le(first + query + (seen - queries));
            }
            let score = visible.select(dot.get() * h.scale, f32::MIN);
            scores.store(query * (BLOCK + 1) + key, score);
        }
        k.barrier();
        k.if_(t.lt(BLOCK), || {
            let before = most.load(t);
            let largest = k.var(before);
            let place = |i: U<'k>| -> U<'k> { t * (BLOCK + 1) + i };
            k.for_(0u32, BLOCK, |_, i| largest.set(largest.get().max(scores.load(place(i)))));
            let now = largest.get();
            let shrink = (before - now).exp();
            let sum = k.var(total.load(t) * shrink);
            k.for_(0u32, BLOCK, |_, i| {
                // What is not visible weighs nothing, also where nothing visible has come yet.
                let score = scores.load(place(i));
                let weight = score.gt(f32::MIN).select((score - now).exp(), 0f32);
                scores.store(place(i), weight);
                sum.set(sum.get() + weight);
            });
            most.store(t, now);
            total.store(t, sum.get());
            factor.store(t, shrink);
        });
        k.barrier();
        for part in 0..value_width.div_ceil(PART) {
            for i in 0..BLOCK * PART / (SIDE * SIDE) {
                let place = t + i * (SIDE * SIDE);
                let (key, column) = (place / PART, place % PART);
                let there = (from + key).lt(seen) & (column + part * PART).lt(value_width);
                let at = row(from + key, seen, value_width) + part * PART + column;
                tile_v.store(key * (PART + 1) + column, k.if_value(there, || v.load(at), || k.lit(0f32)));
            }
            k.barrier();
            let columns: Vec<u32> = (part * PART / SIDE..((part + 1) * PART / SIDE).min(parts)).collect();
            for r in 0..EACH {
                let query = y + r * SIDE;
                let shrink = factor.load(query);
                let mine = |c: u32| sums[(r * parts + c) as usize];
                columns.iter().for_each(|&c| mine(c).set(mine(c).get() * shrink));
                k.for_(0u32, BLOCK, |_, key| {
                    let weight = scores.load(query * (BLOCK + 1) + key);
                    for (n, &c) in (0..).zip(&columns) {
                        let value = tile_v.load(key * (PART + 1) + x + n * SIDE);
                        mine(c).set(weight.mul_add(value, mine(c).get()));
                    }
                });
            }
            k.barrier();
        }
    });
    for r in 0..EACH {
        let query = y + r * SIDE;
        k.if_((first + query).lt(queries), || {
            let share = k.lit(1f32) / total.load(query);
            for c in 0..parts {
                let column = x + c * SIDE;
                k.if_(column.lt(value_width), || {
                    let at = row(first + query, queries, value_width) + column;
                    out.store(at, sums[(r * parts + c) as usize].get() * share);
                });
            }
        });
    }
}
