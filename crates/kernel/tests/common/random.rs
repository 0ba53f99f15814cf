//! Random structured kernels: nested ifs, matches and loops with break and continue to any of them, early return, variables of all
//! kinds, private arrays, workgroup memory with barriers where all invocations come by, atomics.
//!
//! They end, stay in bounds, and do not race; the results are the same on every device: integers, comparisons and + - x.

use impasto_kernel::{Array, BufMut, Builder, Data, Kernel, Launch, Loop, Scalar, Val, Var, Vector};

pub const WORKGROUP: [u32; 3] = [4, 2, 1];
pub const GROUPS: [u32; 3] = [2, 1, 1];
const INVOCATIONS: u32 = 16;
/// Elements of an output that each invocation owns.
const OWN: u32 = 16;
const INPUTS: u32 = 32;
const PRIVATE: u32 = 5;

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
    let buffers = vec![
        Data::from(&ints[..]),
        Data::from(&floats[..]),
        Data::zeros(Scalar::U32, n),
        Data::zeros(Scalar::F32, n),
        Data::zeros(Scalar::U32, 8),
    ];
    let mut launch = Launch::new(GROUPS, buffers);
    launch.scalars = vec![7, u64::from(1.5f32.to_bits())];
    launch.max_ops = 20_000_000;
    launch
}

