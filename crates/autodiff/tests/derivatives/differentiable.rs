//! Random kernels that have derivatives: smooth arithmetic on variables, vectors and arrays, in nested ifs, matches and loops that are left from
//! any depth, with bounds from buffers, early return, private arrays, memory of the workgroup and atomic sums.

use impasto_kernel::{Array, Buf, BufMut, BufferData, Builder, Kernel, Launch, Loop, Val, Var, Vector};

use super::gradients;
use impasto_testkit::kernel::random::Rng;

const INVOCATIONS: u32 = 8;
const OWN: u32 = 4;
const INPUTS: u32 = 8;
const PRIVATE: u32 = 3;

/// The inputs of the kernel with this seed.
pub fn launch(seed: u64) -> Launch {
    let mut rng = Rng::new(!seed);
    // Never zero, where many functions have kinks.
    let floats: Vec<f64> = (0..INPUTS).map(|_| (rng.below(2001) as f64 - 1000.37) / 900.0).collect();
    let ints: Vec<u32> = (0..INPUTS).map(|_| rng.below(6) as u32).collect();
    let n = (INVOCATIONS * OWN) as usize;
    let buffers = vec![
        BufferData::wide(&floats),
        BufferData::from(&ints[..]),
        BufferData::wide(&vec![0.0; n]),
        BufferData::wide(&[0.25; 4]),
    ];
    let mut launch = gradients::wide(2, buffers);
    launch.scalars = vec![0.7f64.to_bits()];
    launch
}

type Vec3 = Vector<f32, 3>;
type Floats = Array<f32, 2>;

struct Gen<'k> {
    k: &'k Builder,
    rng: Rng,
    x: Buf<'k, f32>,
    n: Buf<'k, u32>,
    y: BufMut<'k, f32>,
    sums: BufMut<'k, f32>,
    shared: BufMut<'k, f32>,
    private: BufMut<'k, f32>,
    param: Val<'k, f32>,
    f: Vec<Var<'k, f32>>,
    u: Vec<Var<'k, u32>>,
    v: Vec<Var<'k, Vec3>>,
    a: Vec<Var<'k, Floats>>,
    values: Vec<Val<'k, u32>>,
    loops: Vec<Loop<'k>>,
    own: Val<'k, u32>,
    budget: usize,
    may_return: bool,
    diverged: bool,
    once: bool,
}

/// The kernel with this seed.
pub fn kernel(seed: u64, size: usize) -> Kernel {
    generate(seed, size, false)
}

/// One that writes no element of its output twice, so that its adjoint has an adjoint.
pub fn kernel_that_writes_once(seed: u64, size: usize) -> Kernel {
    generate(seed, size, true)
}

fn generate(seed: u64, size: usize, once: bool) -> Kernel {
    gradients::kernel("random", 4, |k| {
        let (x, n) = (k.buffer::<f32>("x"), k.buffer::<u32>("n"));
        let (y, sums) = (k.buffer_mut::<f32>("y"), k.buffer_mut::<f32>("sums"));
        let (shared, private) = (k.shared::<f32>("shared", 4), k.private::<f32>("private", PRIVATE));
        let param = k.param::<f32>("param");
        let own = k.global_id(0) * OWN;
        let mut g = Gen {
            k,
            rng: Rng::new(seed),
            x,
            n,
            y,
            sums,
            shared,
            private,
            param,
            f: Vec::new(),
            u: Vec::new(),
            v: Vec::new(),
            a: Vec::new(),
            values: vec![k.global_id(0)],
            loops: Vec::new(),
            own,
            budget: size,
            may_return: true,
            diverged: false,
            once,
        };
        for _ in 0..3 {
            g.declare();
        }
        while g.budget > 0 {
            g.statement(0, true);
        }
        let last = g.tame(1) * x.load(0);
        g.f.push(k.var(last));
        let all = if once { OWN as usize } else { g.f.len() };
        for (j, v) in g.f.clone().into_iter().rev().take(all).enumerate() {
            y.store(own + j as u32 % OWN, v.get());
        }
        for (j, v) in g.v.clone().into_iter().enumerate() {
            sums.atomic_sum(j as u32 % 4, v.get().component(j as u32 % 3));
        }
    })
}

