//! Random expressions: so deep, of each type.

use half::{bf16, f16};
use impasto_kernel::Val;

use super::{FEW, Gen, INPUTS, Mixed, PRIVATE, Vec4, mixed_word};

impl<'k> Gen<'k> {
    pub(super) fn int(&mut self, depth: usize) -> Val<'k, u32> {
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
        match self.rng.below(18) {
            16 => self.mix(d).second().element(self.rng.below(2) as u32).second(),
            17 => self.bits(d),
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

    pub(super) fn signed(&mut self, depth: usize) -> Val<'k, i32> {
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

    pub(super) fn long(&mut self, depth: usize) -> Val<'k, i64> {
        let k = self.k;
        if depth == 0 {
            return match (self.rng.below(3), self.rng.pick(&self.l)) {
                (0, _) => k.lit(self.rng.bits() as i64 >> 20),
                (_, Some(v)) => v.get(),
                _ => self.signed(0).to::<i64>(),
            };
        }
        let (a, d) = (self.long(depth - 1), depth - 1);
        match self.rng.below(7) {
            6 => {
                let i = self.mine();
                self.longs.load(i)
            }
            0 => a + self.long(d),
            1 => a * self.long(d),
            2 => a ^ self.long(d),
            3 => a / self.long(d),
            4 => a << self.long(d),
            _ => self.int(d).to::<i64>() - a,
        }
    }

    pub(super) fn float(&mut self, depth: usize) -> Val<'k, f32> {
        let k = self.k;
        if depth == 0 {
            return match (self.rng.below(3), self.rng.pick(&self.f)) {
                (0, _) if self.anything => k.lit((self.rng.below(17) as f32 - 8.0) / 4.0),
                (_, Some(v)) => v.get(),
                _ => self.floats.load(self.rng.below(INPUTS as usize) as u32),
            };
        }
        let (a, d) = (self.float(depth - 1), depth - 1);
        match self.rng.below(15) {
            11 => {
                let i = self.mine();
                self.halves.load(i).to::<f32>()
            }
            12 => {
                let i = self.mine();
                self.brains.load(i).to::<f32>()
            }
            13 => {
                let i = self.mine();
                self.threes.load(i).component(self.rng.below(3) as u32)
            }
            14 => match self.rng.below(4) {
                0 => self.mix(d).first().first().component(self.rng.below(3) as u32),
                1 => self.mix(d).first().second().first().to::<f32>(),
                2 => self.mix(d).second().element(self.rng.below(2) as u32).first().to::<f32>(),
                _ => {
                    let i = self.place();
                    let pair = self.private_pairs.load(i);
                    pair.first().component(1) + pair.second().to::<f32>()
                }
            },
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

    pub(super) fn vector(&mut self, depth: usize) -> Val<'k, Vec4> {
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

    /// One of the few elements that this invocation owns.
    pub(super) fn mine(&mut self) -> Val<'k, u32> {
        match self.rng.below(2) {
            0 => self.few + self.rng.below(FEW as usize) as u32,
            _ => self.few + self.int(0) % FEW,
        }
    }

    /// A float that is no NaN, no infinity and no zero: there are bits of it inside of words.
    pub(super) fn tame(&mut self, depth: usize) -> Val<'k, f32> {
        ((self.int(depth) % 1024u32) | 1u32).to::<f32>()
    }

    /// The bits of numbers of 16 bits.
    pub(super) fn bits(&mut self, depth: usize) -> Val<'k, u32> {
        let (x, i) = (self.tame(depth), self.mine());
        let brain = x.to::<bf16>().bits_as::<f16>().bits_as::<bf16>();
        self.brains.load(i).to::<f32>().bits_as::<u32>() + brain.to::<f32>().bits_as::<u32>()
    }

    pub(super) fn mix(&mut self, depth: usize) -> Val<'k, Mixed> {
        let k = self.k;
        match (self.rng.below(4), self.rng.pick(&self.m)) {
            (0, _) if depth > 0 => {
                let i = self.mine();
                self.mixed.load(i)
            }
            (1, Some(v)) if depth > 0 => {
                let (c, other) = (self.truth(depth - 1), self.mix(depth - 1));
                c.select(v.get(), other)
            }
            (_, Some(v)) => v.get(),
            _ => {
                let v = k.vector([self.tame(0), self.tame(0), self.tame(0)]);
                let small = k.pair(self.tame(0).to::<f16>(), self.tame(0).to::<bf16>());
                let word = k.lit(mixed_word(&mut self.rng) as u32);
                let pairs = [self.tame(0), self.tame(0)].map(|x| k.pair(x.to::<bf16>(), word));
                k.pair(k.pair(v, small), k.array(pairs))
            }
        }
    }

    pub(super) fn truth(&mut self, depth: usize) -> Val<'k, bool> {
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
}