type Vec4 = Vector<f32, 4>;
type Ints = Array<i32, 3>;

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
    shared: BufMut<'k, u32>,
    private: BufMut<'k, i32>,
    own: Val<'k, u32>,
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
        let shared = k.shared("shared", 8);
        let private = k.private("private", PRIVATE);
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
            values: vec![n, gid, k.local_index()],
            places: vec![k.local_index() % PRIVATE],
            loops: Vec::new(),
            once: Vec::new(),
            ints,
            floats,
            out_u,
            out_f,
            counts,
            shared,
            private,
            own: gid * OWN,
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
        match self.rng.below(7) {
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
        let (values, places) = (self.values.len(), self.places.len());
        body(self);
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

    fn int(&mut self, depth: usize) -> Val<'k, u32> {
        let k = self.k;
        if depth == 0 {
            return match self.rng.below(4) {
                0 => k.lit(if self.rng.below(4) == 0 { self.rng.bits() as u32 } else { self.rng.below(8) as u32 }),
                1 => match self.rng.pick(&self.u) {
                    Some(v) => v.get(),
                    None => k.lit(3),
                },
                _ => self.rng.pick(&self.values).unwrap_or_else(|| k.lit(5)),
            };
        }
        let (a, d) = (self.int(depth - 1), depth - 1);
        match self.rng.below(16) {
            0 => a + self.int(d),
            1 => a - self.int(d),
            2 => a * self.int(d),
            3 => a / self.int(d),
            4 => a % self.int(d),
            5 => a & self.int(d),
            6 => a | self.int(d),
            7 => a ^ self.int(d),
            8 => a << self.int(d),
            9 => a >> self.int(d),
            10 => a.min(self.int(d)),
            11 => self.truth(d).select(a, self.int(d)),
            12 => self.signed(d).to::<u32>(),
            13 if self.rng.below(2) == 0 => self.out_u.load(self.own + self.rng.below(4) as u32),
            13 => self.ints.load(a % INPUTS),
            14 => !a.count_ones(),
            _ => self.long(d).to::<u32>() + self.float(d).to::<u32>(),
        }
    }

    fn signed(&mut self, depth: usize) -> Val<'k, i32> {
        let k = self.k;
        if depth == 0 {
            return match (self.rng.below(4), self.rng.pick(&self.i), self.rng.pick(&self.a)) {
                (0, _, _) => k.lit(self.rng.below(9) as i32 - 4),
                (1, _, Some(a)) => a.get().element(self.rng.below(3) as u32),
                (_, Some(v), _) => v.get(),
                _ => self.int(0).to::<i32>(),
            };
        }
        let (a, d) = (self.signed(depth - 1), depth - 1);
        match self.rng.below(12) {
            0 => a + self.signed(d),
            1 => a - self.signed(d),
            2 => a * self.signed(d),
            3 => a / self.signed(d),
            4 => a % self.signed(d),
            5 => a >> self.signed(d),
            6 => a.max(self.signed(d)),
            7 => -a,
            8 => a.abs(),
            9 => self.float(d).to::<i32>(),
            10 => self.private.load(self.rng.below(PRIVATE as usize) as u32),
            _ => {
                let i = self.place();
                self.private.load(i)
            }
        }
    }

    fn long(&mut self, depth: usize) -> Val<'k, i64> {
        let k = self.k;
        if depth == 0 {
            return match (self.rng.below(3), self.rng.pick(&self.l)) {
                (0, _) => k.lit(self.rng.bits() as i64 >> 20),
                (_, Some(v)) => v.get(),
                _ => self.signed(0).to::<i64>(),
            };
        }
        let (a, d) = (self.long(depth - 1), depth - 1);
        match self.rng.below(6) {
            0 => a + self.long(d),
            1 => a * self.long(d),
            2 => a ^ self.long(d),
            3 => a / self.long(d),
            4 => a << self.long(d),
            _ => self.int(d).to::<i64>() - a,
        }
    }

    fn float(&mut self, depth: usize) -> Val<'k, f32> {
        let k = self.k;
        if depth == 0 {
            return match (self.rng.below(3), self.rng.pick(&self.f)) {
                (0, _) if self.anything => k.lit((self.rng.below(17) as f32 - 8.0) / 4.0),
                (_, Some(v)) => v.get(),
                _ => self.floats.load(self.rng.below(INPUTS as usize) as u32),
            };
        }
        let (a, d) = (self.float(depth - 1), depth - 1);
        match self.rng.below(11) {
            0 => a + self.float(d),
            1 => a - self.float(d),
            2 | 3 => a * self.float(d),
            4 => a.min(self.float(d)),
            5 => a.max(self.float(d)),
            6 => -a.floor(),
            7 => self.truth(d).select(a, self.float(d)),
            8 if self.anything => (self.int(d) % 1024u32).to::<f32>(),
            8 => ((self.int(d) % 1024u32) | 1u32).to::<f32>(),
            9 => self.vector(d).component(self.rng.below(4) as u32),
            _ => {
                let i = self.int(d) % INPUTS;
                self.floats.load(i)
            }
        }
    }

    fn vector(&mut self, depth: usize) -> Val<'k, Vec4> {
        if let (Some(v), true) = (self.rng.pick(&self.v), depth == 0 || self.rng.below(3) == 0) {
            return v.get();
        }
        if depth == 0 || self.rng.below(2) == 0 {
            let c = [self.float(0), self.float(0), self.float(0), self.float(0)];
            return self.k.vector(c);
        }
        let (a, d) = (self.vector(depth - 1), depth - 1);
        match self.rng.below(4) {
            0 => a + self.vector(d),
            1 => a * self.vector(d),
            2 => a.with(self.rng.below(4) as u32, self.float(d)),
            _ => self.truth(d).select(a, self.vector(d)),
        }
    }

    fn truth(&mut self, depth: usize) -> Val<'k, bool> {
        let k = self.k;
        if depth == 0 {
            return match (self.rng.below(3), self.rng.pick(&self.b)) {
                (0, _) => k.lit(self.rng.below(2) == 0),
                (1, Some(v)) => v.get(),
                _ => (self.int(0) & 3u32).eq(self.rng.below(4) as u32),
            };
        }
        let d = depth - 1;
        match self.rng.below(7) {
            0 => self.int(d).lt(self.int(d)),
            1 => self.signed(d).le(self.signed(d)),
            2 => self.float(d).gt(self.float(d)),
            3 => self.float(d).ne(self.float(d)),
            4 => self.truth(d) & self.truth(d),
            5 if self.anything => self.long(d).ge(self.long(d)),
            _ => !self.truth(d),
        }
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
        k.barrier();
        let i = (k.local_index() + self.rng.below(8) as u32) % 8u32;
        let y = self.shared.load(i);
        self.values.push(y);
        k.barrier();
    }

    fn assign(&mut self) {
        let pick = self.rng.below(8);
        match pick {
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
        match self.rng.below(8) {
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
