//! Rows of tables, and encodings of times and positions.

use impasto_graph::{Op, Pairs, Value};

use super::blocks::BlockRows;
use super::rows::Src;
use super::session::{Env, Run};

/// Numbers that are turned at a time: whole blocks of every storage.
const CHUNK: usize = 512;

/// Where the rows of a table can be read.
#[derive(Clone, Copy)]
pub(super) enum Table {
    Dense(Src),
    Blocks(BlockRows),
}

/// Rows of a table by number. A number outside the table gives a row of NaN, which the run reports as such: a wrong
/// row would be a silently wrong picture.
pub(super) fn embedding(env: &Env, value: Value) -> Run {
    let table = env.table(env.graph.node(value).inputs[0]);
    let (ids, out, rows) = (env.operand(value, 1), env.dst(value), env.cpu.rows());
    let table_shape = &env.operand_type(value, 0).shape;
    let (count, c) = (table_shape[0], table_shape[1]);
    let n = env.graph.ty(value).rows();
    Box::new(move |_| {
        let mut buffer = [0.0; CHUNK];
        for i in 0..n {
            // SAFETY: there are `n` ids and rows of the result; the row is checked against the table.
            unsafe {
                let id = *ids.at(i).ptr.cast::<i32>();
                for at in (0..c).step_by(CHUNK) {
                    let part = &mut buffer[..CHUNK.min(c - at)];
                    match usize::try_from(id) {
                        Ok(row) if row < count => match table {
                            Table::Dense(numbers) => (rows.load)(numbers.at(row * c + at), part),
                            Table::Blocks(blocks) => blocks.decode(row, at, part),
                        },
                        _ => part.fill(f32::NAN),
                    }
                    (rows.store)(part, out.at(i * c + at));
                }
            }
        }
    })
}

/// Cosines, then sines, of a time at frequencies from 1 down to 1/max_period.
pub(super) fn timestep(env: &Env, value: Value) -> Run {
    let Op::TimestepEmbedding { dim, max_period } = env.graph.node(value).op else { unreachable!("called for times") };
    let (t, out, rows) = (env.operand(value, 0), env.dst(value), env.cpu.rows());
    let (batch, half) = (env.graph.ty(value).shape[0], dim / 2);
    Box::new(move |_| {
        for i in 0..batch {
            for j in 0..half {
                // SAFETY: one time for each picture, `dim` numbers for each.
                unsafe {
                    let mut time = [0.0];
                    (rows.load)(t.at(i), &mut time);
                    let frequency = (-(max_period as f64).ln() * j as f64 / half as f64).exp();
                    let angle = time[0] as f64 * frequency;
                    (rows.store)(&[angle.cos() as f32], out.at(i * dim + j));
                    (rows.store)(&[angle.sin() as f32], out.at(i * dim + half + j));
                }
            }
        }
    })
}

/// Pairs that are rotated at a time: they stay in L1.
const PAIRS: usize = 64;

/// Pairs of numbers of each head turned by given angles.
pub(super) fn rotary(env: &Env, value: Value) -> Run {
    let Op::Rotary { heads, pairs } = env.graph.node(value).op else { unreachable!("called for rotations") };
    let [x, cos, sin] = [0, 1, 2].map(|i| env.operand(value, i));
    let (out, rows) = (env.dst(value), env.cpu.rows());
    let shape = env.graph.ty(value).shape.clone();
    let (tokens, width) = (shape[1], shape[2] / heads);
    let half = width / 2;
    Box::new(move |pool| {
        pool.each(shape[0] * tokens, &|_, token| {
            let ([mut c, mut s], [mut a, mut b]) = ([[0.0; PAIRS]; 2], [[0.0; PAIRS]; 2]);
            let mut both = [0.0; 2 * PAIRS];
            for first in (0..half).step_by(PAIRS) {
                let n = PAIRS.min(half - first);
                let angle = token % tokens * half + first;
                // SAFETY: angles are `(tokens, half)`, rows `(batch, tokens, heads x width)`; each task has its own row, and no more than its pairs
                // from `first` on are touched.
                unsafe {
                    (rows.load)(cos.at(angle), &mut c[..n]);
                    (rows.load)(sin.at(angle), &mut s[..n]);
                    for head in (0..heads).map(|head| (token * heads + head) * width) {
                        match pairs {
                            Pairs::Adjacent => {
                                let (at, both) = (head + 2 * first, &mut both[..2 * n]);
                                (rows.load)(x.at(at), both);
                                for ((pair, c), s) in both.chunks_exact_mut(2).zip(&c).zip(&s) {
                                    (pair[0], pair[1]) = (pair[0] * c - pair[1] * s, pair[0] * s + pair[1] * c);
                                }
                                (rows.store)(both, out.at(at));
                            }
                            Pairs::Halves => {
                                let (at, a, b) = (head + first, &mut a[..n], &mut b[..n]);
                                (rows.load)(x.at(at), a);
                                (rows.load)(x.at(at + half), b);
                                for (((a, b), c), s) in a.iter_mut().zip(&mut *b).zip(&c).zip(&s) {
                                    (*a, *b) = (*a * c - *b * s, *a * s + *b * c);
                                }
                                (rows.store)(a, out.at(at));
                                (rows.store)(b, out.at(at + half));
                            }
                        }
                    }
                }
            }
        });
    })
}
