//! Products of random sizes, layouts and endings, computed with matrices of a subgroup, and what plain Rust makes of them.

use half::{bf16, f16};
use impasto_kernel::{
    Accumulator, Buf, BufferData, Builder, Factor, Float, IntoVal, Kernel, Launch, Lit, MatrixA, MatrixB, MatrixLayout,
    MatrixShape, MatrixType, Scalar, Target, Val, Vec4,
};

use super::random::Rng;

/// A matrix in memory: the elements before it, the distance of its rows or columns, and which of them lie together.
#[derive(Clone, Copy, Debug)]
pub struct Lies {
    pub from: u32,
    pub stride: u32,
    pub layout: MatrixLayout,
    /// Whether the buffer is one of vectors of four.
    pub fours: bool,
}

impl Lies {
    fn at(self, row: u32, column: u32) -> u32 {
        let (far, near) = if self.layout == MatrixLayout::Row { (row, column) } else { (column, row) };
        self.from + far * self.stride + near
    }
}

/// What happens to the sums before they are stored.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Ending {
    Plain,
    /// Times 0.75, plus itself times itself.
    Arithmetic,
    /// Only what is positive, by way of workgroup memory.
    Positive,
    /// Rounded to f16 and back.
    Rounded,
}

/// How the sum over k is written.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Turns {
    For,
    /// `loop` with a break that takes the sum along from two levels further in.
    Break,
    /// `for`, of which every second turn is in the other branch of an `if`.
    Branch,
}

#[derive(Clone, Debug)]
pub struct Case {
    pub shape: MatrixShape,
    /// Tiles in m, n and k.
    pub tiles: [u32; 3],
    pub lies: [Lies; 3],
    pub ending: Ending,
    pub turns: Turns,
    pub subgroup: u32,
    pub seed: u64,
}

const WORKGROUP: u32 = 32;

/// The shapes that are tried, as types of the builder.
macro_rules! shapes {
    ($(($t:ident $s:ident $m:literal $n:literal $k:literal)),* $(,)?) => {
        const SHAPES: &[MatrixShape] = &[$(MatrixShape {
            factor: <$t as Lit>::SCALAR, result: <$s as Lit>::SCALAR, m: $m, n: $n, k: $k,
        }),*];

        pub fn kernel(case: &Case) -> Kernel {
            let s = case.shape;
            $(if s == (MatrixShape { factor: <$t as Lit>::SCALAR, result: <$s as Lit>::SCALAR, m: $m, n: $n, k: $k }) {
                return build::<$t, $s, $m, $n, $k>(case);
            })*
            panic!("{s} is not in the table")
        }
    };
}
shapes!(
    (f16 f32 16 16 16), (f16 f16 16 16 16), (bf16 f32 16 16 16), (f16 f32 16 8 16), (bf16 f32 16 8 8), (f16 f32 8 8 8),
    (f16 f16 8 8 16), (bf16 f32 8 16 4), (f16 f32 4 3 7), (f16 f32 32 8 16),
);

/// A device that has them all.
pub fn target() -> Target {
    // An ending rounds to f16, so there are accumulators of f16 of every size.
    let narrow = |s: &MatrixShape| MatrixShape { factor: Scalar::F16, result: Scalar::F16, ..*s };
    Target::ANY.with_products(SHAPES.iter().copied().chain(SHAPES.iter().map(narrow)).collect())
}

pub fn case(seed: u64, subgroup: u32) -> Case {
    let mut rng = Rng::new(seed ^ 0x6E44);
    let shape = SHAPES[(seed % SHAPES.len() as u64) as usize];
    let tiles = [1 + rng.below(3) as u32, 1 + rng.below(3) as u32, 1 + rng.below(4) as u32];
    let (m, n, k) = (shape.m * tiles[0], shape.n * tiles[1], shape.k * tiles[2]);
    let mut lies = |rows: u32, columns: u32, tile: (u32, u32), bytes: u32| {
        let layout = if rng.below(2) == 0 { MatrixLayout::Row } else { MatrixLayout::Column };
        let (run, all) = if layout == MatrixLayout::Row { (tile.1, columns) } else { (tile.0, rows) };
        // What devices need: multiples of 16 bytes, or of a run.
        let step = run.min(16 / bytes);
        let fours = step % 4 == 0 && rng.below(2) == 0;
        Lies {
            from: step * rng.below(3) as u32,
            stride: all.next_multiple_of(step) + step * rng.below(3) as u32,
            layout,
            fours,
        }
    };
    let wide = shape.result.bytes();
    let lies =
        [lies(m, k, (shape.m, shape.k), 2), lies(k, n, (shape.k, shape.n), 2), lies(m, n, (shape.m, shape.n), wide)];
    let endings = [Ending::Plain, Ending::Arithmetic, Ending::Positive, Ending::Rounded];
    let turns = [Turns::For, Turns::Break, Turns::Branch];
    Case { shape, tiles, lies, ending: endings[rng.below(4)], turns: turns[rng.below(3)], subgroup, seed }
}

