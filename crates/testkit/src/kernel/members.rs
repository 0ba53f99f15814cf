//! Random kernels around variables of arrays and structs, in branches and loops, many of which constants decide, with values that only seem to
//! change: what the early count follows by itself and passes take apart.

use std::cell::RefCell;

use impasto_kernel::{Array, Buf, BufferData, Builder, Kernel, Launch, Val, Var};

use super::random::Rng;

/// Invocations in a workgroup.
const N: u32 = 4;
/// Numbers that each of them writes.
const OUT: u32 = 12;

type Row = Array<f32, 2>;
type Grid = (Array<Row, 2>, f32);

struct Writer<'k> {
    k: &'k Builder,
    rng: Rng,
    x: Buf<'k, f32>,
    n: Buf<'k, u32>,
    v: [Var<'k, f32>; 2],
    rows: [Var<'k, Row>; 2],
    grids: [Var<'k, Grid>; 2],
    /// Constants, for a while.
    c: [Var<'k, u32>; 2],
    left: usize,
}

impl<'k> Writer<'k> {
    fn below(&mut self, n: u32) -> u32 {
        self.rng.below(n as usize) as u32
    }

    fn one<T: Copy>(&mut self, of: [T; 2]) -> T {
        of[self.rng.below(2)]
    }

    fn row(&mut self) -> Val<'k, Row> {
        match self.below(4) {
            0 => self.k.array([self.number(), self.number()]),
            1 => self.one(self.grids).get().first().element(self.rng.below(2) as u32),
            _ => self.one(self.rows).get(),
        }
    }

    fn number(&mut self) -> Val<'k, f32> {
        let (i, j) = (self.below(2), self.below(8));
        match self.below(8) {
            0 => self.one(self.rows).get().element(i),
            1 => self.one(self.grids).get().first().element(i).element(j % 2),
            2 => self.one(self.grids).get().second(),
            3 => self.x.load(j),
            4 => self.k.lit(j as f32 * 0.25),
            _ => self.one(self.v).get(),
        }
    }

    fn changed(&mut self) -> Val<'k, f32> {
        let (a, b) = (self.number(), self.number());
        match self.below(6) {
            0 => a * b,
            1 => a + b,
            2 => a * 1.0f32,
            3 => a.max(b),
            4 => a - 0.5f32,
            _ => a,
        }
    }

    /// A number of the data, or of constants.
    fn count(&mut self) -> Val<'k, u32> {
        let at = self.below(6);
        match self.below(4) {
            0 => self.k.lit(at % 4),
            1 => self.one(self.c).get(),
            _ => self.n.load(at),
        }
    }

    fn condition(&mut self) -> Val<'k, bool> {
        let (c, by) = (self.one(self.c).get(), self.below(4));
        match self.below(6) {
            0 => self.k.lit(by % 2 == 0),
            1 | 2 => (c * 3u32 + by).lt(5u32),
            3 => c.eq(by),
            4 => self.number().lt(self.number()),
            _ => self.count().gt(by),
        }
    }

    fn assign(&mut self) {
        let (i, j) = (self.below(2), self.below(2));
        let (v, row, grid, c) = (self.one(self.v), self.one(self.rows), self.one(self.grids), self.one(self.c));
        match self.below(14) {
            0 => v.set(self.changed()),
            1 => v.set(v.get()),
            2 | 3 => row.set(row.get().with(i, self.changed())),
            4 => row.set(self.row()),
            5 => {
                let old = row.get();
                row.set(old.with(i, self.changed()));
                row.set(old.with(j, self.changed()));
            }
            6 => row.set(row.get().with(0, row.get().element(1)).with(1, row.get().element(0))),
            7 => {
                let first = grid.get().first();
                let inner = first.element(i).with(j, self.changed());
                grid.set(self.k.pair(first.with(i, inner), grid.get().second()));
            }
            8 => {
                let first = grid.get().first();
                let turned = first.with(0, first.element(1)).with(1, first.element(0));
                grid.set(self.k.pair(turned, self.changed()));
            }
            9 => grid.set(self.one(self.grids).get()),
            10 => {
                let first = grid.get().first().with(i, self.row());
                grid.set(self.k.pair(first, grid.get().second()));
            }
            11 => c.set(i + 1),
            12 => c.set((c.get() + j) % 4u32),
            _ => c.set(c.get()),
        }
    }

    fn statements(&mut self, depth: usize) {
        for _ in 0..1 + self.below(4) {
            if self.left == 0 {
                return;
            }
            self.left -= 1;
            if depth < 3 && self.below(3) == 0 { self.structure(depth) } else { self.assign() }
        }
    }

    fn structure(&mut self, depth: usize) {
        let k = self.k;
        let (kind, v) = (self.below(7), self.v[0]);
        let (c, other, count, by) = (self.condition(), self.condition(), self.count(), self.below(3));
        // Few turns of little are written out, all else is not.
        let turns = [1, 2, 3, 7, 20, 300][self.rng.below(4 + depth)];
        // One writer writes all regions, one after the other.
        let this = RefCell::new(self);
        let inner = || this.borrow_mut().statements(depth + 1);
        match kind {
            0 => k.if_(c, inner),
            1 => k.if_else(c, inner, inner),
            2 => k.match_(
                count,
                |arms| {
                    arms.case(&[1], inner);
                    arms.case(&[0, 2], inner);
                },
                inner,
            ),
            3 => k.for_(0u32, turns, |_, _| inner()),
            4 => k.for_(0u32, count, |l, i| {
                inner();
                if by == 0 {
                    k.if_(other, || l.break_());
                    inner();
                }
                v.set(v.get() + i.to::<f32>());
            }),
            5 => {
                let turns = k.var(0u32);
                k.while_(
                    || turns.get().lt(count),
                    |l| {
                        turns.set(turns.get() + 1u32);
                        inner();
                        k.if_(other, || if by == 0 { l.break_() } else { l.continue_() });
                        inner();
                    },
                );
            }
            // What an early return is.
            _ => k.loop_(|l| {
                k.if_(other, || {
                    inner();
                    l.break_();
                });
                inner();
                l.break_();
            }),
        }
    }
}

