//! Random structured kernels: nested ifs, matches and loops with break and continue to any of them, early return, variables of all
//! kinds, private arrays, workgroup memory with barriers where all invocations come by, atomics; elements of all types in memory.
//!
//! They end, stay in bounds, and do not race; the results are the same on every device: integers, comparisons and + - x.

mod values;

use half::{bf16, f16};
use impasto_kernel::{Array, BufMut, BufferData, Builder, Kernel, Launch, Loop, Scalar, Val, Var, Vector};

pub const WORKGROUP: [u32; 3] = [4, 2, 1];
pub const GROUPS: [u32; 3] = [2, 1, 1];
const INVOCATIONS: u32 = 16;
/// Elements of an output that each invocation owns.
const OWN: u32 = 16;
const INPUTS: u32 = 32;
const PRIVATE: u32 = 5;
/// Elements of other types that each invocation owns.
const FEW: u32 = 4;

pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Rng {
        Rng(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0x1234_5678_9ABC_DEF1)
    }

    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.bits() % n as u64) as usize
    }

    fn pick<T: Copy>(&mut self, list: &[T]) -> Option<T> {
        (!list.is_empty()).then(|| list[self.below(list.len())])
    }
}

/// The inputs of the kernel with this seed.
pub fn launch(seed: u64) -> Launch {
    let mut rng = Rng::new(!seed);
    let small = |rng: &mut Rng| if rng.below(3) == 0 { rng.bits() as u32 } else { rng.below(16) as u32 };
    let ints: Vec<u32> = (0..INPUTS).map(|_| small(&mut rng)).collect();
    let floats: Vec<f32> = (0..INPUTS).map(|_| (rng.below(2001) as f32 - 1000.0) / 64.0).collect();
    let n = (INVOCATIONS * OWN) as usize;
    let few = (INVOCATIONS * FEW) as usize;
    let float = |rng: &mut Rng| (rng.below(2001) as f32 - 1000.0) / 64.0;
    let data = |ty, n, mut bits: Box<dyn FnMut() -> u64>| BufferData { ty, bits: (0..n).map(|_| bits()).collect() };
    let mut other =
        [Rng::new(seed ^ 1), Rng::new(seed ^ 2), Rng::new(seed ^ 3), Rng::new(seed ^ 4), Rng::new(seed ^ 5)];
    let [a, b, c, d, e] = &mut other;
    let buffers = vec![
        BufferData::from(&ints[..]),
        BufferData::from(&floats[..]),
        BufferData::zeros(Scalar::U32, n),
        BufferData::zeros(Scalar::F32, n),
        BufferData::zeros(Scalar::U32, 8),
        data(Scalar::F16, few, Box::new(move || f16::from_f32(float(a)).to_bits().into())),
        data(Scalar::Bf16, few, Box::new(move || bf16::from_f32(float(b)).to_bits().into())),
        data(Scalar::I64, few, Box::new(move || c.bits() >> (c.below(4) * 16))),
        // With what nobody reads in the gaps.
        data(Scalar::F32, 4 * few, Box::new(move || float(d).to_bits().into())),
        data(Scalar::U32, MIXED_WORDS as usize * few, Box::new(move || mixed_word(e))),
    ];
    let mut launch = Launch::new(GROUPS, buffers);
    launch.scalars = vec![7, u64::from(1.5f32.to_bits())];
    launch.max_ops = 20_000_000;
    launch
}

type Vec4 = Vector<f32, 4>;
type Vec3 = Vector<f32, 3>;
type Ints = Array<i32, 3>;
/// A vector with a gap behind it that is filled, an array with a gap in each element, 16-bit numbers side by side.
type Mixed = ((Vec3, (f16, bf16)), Array<(bf16, u32), 2>);
/// 12 + 4 bytes, and 2 x 8.
const MIXED_WORDS: u32 = 8;

/// A word that is no NaN, no infinity and no zero, as a float or as two of 16 bits.
fn mixed_word(rng: &mut Rng) -> u64 {
    let half = |rng: &mut Rng| 0x3000 + rng.below(0x1000) as u64;
    half(rng) << 16 | half(rng)
}