/// The place of a tile in memory.
fn place<'k>(k: &'k Builder, lies: Lies, row: Val<'k, u32>, column: Val<'k, u32>) -> Val<'k, u32> {
    let (far, near) = if lies.layout == MatrixLayout::Row { (row, column) } else { (column, row) };
    far * lies.stride + near + k.lit(lies.from)
}

/// A buffer of factors.
#[derive(Clone, Copy)]
enum Factors<'k, T> {
    Ones(Buf<'k, T>),
    Fours(Buf<'k, Vec4<T>>),
}

impl<'k, T: Lit> Factors<'k, T> {
    fn new(b: &'k Builder, name: &str, lies: Lies) -> Self {
        if lies.fours { Factors::Fours(b.buffer(name)) } else { Factors::Ones(b.buffer(name)) }
    }

    fn load<M: MatrixType<Element = T>>(self, b: &'k Builder, lies: Lies, at: Val<'k, u32>) -> Val<'k, M> {
        match self {
            Factors::Ones(x) => b.matrix_load(x, at, lies.stride, lies.layout),
            Factors::Fours(x) => b.matrix_load(x, at / 4u32, lies.stride / 4, lies.layout),
        }
    }
}

fn build<T, S, const M: usize, const N: usize, const K: usize>(case: &Case) -> Kernel
where
    T: Factor<S>,
    S: Lit + Float + for<'k> IntoVal<'k, S>,
{
    let one = |x: f32| -> S { number::<S>(x) };
    let [tm, tn, tk] = case.tiles;
    let [lx, ly, lz] = case.lies;
    Builder::kernel("gemm", [WORKGROUP, 1, 1], |b| {
        let (x, y): (Factors<T>, Factors<T>) = (Factors::new(b, "x", lx), Factors::new(b, "y", ly));
        let z = b.buffer_mut::<S>("z");
        let tile = b.shared::<S>("tile", (M * N) as u32 * WORKGROUP / 4);
        // Every subgroup takes its own tiles in turn, so subgroups do not run the same number of turns.
        let at = b.var(b.subgroup_id());
        let subgroups = b.lit(WORKGROUP) / b.subgroup_size();
        b.while_(
            || at.get().lt(tm * tn),
            |_| {
                let (row, column) = (at.get() / tn * M as u32, at.get() % tn * N as u32);
                let sum = b.var(b.matrix_fill::<Accumulator<S, M, N>>(one(0.25)));
                let turn = |i: Val<'_, u32>| {
                    let from = i * K as u32;
                    let left = x.load::<MatrixA<T, M, K>>(b, lx, place(b, lx, row, from));
                    let right = y.load::<MatrixB<T, K, N>>(b, ly, place(b, ly, from, column));
                    sum.set(b.matrix_mul_add(left, right, sum.get()));
                };
                match case.turns {
                    Turns::For => b.for_(0u32, tk, |_, i| turn(i)),
                    Turns::Break => {
                        let i = b.var(0u32);
                        b.loop_(|outer| {
                            b.loop_(|_| {
                                b.if_(i.get().ge(tk), || outer.break_());
                                turn(i.get());
                                i.set(i.get() + 1u32);
                            });
                        });
                    }
                    Turns::Branch => b.for_(0u32, tk, |_, i| {
                        b.if_else((i & 1u32).eq(0), || turn(i), || turn(i));
                    }),
                }
                let end = place(b, lz, row, column);
                let store = |v| b.matrix_store(z, end, lz.stride, lz.layout, v);
                match case.ending {
                    Ending::Plain => store(sum.get()),
                    Ending::Arithmetic => {
                        let v = sum.get();
                        store(v.scaled(one(0.75)).plus(v.times(v)).minus(v));
                    }
                    Ending::Rounded => store(sum.get().elements_as::<f16>().elements_as::<S>()),
                    Ending::Positive => {
                        let begin = b.subgroup_id() * (M * N) as u32;
                        b.matrix_store(tile, begin, N as u32, MatrixLayout::Row, sum.get());
                        b.subgroup_barrier();
                        let i = b.var(b.subgroup_lane());
                        b.while_(
                            || i.get().lt((M * N) as u32),
                            |_| {
                                let v = tile.load(begin + i.get());
                                let (r, c) = (i.get() / N as u32, i.get() % N as u32);
                                z.store(place(b, lz, row + r, column + c), v.max(one(0.0)));
                                i.set(i.get() + b.subgroup_size());
                            },
                        );
                        b.subgroup_barrier();
                    }
                }
                at.set(at.get() + subgroups);
            },
        );
    })
    .unwrap_or_else(|e| panic!("{case:?}: {e}"))
}

