//! Constant folding and algebraic simplification, and branches whose condition is constant.
//!
//! Only what is exact: for floats that is `x * 1`, `x / 1`, `x - 0`, `x + -0`, and signs; never `x + 0` (it turns -0 into 0) or `x * 0`.
//! Cost: linear.

use super::rewrite::{Rewrite, Rule};
use crate::eval;
use crate::ir::{Assembler, BinaryOp, Compare, Kernel, OpId, OpKind, Scalar, Ty, UnaryOp, Value};

struct Fold {
    /// For each loop of the old kernel, the ops that end it or begin its next iteration.
    exits: Vec<u32>,
}

/// What an op without regions comes to.
enum Folded {
    Value(Value),
    Const(u64),
    Op(OpKind, Vec<Value>),
}

pub(super) fn run(k: &Kernel) -> Option<Kernel> {
    let mut exits = vec![0; k.region_count()];
    let mut open = vec![k.body()];
    while let Some(r) = open.pop() {
        for &op in k.region_ops(r) {
            open.extend_from_slice(k.regions(op));
            if let OpKind::Break(r) | OpKind::Continue(r) = k.kind(op) {
                exits[r.index()] += 1;
            }
        }
    }
    Some(Rewrite::run(k, &mut Fold { exits }))
}

impl Rule for Fold {
    fn op(&mut self, rw: &mut Rewrite<'_>, op: OpId) {
        let old = rw.old;
        let kind = old.kind(op);
        let arg = |rw: &Rewrite<'_>, i: usize| rw.get(old.args(op)[i]);
        match kind {
            OpKind::If => {
                if let Some(c) = rw.asm.as_const(arg(rw, 0)) {
                    return self.take(rw, op, usize::from(c == 0));
                }
                rw.copy(self, op);
            }
            OpKind::Switch(table) => {
                if let Some(c) = rw.asm.as_const(arg(rw, 0)) {
                    let arm = old.switch_cases(table).iter().find(|x| x.0 == c).map(|x| x.1 as usize);
                    return self.take(rw, op, arm.unwrap_or(old.regions(op).len() - 1));
                }
                rw.copy(self, op);
            }
            OpKind::For(_) => {
                if let (Some(a), Some(b)) = (rw.asm.as_const(arg(rw, 0)), rw.asm.as_const(arg(rw, 1))) {
                    let s = old.ty(old.args(op)[0]).as_scalar().unwrap_or(Scalar::U32);
                    if eval::compare(Compare::Ge, s, a, b) {
                        let carried = rw.args(op).split_off(2);
                        old.results(op).zip(carried).for_each(|(r, v)| rw.set(r, v));
                        return;
                    }
                }
                rw.copy(self, op);
            }
            OpKind::Loop => {
                // A loop whose only way on is the break at its end runs once.
                let r = old.regions(op)[0];
                let last = old.terminator(r);
                match last {
                    Some(last) if old.kind(last) == OpKind::Break(r) && self.exits[r.index()] == 1 => {
                        old.region_args(r).zip(rw.args(op)).for_each(|(a, v)| rw.set(a, v));
                        let n = old.region_ops(r).len();
                        for &inner in &old.region_ops(r)[..n - 1] {
                            if rw.asm.ended() {
                                return;
                            }
                            rw.asm.stands_for(old, inner);
                            self.op(rw, inner);
                        }
                        if !rw.asm.ended() {
                            let values = rw.args(last);
                            old.results(op).zip(values).for_each(|(r, v)| rw.set(r, v));
                        }
                    }
                    _ => rw.copy(self, op),
                }
            }
            OpKind::Unary(_)
            | OpKind::Binary(_)
            | OpKind::Compare(_)
            | OpKind::Fma
            | OpKind::Select
            | OpKind::Convert
            | OpKind::Bitcast => {
                let ty = old.ty(old.result(op));
                // None of these has more operands than three.
                let mut args = [Value(u32::MAX); 3];
                args.iter_mut().zip(old.args(op)).for_each(|(a, &v)| *a = rw.get(v));
                match simplify(&rw.asm, kind, &args[..old.args(op).len().min(3)], ty) {
                    Some(Folded::Value(v)) => rw.replace(op, v),
                    Some(Folded::Const(_)) if ty.as_scalar().is_some_and(|s| !old.computes(s)) => rw.copy(self, op),
                    Some(Folded::Const(bits)) => {
                        let v = rw.asm.constant(ty.as_scalar().unwrap_or(Scalar::U64), bits);
                        rw.replace(op, v);
                    }
                    Some(Folded::Op(kind, args)) => {
                        let v = rw.asm.value(kind, &args, ty);
                        rw.replace(op, v);
                    }
                    None => rw.copy(self, op),
                }
            }
            _ => rw.copy(self, op),
        }
    }
}