struct Gen<'k> {
    k: &'k Builder,
    rng: Rng,
    u: Vec<Var<'k, u32>>,
    i: Vec<Var<'k, i32>>,
    f: Vec<Var<'k, f32>>,
    b: Vec<Var<'k, bool>>,
    l: Vec<Var<'k, i64>>,
    v: Vec<Var<'k, Vec4>>,
    a: Vec<Var<'k, Ints>>,
    m: Vec<Var<'k, Mixed>>,
    /// Plain values in scope.
    values: Vec<Val<'k, u32>>,
    /// Places in the private array, to be used again.
    places: Vec<Val<'k, u32>>,
    loops: Vec<Loop<'k>>,
    /// Loops that run once, as functions with an early return do.
    once: Vec<Loop<'k>>,
    ints: impasto_kernel::Buf<'k, u32>,
    floats: impasto_kernel::Buf<'k, f32>,
    out_u: BufMut<'k, u32>,
    out_f: BufMut<'k, f32>,
    counts: BufMut<'k, u32>,
    halves: BufMut<'k, f16>,
    brains: BufMut<'k, bf16>,
    longs: BufMut<'k, i64>,
    threes: BufMut<'k, Vec3>,
    mixed: BufMut<'k, Mixed>,
    shared: BufMut<'k, u32>,
    shared_pairs: BufMut<'k, (bf16, Vec3)>,
    private: BufMut<'k, i32>,
    private_pairs: BufMut<'k, (Vec3, bf16)>,
    own: Val<'k, u32>,
    few: Val<'k, u32>,
    budget: usize,
    may_return: bool,
    anything: bool,
    /// Whether some invocations may be gone, so that a barrier is not allowed.
    diverged: bool,
}

/// The kernel with this seed; about `size` statements.
pub fn kernel(seed: u64, size: usize) -> Kernel {
    write(seed, size, true)
}

/// The same without what Mesa 22.3 computes wrongly: comparisons of 64-bit integers (`(i as i64) < 4` where `i` counts a loop), and
/// float constants, since those may fold to 0, and a product with a constant 0 is 0 there, also of infinity.
pub fn kernel_for_mesa(seed: u64, size: usize) -> Kernel {
    write(seed, size, false)
}

fn write(seed: u64, size: usize, anything: bool) -> Kernel {
    let made = Builder::kernel(&format!("random{seed}"), WORKGROUP, |k| {
        let n = k.param::<u32>("n");
        let scale = k.param::<f32>("scale");
        let (ints, floats) = (k.buffer("ints"), k.buffer::<f32>("floats"));
        let (out_u, out_f, counts) = (k.buffer_mut("out_u"), k.buffer_mut("out_f"), k.buffer_mut("counts"));
        let (halves, brains, longs) = (k.buffer_mut("halves"), k.buffer_mut("brains"), k.buffer_mut("longs"));
        let (threes, mixed) = (k.buffer_mut("threes"), k.buffer_mut("mixed"));
        let (shared, shared_pairs) = (k.shared("shared", 8), k.shared("shared_pairs", 8));
        let (private, private_pairs) = (k.private("private", PRIVATE), k.private("private_pairs", PRIVATE));
        let gid = k.global_id(1) * 8u32 + k.global_id(0);
        let mut g = Gen {
            k,
            rng: Rng::new(seed),
            u: Vec::new(),
            i: Vec::new(),
            f: Vec::new(),
            b: Vec::new(),
            l: Vec::new(),
            v: Vec::new(),
            a: Vec::new(),
            m: Vec::new(),
            values: vec![n, gid, k.local_index()],
            places: vec![k.local_index() % PRIVATE],
            loops: Vec::new(),
            once: Vec::new(),
            ints,
            floats,
            out_u,
            out_f,
            counts,
            halves,
            brains,
            longs,
            threes,
            mixed,
            shared,
            shared_pairs,
            private,
            private_pairs,
            own: gid * OWN,
            few: gid * FEW,
            budget: size,
            may_return: true,
            anything,
            diverged: false,
        };
        g.f.push(k.var(if anything { scale } else { floats.load(0) }));
        for _ in 0..2 {
            g.declare();
        }
        while g.budget > 0 {
            g.statement(0, true);
        }
        g.store_all();
    });
    made.unwrap_or_else(|e| panic!("seed {seed}: {e}"))
}