fn number<S: Lit>(x: f32) -> S {
    // f16 and f32 are all there is.
    let any: Box<dyn std::any::Any> = if S::SCALAR == Scalar::F16 { Box::new(f16::from_f32(x)) } else { Box::new(x) };
    *any.downcast::<S>().unwrap()
}

fn bits(s: Scalar, x: f32) -> u64 {
    match s {
        Scalar::F16 => f16::from_f32(x).to_bits().into(),
        Scalar::Bf16 => bf16::from_f32(x).to_bits().into(),
        _ => x.to_bits().into(),
    }
}

fn value(s: Scalar, b: u64) -> f32 {
    match s {
        Scalar::F16 => f16::from_bits(b as u16).to_f32(),
        Scalar::Bf16 => bf16::from_bits(b as u16).to_f32(),
        _ => f32::from_bits(b as u32),
    }
}

fn sizes(case: &Case) -> (u32, u32, u32) {
    (case.shape.m * case.tiles[0], case.shape.n * case.tiles[1], case.shape.k * case.tiles[2])
}

pub fn launch(case: &Case) -> Launch {
    let (m, n, k) = sizes(case);
    let mut rng = Rng::new(!case.seed);
    let mut fill = |s: Scalar, n: u32, random: bool| {
        let mut data = BufferData::zeros(s, n as usize);
        if random {
            data.bits.iter_mut().for_each(|b| *b = bits(s, (rng.below(4001) as f32 - 2000.0) / 700.0));
        }
        data
    };
    let end = |l: Lies, rows: u32, columns: u32| (l.at(rows - 1, columns - 1) + 1).next_multiple_of(4);
    let [lx, ly, lz] = case.lies;
    let buffers = vec![
        fill(case.shape.factor, end(lx, m, k), true),
        fill(case.shape.factor, end(ly, k, n), true),
        fill(case.shape.result, end(lz, m, n), false),
    ];
    let mut launch = Launch::new([1, 1, 1], buffers);
    launch.subgroup = case.subgroup;
    launch
}

/// What plain Rust computes, in the order that the op table gives.
pub fn expected(case: &Case) -> BufferData {
    let (m, n, k) = sizes(case);
    let launch = launch(case);
    let (from, to) = (case.shape.factor, case.shape.result);
    let [lx, ly, lz] = case.lies;
    let mut z = launch.buffers[2].clone();
    for row in 0..m {
        for column in 0..n {
            let mut sum = value(to, bits(to, 0.25));
            for i in 0..k {
                let x = value(from, launch.buffers[0].bits[lx.at(row, i) as usize]);
                let y = value(from, launch.buffers[1].bits[ly.at(i, column) as usize]);
                sum += x * y;
                // A narrow result is rounded at the end of each product of matrices.
                if (i + 1) % case.shape.k == 0 {
                    sum = value(to, bits(to, sum));
                }
            }
            let round = |x: f32| value(to, bits(to, x));
            let v = match case.ending {
                Ending::Plain => sum,
                Ending::Arithmetic => round(round(round(sum * 0.75) + round(sum * sum)) - sum),
                Ending::Positive => sum.max(0.0),
                Ending::Rounded => f16::from_f32(sum).to_f32(),
            };
            z.bits[lz.at(row, column) as usize] = bits(to, v);
        }
    }
    z
}

/// The largest difference, as a part of what another order of adding up and a rounding of each sum may cause.
pub fn error(case: &Case, a: &BufferData, b: &BufferData) -> f32 {
    let s = case.shape.result;
    let step = if s == Scalar::F16 || case.ending == Ending::Rounded { 1.0 / 1024.0 } else { f32::EPSILON };
    // Factors are below 3 in size, and the ending squares sums.
    let terms = (case.shape.k * case.tiles[2]) as f32;
    let size =
        |x: f32| x.abs() + 9.0 * terms * if case.ending == Ending::Arithmetic { x.abs().sqrt() * 2.0 } else { 1.0 };
    let one = |(&x, &y): (&u64, &u64)| (value(s, x) - value(s, y)).abs() / (size(value(s, x)) * step * terms.sqrt());
    a.bits.iter().zip(&b.bits).map(one).fold(0.0, f32::max)
}
