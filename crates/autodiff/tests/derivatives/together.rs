//! Random differentiable kernels whose invocations work together: what one reads, in loops and branches, another wrote into memory of the workgroup.

use impasto_kernel::{Buf, BufMut, BufferData, Builder, Kernel, Launch, Val, Var};

use super::gradients::wide;
use impasto_testkit::kernel::random::Rng;

/// Invocations in a workgroup.
const N: u32 = 4;

struct Writer<'k> {
    k: &'k Builder,
    rng: Rng,
    x: Buf<'k, f32>,
    n: Buf<'k, u32>,
    s: BufMut<'k, f32>,
    t: BufMut<'k, u32>,
    v: Var<'k, f32>,
    /// The indices of the loops around, which are the same for all invocations.
    around: Vec<Val<'k, u32>>,
    left: usize,
}

impl<'k> Writer<'k> {
    fn below(&mut self, n: u32) -> u32 {
        self.rng.below(n as usize) as u32
    }

    /// What another invocation wrote.
    fn other(&mut self) -> Val<'k, f32> {
        let by = self.below(N);
        self.s.load((self.k.local_index() + by) % N)
    }

    /// A number that is the same for all invocations, 0 to 3.
    fn uniform(&mut self) -> Val<'k, u32> {
        let at = self.below(6);
        match (self.below(3), self.around.last().copied()) {
            (0, _) => self.k.lit(at % 4),
            (1, Some(i)) => (i + at) % 4u32,
            _ => self.n.load(at) % 4u32,
        }
    }

    fn change(&mut self) {
        let (v, other) = (self.v.get(), self.other());
        self.v.set(match self.below(4) {
            0 => v * other,
            1 => v + other * other * 0.5f32,
            2 => (v * 0.7f32 + other).sin(),
            _ => v / (other * other + 1.0f32),
        });
    }

    fn statements(&mut self, depth: usize) {
        for _ in 0..1 + self.below(3) {
            if self.left == 0 {
                return;
            }
            self.left -= 1;
            self.statement(depth);
        }
    }

    fn statement(&mut self, depth: usize) {
        let (k, lane) = (self.k, self.k.local_index());
        match self.below(if depth < 3 { 8 } else { 4 }) {
            0 | 1 => {
                k.barrier();
                self.s.store(lane, self.v.get());
                k.barrier();
                self.change();
            }
            2 => {
                k.barrier();
                self.t.store(lane, self.uniform() + lane);
                k.barrier();
                let at = self.t.load((lane + 1u32) % N);
                self.v.set(self.v.get() * self.x.load(at % 6u32) + 0.3f32);
            }
            3 => {
                // Alone, so without barriers.
                let (other, by) = (self.other(), self.below(N));
                let c = if by == 0 { other.gt(0.1) } else { lane.lt(by) };
                let v = self.v;
                k.if_else(c, || self.change(), || v.set(v.get() * 0.8f32));
            }
            4 | 5 => {
                let bound = self.uniform();
                let leaves = self.below(3) == 0;
                k.for_(0u32, bound, |l, i| {
                    self.around.push(i);
                    self.statements(depth + 1);
                    if leaves {
                        let at = self.below(6);
                        k.if_(self.n.load(at).gt(i + 2u32), || l.break_());
                        self.statements(depth + 1);
                    }
                    self.around.pop();
                });
            }
            _ => {
                let c = self.uniform().lt(2);
                let both = self.below(2) == 0;
                // One writer writes both ways, one after the other.
                let this = std::cell::RefCell::new(self);
                k.if_else(
                    c,
                    || this.borrow_mut().statements(depth + 1),
                    || {
                        if both {
                            this.borrow_mut().statements(depth + 1);
                        }
                    },
                );
            }
        }
    }
}

pub fn kernel(seed: u64, statements: usize) -> Kernel {
    let made = Builder::kernel("together", [N, 1, 1], |k| {
        let (x, n, y) = (k.buffer::<f32>("x"), k.buffer::<u32>("n"), k.buffer_mut::<f32>("y"));
        let (s, t) = (k.shared::<f32>("s", N), k.shared::<u32>("t", N));
        let v = k.var(x.load(k.global_id(0) % 6u32));
        s.store(k.local_index(), v.get());
        k.barrier();
        let mut w = Writer { k, rng: Rng::new(seed ^ 0x7065), x, n, s, t, v, around: Vec::new(), left: statements };
        while w.left > 0 {
            w.statements(0);
        }
        y.store(k.global_id(0), v.get());
    });
    made.unwrap_or_else(|e| panic!("seed {seed}: {e}"))
}

pub fn launch(seed: u64) -> Launch {
    let mut rng = Rng::new(seed);
    let x: Vec<f64> = (0..6).map(|_| (rng.below(2001) as f64 - 1000.0) / 900.0).collect();
    let n: Vec<u32> = (0..6).map(|_| rng.below(6) as u32).collect();
    wide(2, vec![BufferData::wide(&x), BufferData::from(&n[..]), BufferData::wide(&[0.0; 2 * N as usize])])
}
