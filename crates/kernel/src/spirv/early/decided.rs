//! What constants decide: the values of ops on them, the way that a branch takes, how often a loop runs. Passes find the same, so of an `if` whose
//! condition is constant one region stands in place of the op, and the other is no part of the kernel.

use super::class::Class;
use super::look::{Def, End, Look, MOST_DEPTH, NONE};
use crate::eval;
use crate::ir::{OpId, OpKind, RegionId, Scalar, Value};

impl Look<'_> {
    /// The bits of a scalar that constants decide.
    pub(super) fn bits(&self, v: Value) -> Option<u64> {
        let v = self.root(v);
        if !self.class_at(v).is_constant() {
            return None;
        }
        match self.def(v) {
            Def::Constant(bits) => Some(bits),
            Def::Op(op) => match self.k.kind(op) {
                OpKind::Const(c) => Some(self.k.const_bits(c)),
                _ => None,
            },
            _ => None,
        }
    }

    /// What an op on constants comes to.
    pub(super) fn fold(&mut self, op: OpId, kind: OpKind, to: Scalar) -> Option<Class> {
        let args = self.k.args(op);
        let from = self.k.ty(*args.first()?).as_scalar()?;
        let bits = eval::op(kind, from, to, |i| args.get(i).and_then(|&v| self.bits(v)))?;
        self.comes_to(self.k.result(op), bits);
        Some(Class::constant(to, bits))
    }

    /// The only region of an `if` or `switch` that is ever run, if constants decide it.
    pub(super) fn decided(&self, op: OpId, kind: OpKind) -> Option<RegionId> {
        let (k, regions) = (self.k, self.k.regions(op));
        let arm = match kind {
            OpKind::If => usize::from(self.bits(*k.args(op).first()?)? == 0),
            OpKind::Switch(table) => {
                let c = self.bits(*k.args(op).first()?)?;
                let case = k.switch_cases(table).iter().find(|x| x.0 == c);
                case.map_or(regions.len().checked_sub(1)?, |x| x.1 as usize)
            }
            _ => return None,
        };
        regions.get(arm).copied().filter(|_| self.depth + self.taken < MOST_DEPTH)
    }

    /// Goes through a region that stands in place of its op.
    pub(super) fn take(&mut self, op: OpId, r: RegionId) -> End {
        let k = self.k;
        self.taken += 1;
        let end = self.region(r);
        self.taken -= 1;
        let given = k.terminator(r).filter(|_| end == End::Yields).map_or(&[][..], |t| k.args(t));
        for (i, v) in k.results(op).enumerate() {
            let to = given.get(i).map_or(NONE, |&x| self.root(x));
            self.same(v, to);
        }
        end
    }

    /// How often a loop runs, if constants decide that.
    pub(super) fn turns_between(&self, from: Value, to: Value, step: u32) -> Option<u64> {
        let s = self.k.ty(from).as_scalar()?;
        Some(eval::turns(s, self.bits(from)?, self.bits(to)?, step))
    }
}