impl<'k> Gen<'k> {
    fn declare(&mut self) {
        let k = self.k;
        match self.rng.below(8) {
            7 => {
                let x = self.mix(1);
                self.m.push(k.var(x));
            }
            0 | 1 => {
                let x = self.int(2);
                self.u.push(k.var(x));
            }
            2 => {
                let x = self.signed(2);
                self.i.push(k.var(x));
            }
            3 => {
                let x = self.float(2);
                self.f.push(k.var(x));
            }
            4 => {
                let x = self.truth(2);
                self.b.push(k.var(x));
            }
            5 => {
                let x = self.long(2);
                self.l.push(k.var(x));
            }
            _ if self.rng.below(2) == 0 => {
                let x = self.vector(1);
                self.v.push(k.var(x));
            }
            _ => {
                let x = [self.signed(1), self.signed(1), self.signed(1)];
                self.a.push(k.var(k.array(x)));
            }
        }
    }

    /// Runs `body` in a scope: what it declares is gone afterwards.
    fn scope(&mut self, body: impl FnOnce(&mut Self)) {
        let n = (self.u.len(), self.i.len(), self.f.len(), self.b.len(), self.l.len(), self.v.len(), self.a.len());
        let (values, places, m) = (self.values.len(), self.places.len(), self.m.len());
        body(self);
        self.m.truncate(m);
        self.u.truncate(n.0);
        self.i.truncate(n.1);
        self.f.truncate(n.2);
        self.b.truncate(n.3);
        self.l.truncate(n.4);
        self.v.truncate(n.5);
        self.a.truncate(n.6);
        self.values.truncate(values);
        self.places.truncate(places);
    }

    fn block(&mut self, depth: usize) {
        self.scope(|g| {
            for _ in 0..1 + g.rng.below(4) {
                g.statement(depth, false);
            }
        });
    }

    /// A workgroup array, written by each, read by all after a barrier.
    fn exchange(&mut self) {
        let k = self.k;
        let x = self.int(2);
        self.shared.store(k.local_index(), x);
        let pair = (self.tame(1), k.vector([self.tame(0), self.tame(0), self.tame(0)]));
        self.shared_pairs.store(k.local_index(), k.pair(pair.0.to::<bf16>(), pair.1));
        k.barrier();
        let i = (k.local_index() + self.rng.below(8) as u32) % 8u32;
        let y = self.shared.load(i);
        self.values.push(y);
        let pair = self.shared_pairs.load(i);
        self.values.push(pair.first().to::<f32>().to::<u32>() + pair.second().component(2).to::<u32>());
        k.barrier();
    }

    fn assign(&mut self) {
        let pick = self.rng.below(9);
        match pick {
            8 if !self.m.is_empty() => {
                let x = self.mix(1);
                self.m[self.rng.below(self.m.len())].set(x);
            }
            0 | 1 if !self.u.is_empty() => {
                let x = self.int(2);
                self.u[self.rng.below(self.u.len())].set(x);
            }
            2 if !self.i.is_empty() => {
                let x = self.signed(2);
                self.i[self.rng.below(self.i.len())].set(x);
            }
            3 if !self.f.is_empty() => {
                let x = self.float(2);
                self.f[self.rng.below(self.f.len())].set(x);
            }
            4 if !self.b.is_empty() => {
                let x = self.truth(2);
                self.b[self.rng.below(self.b.len())].set(x);
            }
            5 if !self.l.is_empty() => {
                let x = self.long(2);
                self.l[self.rng.below(self.l.len())].set(x);
            }
            6 if !self.v.is_empty() => {
                let x = self.vector(2);
                self.v[self.rng.below(self.v.len())].set(x);
            }
            7 if !self.a.is_empty() => {
                let a = self.a[self.rng.below(self.a.len())];
                let x = self.signed(1);
                a.set(a.get().with(self.rng.below(3) as u32, x));
            }
            _ => self.declare(),
        }
    }

