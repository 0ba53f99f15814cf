//! Which invocations of a workgroup are active: one bit each.

/// A set of invocations of a workgroup.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Mask([u64; 16]);

impl Mask {
    /// The first `n` invocations.
    pub fn first(n: usize) -> Mask {
        let mut m = Mask::default();
        (0..n).for_each(|i| m.set(i));
        m
    }

    /// Adds an invocation.
    pub fn set(&mut self, i: usize) {
        self.0[i / 64] |= 1 << (i % 64);
    }

    /// Whether an invocation is active.
    pub fn has(&self, i: usize) -> bool {
        self.0[i / 64] >> (i % 64) & 1 == 1
    }

    /// Whether none is active.
    pub fn is_empty(&self) -> bool {
        self.0 == [0; 16]
    }

    /// How many are active.
    pub fn count(&self) -> u64 {
        self.0.iter().map(|w| u64::from(w.count_ones())).sum()
    }

    /// Adds the invocations of another set.
    pub fn or(&mut self, other: Mask) {
        self.0.iter_mut().zip(other.0).for_each(|(a, b)| *a |= b);
    }

    /// The active invocations, in order.
    #[inline]
    pub fn lanes(&self) -> impl Iterator<Item = usize> + use<> {
        let words = self.0;
        (0..16).flat_map(move |w| {
            let mut bits = words[w];
            std::iter::from_fn(move || {
                let i = bits.trailing_zeros() as usize;
                (bits != 0).then(|| {
                    bits &= bits - 1;
                    w * 64 + i
                })
            })
        })
    }
}
