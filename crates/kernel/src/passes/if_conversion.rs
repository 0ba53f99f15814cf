//! If-conversion: an `if` whose regions only compute, and little, becomes selects, which means fewer joins and no divergence. Cost: linear.

use super::rewrite::{Rewrite, Rule};
use crate::ir::{Effect, Kernel, OpId, OpKind, RegionId, UnaryOp};

/// What both regions together may cost, in simple instructions; a branch costs a device about as much.
const CHEAP: u32 = 6;

struct IfConversion;

pub(super) fn run(k: &Kernel) -> Option<Kernel> {
    k.ops().any(|op| pays(k, op)).then(|| {
        let mut made = Rewrite::run(k, &mut IfConversion);
        made.speculated = true;
        made
    })
}

/// What a region costs, if it only computes and yields.
fn cost(k: &Kernel, r: RegionId) -> Option<u32> {
    let mut sum = 0;
    for &op in k.region_ops(r) {
        sum += match k.kind(op) {
            OpKind::Yield | OpKind::Const(_) | OpKind::ForeignConst(_) | OpKind::Undef => 0,
            OpKind::Unary(u) if !u.is_exact() && u != UnaryOp::Sqrt => CHEAP,
            OpKind::Binary(crate::ir::BinaryOp::Div | crate::ir::BinaryOp::Rem | crate::ir::BinaryOp::Pow) => CHEAP / 2,
            kind if kind.effect() == Effect::Pure => 1,
            _ => return None,
        };
        if sum > CHEAP {
            return None;
        }
    }
    (k.terminator(r).map(|t| k.kind(t)) == Some(OpKind::Yield)).then_some(sum)
}

/// Whether an op is an `if` that is better as selects. A matrix cannot be selected.
fn pays(k: &Kernel, op: OpId) -> bool {
    if k.kind(op) != OpKind::If {
        return false;
    }
    let both = cost(k, k.regions(op)[0]).zip(cost(k, k.regions(op)[1]));
    both.is_some_and(|(a, b)| a + b + k.results(op).len() as u32 <= CHEAP)
        && k.results(op).all(|v| k.matrix(k.ty(v)).is_none())
        && (k.foreign.is_none() || k.results(op).all(|v| k.ty(v).lanes().is_some_and(|(s, _)| k.computes(s))))
}

impl Rule for IfConversion {
    fn op(&mut self, rw: &mut Rewrite<'_>, op: OpId) {
        let old = rw.old;
        if !pays(old, op) {
            return rw.copy(self, op);
        }
        let (then, other) = (old.regions(op)[0], old.regions(op)[1]);
        let c = rw.get(old.args(op)[0]);
        let (Some(xs), Some(ys)) = (rw.inline(self, then), rw.inline(self, other)) else { return };
        for (r, (x, y)) in old.results(op).zip(xs.into_iter().zip(ys)) {
            let v = if x == y { x } else { rw.asm.value(OpKind::Select, &[c, x, y], old.ty(r)) };
            rw.set(r, v);
        }
    }
}
