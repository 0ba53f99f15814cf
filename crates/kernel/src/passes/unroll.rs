//! Unrolling: a `for` with constant bounds is written out, if nothing breaks or continues it early and it stays small. A loop over a private
//! array may become larger: with constant indices the array can vanish into values. Other loops are left to drivers, which know their
//! registers. Cost: linear in what is written, and no loop grows beyond [`MOST`] ops.

use super::rewrite::{Rewrite, Rule};
use crate::eval;
use crate::ir::{Kernel, OpId, OpKind, RegionId, Scalar, Space, Value};

/// Ops that a loop may become.
const SMALL: u64 = 24;
/// Ops that a loop over a private array may become. One that runs more often stays a loop.
const MOST: u64 = 256;

struct Unroll {
    /// The iterations of the loops that are written out.
    trip_counts: Vec<u64>,
}

struct Sizes<'a> {
    k: &'a Kernel,
    consts: Vec<Option<u64>>,
    exits: Vec<u32>,
    trip_counts: Vec<u64>,
}

impl Sizes<'_> {
    fn scan(&mut self, r: RegionId) {
        let k = self.k;
        for &op in k.region_ops(r) {
            match k.kind(op) {
                OpKind::Const(c) => self.consts[k.result(op).index()] = Some(k.const_bits(c)),
                OpKind::Break(r) | OpKind::Continue(r) => self.exits[r.index()] += 1,
                _ => k.regions(op).iter().for_each(|&r| self.scan(r)),
            }
        }
    }

    fn region(&mut self, r: RegionId) -> u64 {
        let k = self.k;
        let mut sum = 0u64;
        for &op in k.region_ops(r) {
            let inner: u64 = k.regions(op).iter().map(|&r| self.region(r)).sum();
            let mut size = inner + 1;
            let most = if k.regions(op).iter().any(|&r| self.private(r)) { MOST } else { SMALL };
            if let Some(trips) = self.trip_count(op).filter(|t| t.saturating_mul(inner) <= most) {
                self.trip_counts[op.index()] = trips;
                size = trips * inner;
            }
            sum += size;
        }
        sum
    }

    /// Whether ops of this region, not of regions inside, read or write a private array.
    fn private(&self, r: RegionId) -> bool {
        self.k.region_ops(r).iter().any(|&op| match self.k.kind(op) {
            OpKind::Load(m) | OpKind::Store(m) => matches!(self.k.memory(m).space, Space::Private(_)),
            _ => false,
        })
    }

    /// The iterations of a `for` that nothing leaves early.
    fn trip_count(&self, op: OpId) -> Option<u64> {
        let k = self.k;
        let OpKind::For(step) = k.kind(op) else { return None };
        let r = k.regions(op)[0];
        let whole = self.exits[r.index()] == 1 && k.terminator(r).map(|t| k.kind(t)) == Some(OpKind::Continue(r));
        let s = k.ty(k.args(op)[0]).as_scalar()?;
        let (a, b) = (self.consts[k.args(op)[0].index()]?, self.consts[k.args(op)[1].index()]?);
        whole.then_some(eval::trip_count(s, a, b, step)).filter(|&t| t > 0)
    }
}

impl Rule for Unroll {
    fn op(&mut self, rw: &mut Rewrite<'_>, op: OpId) {
        let old = rw.old;
        let trips = self.trip_counts[op.index()];
        let OpKind::For(step) = old.kind(op) else { return rw.copy(self, op) };
        let from = rw.get(old.args(op)[0]);
        let (Some(first), true) = (rw.asm.as_const(from), trips > 0) else { return rw.copy(self, op) };
        let s = old.ty(old.args(op)[0]).as_scalar().unwrap_or(Scalar::U32);
        let r = old.regions(op)[0];
        let ops = old.region_ops(r);
        let Some((&last, body)) = ops.split_last() else { return };
        let mut carried: Vec<Value> = rw.args(op).split_off(2);
        for iteration in 0..trips {
            let i = rw.asm.constant(s, first.wrapping_add(iteration * u64::from(step)));
            old.region_args(r).zip(std::iter::once(&i).chain(&carried)).for_each(|(a, &v)| rw.set(a, v));
            for &inner in body {
                if rw.asm.ended() {
                    return;
                }
                self.op(rw, inner);
            }
            if rw.asm.ended() {
                return;
            }
            carried = rw.args(last);
        }
        old.results(op).zip(carried).for_each(|(a, v)| rw.set(a, v));
    }
}

pub(super) fn run(k: &Kernel) -> Option<Kernel> {
    if !k.kinds().any(|kind| matches!(kind, OpKind::For(_))) {
        return None;
    }
    let mut s = Sizes {
        k,
        consts: vec![None; k.value_count()],
        exits: vec![0; k.region_count()],
        trip_counts: vec![0; k.op_count()],
    };
    s.scan(k.body());
    s.region(k.body());
    s.trip_counts.iter().any(|&t| t > 0).then(|| Rewrite::run(k, &mut Unroll { trip_counts: s.trip_counts }))
}