impl Fold {
    /// One region of an `if` or `switch` in place of the op.
    fn take(&mut self, rw: &mut Rewrite<'_>, op: OpId, arm: usize) {
        let old = rw.old;
        if let Some(values) = rw.inline(self, old.regions(op)[arm]) {
            old.results(op).zip(values).for_each(|(r, v)| rw.set(r, v));
        }
    }
}

fn simplify(asm: &Assembler, kind: OpKind, args: &[Value], ty: Ty) -> Option<Folded> {
    let c = |i: usize| asm.as_const(args[i]);
    let arg_ty = |i: usize| asm.kernel.ty(args[i]).as_scalar();
    match kind {
        OpKind::Unary(f) => {
            if let (Some(s), Some(a)) = (ty.as_scalar(), c(0)) {
                return Some(Folded::Const(eval::unary(f, s, a)));
            }
            match (f, asm.made_by(args[0])) {
                (UnaryOp::Neg | UnaryOp::Not, Some((OpKind::Unary(g), inner))) if f == g => {
                    Some(Folded::Value(inner[0]))
                }
                (UnaryOp::Not, Some((OpKind::Compare(x), inner))) => {
                    let float = asm.kernel.ty(inner[0]).lanes().is_some_and(|l| l.0.is_float());
                    let other = match x {
                        Compare::Eq => Compare::Ne,
                        Compare::Ne => Compare::Eq,
                        _ if float => return None,
                        Compare::Lt => Compare::Ge,
                        Compare::Ge => Compare::Lt,
                        Compare::Gt => Compare::Le,
                        Compare::Le => Compare::Gt,
                    };
                    Some(Folded::Op(OpKind::Compare(other), inner.to_vec()))
                }
                _ => None,
            }
        }
        OpKind::Binary(f) => binary(asm, f, args, ty),
        OpKind::Compare(x) => {
            let s = arg_ty(0)?;
            match (c(0), c(1)) {
                (Some(a), Some(b)) => Some(Folded::Const(eval::compare(x, s, a, b).into())),
                _ if args[0] == args[1] && !s.is_float() => Some(Folded::Const(eval::compare(x, s, 0, 0).into())),
                (_, Some(b)) if s == Scalar::Bool && (b == 1) == (x == Compare::Eq) => Some(Folded::Value(args[0])),
                _ => None,
            }
        }
        OpKind::Fma => match (ty.as_scalar(), c(0), c(1), c(2)) {
            (Some(s), Some(a), Some(b), Some(d)) => Some(Folded::Const(eval::fma(s, a, b, d))),
            _ => None,
        },
        OpKind::Select => match c(0) {
            Some(x) => Some(Folded::Value(if x != 0 { args[1] } else { args[2] })),
            None if args[1] == args[2] => Some(Folded::Value(args[1])),
            None if ty == Ty::scalar(Scalar::Bool) && arg_ty(0).is_some() => match (c(1), c(2)) {
                (Some(1), Some(0)) => Some(Folded::Value(args[0])),
                (Some(0), Some(1)) => Some(Folded::Op(OpKind::Unary(UnaryOp::Not), vec![args[0]])),
                _ => None,
            },
            None => None,
        },
        OpKind::Convert => {
            let from = arg_ty(0)?;
            match (ty.as_scalar(), c(0)) {
                (Some(to), _) if to == from => Some(Folded::Value(args[0])),
                (Some(to), Some(a)) => Some(Folded::Const(eval::convert(from, to, a))),
                _ => None,
            }
        }
        OpKind::Bitcast => match c(0) {
            _ if asm.kernel.ty(args[0]) == ty => Some(Folded::Value(args[0])),
            Some(a) => Some(Folded::Const(a)),
            None => match asm.made_by(args[0]) {
                Some((OpKind::Bitcast, inner)) if asm.kernel.ty(inner[0]) == ty => Some(Folded::Value(inner[0])),
                _ => None,
            },
        },
        _ => None,
    }
}

