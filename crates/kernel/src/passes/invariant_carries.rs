//! Removes loop-invariant carried values, and results of branches and loops that are the same value on every path.
//!
//! ```text
//! %r = loop (%x = %a) { .. continue %x }      ->      uses of %x and %r read %a
//! ```
//!
//! Dead code removal then takes out the carried values and results themselves. Inner loops come first, so that what they leave unchanged is
//! invariant for the loops around them. Cost: linear.

use super::rewrite::{Rewrite, Rule};
use crate::ir::{Kernel, OpId, OpKind, RegionId, Value};

/// A result, by the ways to it that were met.
#[derive(Clone, Copy, PartialEq)]
enum Lattice {
    Nothing,
    One(Value),
    Several,
}

impl Lattice {
    fn meet(&mut self, v: Value) {
        *self = match *self {
            Lattice::Nothing => Lattice::One(v),
            Lattice::One(w) if w == v => Lattice::One(v),
            _ => Lattice::Several,
        };
    }
}

/// A loop around.
struct EnclosingLoop {
    region: RegionId,
    op: OpId,
    /// Whether each carried value is another one in some iteration.
    changes: Vec<bool>,
    results: Vec<Lattice>,
}

struct InvariantCarries<'a> {
    k: &'a Kernel,
    /// For each value, one that it is the same as: one that was there before it, or itself.
    same: Vec<Value>,
    /// When each value was met. What is used in a region and was met before it stands outside.
    born: Vec<u32>,
    time: u32,
    around: Vec<EnclosingLoop>,
    found: bool,
}

impl InvariantCarries<'_> {
    fn find(&self, mut v: Value) -> Value {
        while self.same[v.index()] != v {
            v = self.same[v.index()];
        }
        v
    }

    fn is(&mut self, v: Value, other: Value) {
        self.same[v.index()] = other;
        self.found = true;
    }

    /// Carried values in the loop, and before it.
    fn carried(&self, op: OpId) -> impl Iterator<Item = (Value, Value)> + use<'_> {
        let index = usize::from(matches!(self.k.kind(op), OpKind::For(_)));
        let inside = self.k.regions(op).first().into_iter().flat_map(|&r| self.k.region_args(r)).skip(index);
        inside.zip(self.k.args(op)[2 * index..].iter().copied())
    }

    fn region(&mut self, r: RegionId) {
        let k = self.k;
        for v in k.region_args(r) {
            self.born[v.index()] = self.time;
        }
        for &op in k.region_ops(r) {
            self.time += 1;
            match k.kind(op) {
                OpKind::If | OpKind::Switch(_) => self.branch(op),
                OpKind::Loop | OpKind::For(_) => self.repeat(op),
                OpKind::Continue(r) => self.leave(op, r, true),
                OpKind::Break(r) => self.leave(op, r, false),
                _ => {}
            }
            for v in k.results(op) {
                self.born[v.index()] = self.time;
            }
        }
    }

    fn branch(&mut self, op: OpId) {
        let k = self.k;
        let begun = self.time;
        k.regions(op).iter().for_each(|&r| self.region(r));
        for (i, result) in k.results(op).enumerate() {
            let mut met = Lattice::Nothing;
            for &r in k.regions(op) {
                if let Some(t) = k.terminator(r).filter(|&t| k.kind(t) == OpKind::Yield) {
                    met.meet(self.find(k.args(t)[i]));
                }
            }
            self.settle(result, met, begun);
        }
    }

    /// A result that is one value from outside.
    fn settle(&mut self, result: Value, met: Lattice, begun: u32) {
        if let Lattice::One(v) = met {
            let v = self.find(v);
            if self.born[v.index()] < begun {
                self.is(result, v);
            }
        }
    }

    /// An iteration of a loop ends, or the loop does.
    fn leave(&mut self, op: OpId, region: RegionId, goes_on: bool) {
        let Some(at) = self.around.iter().rposition(|a| a.region == region) else { return };
        let mut around = std::mem::take(&mut self.around);
        let to = &mut around[at];
        let counts = matches!(self.k.kind(to.op), OpKind::For(_));
        if goes_on || counts {
            for (i, (inside, before)) in self.carried(to.op).enumerate() {
                let v = self.find(self.k.args(op)[i]);
                let other = v != inside && v != self.find(before);
                if goes_on {
                    to.changes[i] |= other;
                } else if other {
                    to.results[i] = Lattice::Several;
                }
            }
        } else {
            for (i, met) in to.results.iter_mut().enumerate() {
                met.meet(self.find(self.k.args(op)[i]));
            }
        }
        self.around = around;
    }

    fn repeat(&mut self, op: OpId) {
        let k = self.k;
        let begun = self.time;
        let &[region] = k.regions(op) else { return };
        let (n, results) = (self.carried(op).count(), vec![Lattice::Nothing; k.results(op).len()]);
        self.around.push(EnclosingLoop { region, op, changes: vec![false; n], results });
        self.region(region);
        let Some(around) = self.around.pop() else { return };
        let carried: Vec<(Value, Value)> = self.carried(op).collect();
        for (&(inside, before), _) in carried.iter().zip(&around.changes).filter(|(_, changes)| !**changes) {
            self.is(inside, self.find(before));
        }
        let counts = matches!(k.kind(op), OpKind::For(_));
        for (i, (result, met)) in k.results(op).zip(around.results).enumerate() {
            if !counts {
                self.settle(result, met, begun);
            } else if !around.changes[i] && met == Lattice::Nothing {
                self.is(result, self.find(carried[i].1));
            }
        }
    }

    /// Takes the values that are others for those.
    fn replace(&self, rw: &mut Rewrite<'_>, values: impl Iterator<Item = Value>) {
        for v in values {
            let other = self.find(v);
            if other != v {
                rw.set(v, rw.get(other));
            }
        }
    }
}

impl Rule for InvariantCarries<'_> {
    fn op(&mut self, rw: &mut Rewrite<'_>, op: OpId) {
        rw.copy(self, op);
        if self.k.kind(op).is_structure() {
            self.replace(rw, self.k.results(op));
        }
    }

    fn enter(&mut self, rw: &mut Rewrite<'_>, _: OpId, r: RegionId) {
        self.replace(rw, self.k.region_args(r));
    }
}

pub(super) fn run(k: &Kernel) -> Option<Kernel> {
    let mut same = InvariantCarries {
        k,
        same: (0..k.value_count() as u32).map(Value).collect(),
        born: vec![0; k.value_count()],
        time: 1,
        around: Vec::new(),
        found: false,
    };
    if !k.kinds().any(OpKind::is_structure) {
        return None;
    }
    same.region(k.body());
    same.found.then(|| Rewrite::run(k, &mut same))
}
