//! Which invocations of a workgroup are active: one bit each.

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Mask([u64; 16]);

impl Mask {
    pub(super) fn first(n: usize) -> Mask {
        let mut m = Mask::default();
        (0..n).for_each(|i| m.set(i));
        m
    }

    pub(super) fn set(&mut self, i: usize) {
        self.0[i / 64] |= 1 << (i % 64);
    }

    pub(super) fn has(&self, i: usize) -> bool {
        self.0[i / 64] >> (i % 64) & 1 == 1
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0 == [0; 16]
    }

    pub(super) fn or(&mut self, other: Mask) {
        self.0.iter_mut().zip(other.0).for_each(|(a, b)| *a |= b);
    }

    /// The active invocations, in order.
    pub(super) fn lanes(&self) -> impl Iterator<Item = usize> + use<> {
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