fn binary(asm: &Assembler, f: BinaryOp, args: &[Value], ty: Ty) -> Option<Folded> {
    let s = ty.as_scalar()?;
    let (a, b) = (args[0], args[1]);
    let (ca, cb) = (asm.as_const(a), asm.as_const(b));
    if let (Some(x), Some(y)) = (ca, cb) {
        return Some(Folded::Const(eval::binary(f, s, x, y)));
    }
    // The constant of an operation whose operands may change places stands second.
    if ca.is_some() && f.commutes() {
        return binary(asm, f, &[b, a], ty).or_else(|| Some(Folded::Op(OpKind::Binary(f), vec![b, a])));
    }
    if s.is_float() {
        let sign = 1u64 << (s.bits() - 1);
        let one = eval::convert(Scalar::U32, s, 1);
        return match (f, cb) {
            (BinaryOp::Mul | BinaryOp::Div, Some(y)) if y == one => Some(Folded::Value(a)),
            (BinaryOp::Sub, Some(0)) => Some(Folded::Value(a)),
            (BinaryOp::Add, Some(y)) if y == sign => Some(Folded::Value(a)),
            (BinaryOp::Min | BinaryOp::Max, _) if a == b => Some(Folded::Value(a)),
            _ => None,
        };
    }
    let all = s.mask();
    if a == b {
        match f {
            BinaryOp::And | BinaryOp::Or | BinaryOp::Min | BinaryOp::Max => return Some(Folded::Value(a)),
            BinaryOp::Xor | BinaryOp::Sub => return Some(Folded::Const(0)),
            _ => {}
        }
    }
    match (f, cb?) {
        (BinaryOp::Add | BinaryOp::Sub | BinaryOp::Or | BinaryOp::Xor | BinaryOp::Shl | BinaryOp::Shr, 0) => {
            Some(Folded::Value(a))
        }
        (BinaryOp::Mul | BinaryOp::And | BinaryOp::Rem, 0) => Some(Folded::Const(0)),
        (BinaryOp::Mul | BinaryOp::Div, 1) => Some(Folded::Value(a)),
        (BinaryOp::Div, 0) => Some(Folded::Value(a)),
        (BinaryOp::Rem, 1) => Some(Folded::Const(0)),
        (BinaryOp::And, y) if y == all => Some(Folded::Value(a)),
        (BinaryOp::Or, y) if y == all => Some(Folded::Const(all)),
        // (x + p) + q: integers wrap, so the order does not matter.
        (BinaryOp::Add, q) => match asm.made_by(a) {
            Some((OpKind::Binary(BinaryOp::Add), inner)) => {
                let p = asm.as_const(inner[1])?;
                let sum = eval::binary(BinaryOp::Add, s, p, q);
                // The new constant would need a place of its own; only a sum that vanishes is folded here.
                (sum == 0).then_some(Folded::Value(inner[0]))
            }
            _ => None,
        },
        _ => None,
    }
}