impl<'k> Gen<'k> {
    fn scope(&mut self, body: impl FnOnce(&mut Self)) {
        let marks = (self.f.len(), self.u.len(), self.v.len(), self.a.len(), self.values.len());
        body(self);
        self.f.truncate(marks.0);
        self.u.truncate(marks.1);
        self.v.truncate(marks.2);
        self.a.truncate(marks.3);
        self.values.truncate(marks.4);
    }

    fn declare(&mut self) {
        match self.rng.below(6) {
            0 => {
                let x = self.int(1);
                self.u.push(self.k.var(x));
            }
            1 => {
                let c = [self.float(1), self.float(1), self.float(0)];
                self.v.push(self.k.var(self.k.vector(c)));
            }
            2 => {
                let c = [self.float(1), self.float(1)];
                self.a.push(self.k.var(self.k.array(c)));
            }
            _ => {
                let x = self.float(1);
                self.f.push(self.k.var(x));
            }
        }
    }

    fn int(&mut self, depth: usize) -> Val<'k, u32> {
        let k = self.k;
        if depth == 0 {
            return match self.rng.below(4) {
                0 => k.lit(self.rng.below(4) as u32),
                1 if !self.u.is_empty() => self.u[self.rng.below(self.u.len())].get(),
                2 => {
                    let i = self.int(1) % INPUTS;
                    self.n.load(i)
                }
                _ => self.values[self.rng.below(self.values.len())],
            };
        }
        let (a, b) = (self.int(depth - 1), self.int(depth - 1));
        match self.rng.below(3) {
            0 => a + b,
            1 => a % 3u32 + b,
            _ => a ^ b,
        }
    }

    /// A smooth function of what there is, between -5 and 5 or so.
    fn float(&mut self, depth: usize) -> Val<'k, f32> {
        let k = self.k;
        if depth == 0 {
            return match self.rng.below(8) {
                0 => k.lit((self.rng.below(21) as f32 - 10.0) / 8.0),
                1 => self.param,
                2 if !self.v.is_empty() => {
                    self.v[self.rng.below(self.v.len())].get().component(self.rng.below(3) as u32)
                }
                3 if !self.a.is_empty() => self.a[self.rng.below(self.a.len())].get().element(self.rng.below(2) as u32),
                4 => {
                    let i = self.place();
                    self.private.load(i)
                }
                5 | 6 if !self.f.is_empty() => self.f[self.rng.below(self.f.len())].get(),
                _ => {
                    let i = self.int(1) % INPUTS;
                    self.x.load(i)
                }
            };
        }
        let d = depth - 1;
        let a = self.float(d);
        match self.rng.below(18) {
            0 => (a + self.float(d)) * 0.5f32,
            1 => (a - self.float(d)).tanh(),
            2 | 3 => a.tanh() * self.float(d),
            4 => a.sin(),
            5 => a.cos() * self.float(d).tanh(),
            6 => {
                let b = self.float(d);
                a / (b * b + 1.5f32)
            }
            7 => a.min(self.float(d)),
            8 => a.max(self.float(d)),
            9 => self.truth(d).select(a, self.float(d)),
            10 => (a * a + 0.5f32).sqrt(),
            11 => (a * a + 0.5f32).inverse_sqrt(),
            12 => a.tanh().exp(),
            13 => (a * a + 0.5f32).log(),
            14 => (a.tanh() + 1.5f32).pow(self.float(d).tanh()),
            15 => a.abs() - a.floor() * 0.5f32,
            16 => a.tanh().mul_add(self.float(d), self.float(d)),
            _ => -a * self.int(d).to::<f32>().tanh(),
        }
    }

    /// For loops: what is assigned again and again must not grow.
    fn tame(&mut self, depth: usize) -> Val<'k, f32> {
        let x = self.float(depth);
        if self.rng.below(3) == 0 { x.sin() } else { x.tanh() * 1.5f32 }
    }

    fn truth(&mut self, depth: usize) -> Val<'k, bool> {
        match self.rng.below(3) {
            0 => self.int(depth).lt(self.int(depth)),
            1 => (self.int(depth) & 1u32).eq(0),
            _ => self.float(depth).gt(0.1f32),
        }
    }

    fn place(&mut self) -> Val<'k, u32> {
        if self.rng.below(2) == 0 { self.k.lit(self.rng.below(PRIVATE as usize) as u32) } else { self.int(1) % PRIVATE }
    }

    fn block(&mut self, depth: usize) {
        self.scope(|g| {
            for _ in 0..1 + g.rng.below(4) {
                g.statement(depth, false);
            }
        });
    }

    fn assign(&mut self) {
        match self.rng.below(8) {
            0 if !self.u.is_empty() => {
                let x = self.int(1);
                self.u[self.rng.below(self.u.len())].set(x);
            }
            1 if !self.v.is_empty() => {
                let v = self.v[self.rng.below(self.v.len())];
                let x = self.tame(1);
                let c = self.truth(0);
                v.set(c.select(v.get().with(self.rng.below(3) as u32, x), v.get() * self.k.vector([x, x, x])));
            }
            2 if !self.a.is_empty() => {
                let a = self.a[self.rng.below(self.a.len())];
                let x = self.tame(1);
                a.set(a.get().with(self.rng.below(2) as u32, x));
            }
            3 => {
                let (i, x) = (self.place(), self.tame(1));
                self.private.store(i, x);
            }
            _ if !self.f.is_empty() => {
                let x = self.tame(2);
                let v = self.f[self.rng.below(self.f.len())];
                if self.rng.below(3) == 0 { v.set(v.get() + x) } else { v.set(x) }
            }
            _ => self.declare(),
        }
    }

    fn statement(&mut self, depth: usize, uniform: bool) {
        self.budget = self.budget.saturating_sub(1);
        let k = self.k;
        let deep = depth >= 4 || self.budget == 0;
        match self.rng.below(if deep { 9 } else { 15 }) {
            0 => self.declare(),
            1..=4 => self.assign(),
            5 => {
                let x = self.tame(2);
                match self.rng.below(3) {
                    _ if self.once => self.sums.atomic_sum(self.rng.below(4) as u32, x),
                    0 => self.sums.atomic_sum(self.rng.below(4) as u32, x),
                    1 => {
                        let i = self.int(1) % OWN;
                        self.y.store(self.own + i, x);
                    }
                    _ => self.y.store(self.own + self.rng.below(4) as u32, x),
                }
            }
            6 => {
                let c = self.truth(1);
                let target = (!self.loops.is_empty()).then(|| self.loops[self.rng.below(self.loops.len())]);
                let (leave, returns) = (self.rng.below(2) == 0, self.may_return && self.rng.below(5) == 0);
                self.diverged |= returns;
                k.if_(c, || match target {
                    _ if returns => k.return_(),
                    Some(l) if leave => l.break_(),
                    Some(l) => l.continue_(),
                    None => (),
                });
            }
            7 => {
                // Whole numbers alone may run without a bound.
                let (count, start) = (k.var(0u32), self.int(1));
                k.loop_(|l| {
                    count.set(count.get() + 1u32);
                    k.if_((count.get() + start).gt(6u32), || l.break_());
                });
                self.values.push(count.get());
            }
            8 if uniform && !self.diverged => {
                let x = self.tame(1);
                self.shared.store(k.local_index(), x);
                k.barrier();
                let other = (k.local_index() + self.rng.below(4) as u32) % 4u32;
                self.f.push(k.var(self.shared.load(other)));
                k.barrier();
            }
            8 => self.assign(),
            9 | 10 => {
                let c = self.truth(1);
                let g = std::cell::RefCell::new(&mut *self);
                k.if_else(c, || g.borrow_mut().block(depth + 1), || g.borrow_mut().block(depth + 1));
            }
            11 => {
                let x = self.int(1) % 4u32;
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
            12 | 13 => {
                let to = self.int(0) % 5u32;
                let (from, step) = (self.rng.below(3) as i32 - 1, 1 + self.rng.below(2) as u32);
                k.for_step(from, to.to::<i32>(), step, |l, i| {
                    self.loops.push(l);
                    self.scope(|g| {
                        g.values.push(i.to::<u32>());
                        g.block(depth + 1);
                    });
                    self.loops.pop();
                });
            }
            _ => {
                let (count, bound) = (k.var(0u32), self.int(0) % 6u32);
                let (some, float) = (self.rng.below(5) as u32, self.float(1));
                k.while_bounded(
                    bound,
                    || count.get().lt(some) & float.lt(1.2f32),
                    |l| {
                        count.set(count.get() + 1u32);
                        self.loops.push(l);
                        self.block(depth + 1);
                        self.loops.pop();
                    },
                );
            }
        }
    }
}