pub fn kernel(seed: u64, statements: usize) -> Kernel {
    let made = Builder::kernel("members", [N, 1, 1], |k| {
        let (x, n, y) = (k.buffer::<f32>("x"), k.buffer::<u32>("n"), k.buffer_mut::<f32>("y"));
        let i = k.global_id(0) % 4u32;
        let at = |j: u32| x.load(i + j);
        let row = |j: u32| k.array([at(j), at(j + 1)]);
        let mut w = Writer {
            k,
            rng: Rng::new(seed ^ 0x6D65),
            x,
            n,
            v: [k.var(at(0)), k.var(1.0f32)],
            rows: [k.var(row(1)), k.var(k.array([k.lit(0.0f32), at(2)]))],
            grids: [0, 1].map(|j| k.var(k.pair(k.array([row(j), row(j + 2)]), at(3)))),
            c: [k.var(0u32), k.var(1u32)],
            left: statements,
        };
        while w.left > 0 {
            w.statements(0);
        }
        let mut out = 0;
        let mut put = |v: Val<'_, f32>| {
            y.store(k.global_id(0) * OUT + out, v);
            out += 1;
        };
        w.v.iter().for_each(|v| put(v.get()));
        w.rows.iter().for_each(|r| (0..2).for_each(|j| put(r.get().element(j))));
        let grid = w.grids[0].get();
        (0..2).for_each(|i| (0..2).for_each(|j| put(grid.first().element(i).element(j))));
        put(grid.second());
        put(w.c[0].get().to::<f32>());
        assert_eq!(out, OUT);
    });
    made.unwrap_or_else(|e| panic!("seed {seed}: {e}"))
}

pub fn launch(seed: u64) -> Launch {
    let mut rng = Rng::new(seed);
    let x = (0..8).map(|_| (rng.below(2001) as f32 - 1000.0) / 900.0).collect::<Vec<_>>();
    let n = (0..6).map(|_| rng.below(5) as u32).collect::<Vec<_>>();
    let y = vec![0.0f32; (2 * N * OUT) as usize];
    let mut launch =
        Launch::new([2, 1, 1], vec![BufferData::from(&x[..]), BufferData::from(&n[..]), BufferData::from(&y[..])]);
    launch.max_ops = 20_000_000;
    launch
}