    /// A place in the private array: a constant, one that was used before, or a new one.
    fn place(&mut self) -> Val<'k, u32> {
        match self.rng.below(4) {
            0 => self.k.lit(self.rng.below(PRIVATE as usize) as u32),
            1 => self.int(1) % PRIVATE,
            _ => self.rng.pick(&self.places).unwrap_or_else(|| self.k.lit(0)),
        }
    }

    fn store(&mut self) {
        match self.rng.below(13) {
            8 => {
                let (i, x) = (self.mine(), self.float(2));
                self.halves.store(i, x.to::<f16>());
            }
            9 => {
                let (i, x) = (self.mine(), self.float(2));
                self.brains.store(i, x.to::<bf16>());
            }
            10 => {
                let (i, x) = (self.mine(), self.long(2));
                self.longs.store(i, x);
            }
            11 => {
                let (i, x) = (self.mine(), [self.float(1), self.float(1), self.float(1)]);
                self.threes.store(i, self.k.vector(x));
            }
            12 => {
                let (i, x) = (self.mine(), self.mix(2));
                self.mixed.store(i, x);
                let (i, x) = (self.place(), [self.tame(1), self.tame(0), self.tame(0)]);
                let last = self.tame(0).to::<bf16>();
                self.private_pairs.store(i, self.k.pair(self.k.vector(x), last));
            }
            4 | 5 => {
                let x = self.int(2);
                self.out_u.store(self.own + self.rng.below(4) as u32, x);
            }
            0 => {
                let (i, x) = (self.int(1) % OWN, self.int(2));
                self.out_u.store(self.own + i, x);
            }
            1 => {
                let x = self.float(2);
                self.out_f.store(self.own + self.rng.below(OWN as usize) as u32, x);
            }
            2 => {
                let (i, x) = (self.int(1) % 8u32, self.int(1) & 7u32);
                self.counts.atomic_add(i, x);
            }
            _ => {
                if self.rng.below(4) == 0 {
                    let place = self.int(1) % PRIVATE;
                    self.places.push(place);
                }
                let (i, x) = (self.place(), self.signed(2));
                self.private.store(i, x);
            }
        }
    }

    fn statement(&mut self, depth: usize, uniform: bool) {
        self.budget = self.budget.saturating_sub(1);
        let k = self.k;
        let deep = depth >= 5 || self.budget == 0;
        match self.rng.below(if deep { 9 } else { 17 }) {
            0 | 1 => self.declare(),
            2..=5 => self.assign(),
            6 => self.store(),
            7 => {
                let c = self.truth(2);
                let target = self.rng.pick(&self.loops);
                let end = self.rng.pick(&self.once).filter(|_| self.rng.below(2) == 0);
                let (leave, returns) = (self.rng.below(2) == 0, self.may_return && self.rng.below(6) == 0);
                self.diverged |= returns;
                k.if_(c, || match (end, target) {
                    _ if returns => k.return_(),
                    (Some(l), _) => l.break_(),
                    (_, Some(l)) if leave => l.break_(),
                    (_, Some(l)) => l.continue_(),
                    _ => (),
                });
            }
            8 => {
                let x = self.int(1);
                self.values.push(x);
                if uniform && !self.diverged {
                    self.exchange();
                }
            }
            9 | 10 => {
                let c = self.truth(2);
                let g = std::cell::RefCell::new(&mut *self);
                k.if_else(c, || g.borrow_mut().block(depth + 1), || g.borrow_mut().block(depth + 1));
            }
            11 => {
                let c = self.truth(1);
                let g = std::cell::RefCell::new(&mut *self);
                let x = k.if_value(
                    c,
                    || {
                        let mut result = k.lit(0);
                        g.borrow_mut().scope(|g| {
                            g.statement(depth + 1, false);
                            result = g.int(1);
                        });
                        result
                    },
                    || g.borrow_mut().int(2),
                );
                self.out_u.store(self.own + 1u32, x);
            }
            12 => {
                let x = self.int(1) % 5u32;
                let g = std::cell::RefCell::new(&mut *self);
                k.match_(
                    x,
                    |arms| {
                        arms.case(&[0], || g.borrow_mut().block(depth + 1));
                        arms.case(&[1, 3], || g.borrow_mut().block(depth + 1));
                    },
                    || g.borrow_mut().block(depth + 1),
                );
            }
            13 => {
                let turns = self.rng.below(4) as u32;
                let count = k.var(0u32);
                k.loop_(|l| {
                    count.set(count.get() + 1u32);
                    k.if_(count.get().gt(turns), || l.break_());
                    self.loops.push(l);
                    self.block(depth + 1);
                    self.loops.pop();
                });
            }
            14 => {
                let (from, to) = (self.rng.below(3) as i32 - 1, self.int(0) % 4u32);
                let step = 1 + self.rng.below(2) as u32;
                let to = if self.rng.below(2) == 0 { k.lit(self.rng.below(6) as i32) } else { to.to::<i32>() };
                k.for_step(from, to, step, |l, i| {
                    self.loops.push(l);
                    self.scope(|g| {
                        g.i.push(k.var(i));
                        g.block(depth + 1);
                    });
                    self.loops.pop();
                });
            }
            15 => k.loop_(|l| {
                self.once.push(l);
                self.block(depth + 1);
                self.once.pop();
                l.break_();
            }),
            _ if uniform && !self.diverged => {
                // All invocations take the same turns, so that barriers may stand inside.
                let loops = (std::mem::take(&mut self.loops), std::mem::take(&mut self.once));
                let may_return = std::mem::replace(&mut self.may_return, false);
                k.for_(0u32, 1 + self.rng.below(3) as u32, |_, i| {
                    self.scope(|g| {
                        g.values.push(i);
                        g.statement(depth + 1, true);
                        g.exchange();
                        g.statement(depth + 1, true);
                    });
                });
                ((self.loops, self.once), self.may_return) = (loops, may_return);
            }
            _ => self.block(depth + 1),
        }
    }

    /// Stores what was computed, but not all of it: a variable that is not read at the end may be read in a loop only.
    fn store_all(&mut self) {
        let k = self.k;
        let rng = std::cell::RefCell::new(&mut self.rng);
        let keep = || rng.borrow_mut().below(3) > 0;
        self.u.retain(|_| keep());
        self.i.retain(|_| keep());
        self.f.retain(|_| keep());
        self.b.retain(|_| keep());
        self.l.retain(|_| keep());
        self.v.retain(|_| keep());
        self.a.retain(|_| keep());
        self.m.retain(|_| keep());
        for (j, v) in self.m.iter().enumerate() {
            self.mixed.store(self.few + j as u32 % FEW, v.get());
        }
        let mut word = k.lit(0u32);
        for v in &self.i {
            word = word * 31u32 + v.get().to::<u32>();
        }
        for v in &self.b {
            word = word * 31u32 + v.get().to::<u32>();
        }
        for v in &self.l {
            word = word * 31u32 + (v.get() ^ (v.get() >> 32i64)).to::<u32>();
        }
        for v in &self.a {
            word = word * 31u32 + v.get().element(1).to::<u32>();
        }
        self.out_u.store(self.own, word);
        for (j, v) in self.u.iter().enumerate() {
            self.out_u.store(self.own + (1 + j as u32) % OWN, v.get());
        }
        for (j, v) in self.f.iter().enumerate() {
            self.out_f.store(self.own + j as u32 % OWN, v.get());
        }
        for (j, v) in self.v.iter().enumerate() {
            self.out_f.store(self.own + (8 + j as u32) % OWN, v.get().component(j as u32 % 4));
        }
    }
}
