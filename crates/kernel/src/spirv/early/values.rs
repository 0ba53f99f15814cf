//! Which ops stay. This knows what passes do with each kind of op, and follows them from the side of what they leave.

use super::class::Class;
use super::look::Look;
use crate::ir::{Access, Binary, MemoryId, OpId, OpKind, Scalar, Space, Ty, Unary};

impl Look<'_> {
    /// The class of the result of an op without regions.
    pub(super) fn class_of(&mut self, op: OpId, kind: OpKind) -> Class {
        let k = self.k;
        let args = k.args(op);
        let ty = k.ty(k.result(op));
        let s = match (ty.lanes(), k.matrix(ty)) {
            (Some((s, _)), _) => s,
            (_, Some(m)) => m.scalar,
            // Composites are taken apart.
            _ => return Class::UNSURE,
        };
        let scalar = ty.as_scalar().is_some();
        let of = |i: usize| args.get(i).map_or(Class::UNSURE, |&v| self.class(v));
        let (a, b, c) = (of(0), of(1), of(2));
        let known = args.iter().all(|&v| self.class(v).is_known());
        let stays = args.iter().any(|&v| self.class(v).stays());
        let constants = scalar && known && !stays && !args.is_empty();
        if let Some(class) = constants.then(|| self.fold(op, kind, s)).flatten() {
            return class;
        }
        let t = u64::from(ty.0);
        match kind {
            OpKind::Const(n) => Class::constant(s, k.const_bits(n)),
            OpKind::Param(p) => Class::source(&[0xA0, p.into()]),
            OpKind::Builtin(b, axis) => Class::source(&[0xB0, b as u64, axis.into()]),
            OpKind::Subgroup(_) => Class::source(&[0xB1, op.0.into()]),
            OpKind::Len(m) => Class::source(&[0xB2, m.0.into()]),
            OpKind::Load(m) => self.loaded(m, a),
            OpKind::MatrixLoad(m, layout) if known => Class::source(&[0xD1, m.0.into(), layout as u64, t, a.0, b.0]),
            OpKind::MatrixFill if known => Class::source(&[0xD2, t, a.0]),
            OpKind::MatrixScale if known => Class::made_of(&[0xD3, t, a.0, b.0], &[a, b]),
            OpKind::MatrixMulAdd if known => Class::made_of(&[0xD4, t, a.0, b.0, c.0], &[a, b, c]),
            // Arithmetic of vectors and matrices is not folded; an op that is done twice may be done once.
            OpKind::Binary(f) if !scalar && known && stays => {
                Class::made_of(&[0xE0, f as u64, t, a.0.min(b.0), a.0.max(b.0)], &[a, b])
            }
            OpKind::Binary(f) if scalar => binary(f, s, a, b),
            OpKind::Unary(f) if known && stays => match f {
                // A comparison would be turned round, into one that there may be already.
                Unary::Neg | Unary::Not if a.has(Class::TURNED) || s == Scalar::Bool => Class::UNSURE,
                _ => {
                    let turned = if matches!(f, Unary::Neg | Unary::Not) { Class::TURNED } else { 0 };
                    Class::made_of(&[0xE1, f as u64, t, a.0], &[a]).with(turned)
                }
            },
            OpKind::Compare(f) if known && stays && a != b => {
                if scalar && [a, b].iter().any(|c| c.is_special()) && self.is_bool(args[0]) {
                    return Class::UNSURE;
                }
                Class::made_of(&[0xE2, f as u64, a.0.min(b.0), a.0.max(b.0)], &[a, b])
            }
            OpKind::Fma if known && stays => Class::made_of(&[0xE3, t, a.0, b.0, c.0], &[a, b, c]),
            // Between equals there is no choice, and nobody needs the condition.
            OpKind::Select if known && a.stays() && b != c => self.choice(ty, a, b, c),
            OpKind::Convert if known && stays && self.scalar_of(args[0]) != Some(s) => {
                Class::made_of(&[0xE5, t, self.scalar_of(args[0]).map_or(0, |s| s as u64), a.0], &[a])
            }
            OpKind::Bitcast if known && stays && !a.has(Class::TURNED) && self.scalar_of(args[0]) != Some(s) => {
                Class::made_of(&[0xE6, t, a.0], &[a]).with(Class::TURNED)
            }
            OpKind::Make if known && args.iter().any(|&v| !self.class(v).has(Class::PART)) => {
                let words: Vec<u64> = [0xE7, t].into_iter().chain(args.iter().map(|&v| self.class(v).0)).collect();
                let of: Vec<Class> = args.iter().map(|&v| self.class(v)).collect();
                let class = if stays { Class::made_of(&words, &of) } else { Class::source(&words) };
                class.with(Class::MADE)
            }
            OpKind::Extract(i) if known && !a.has(Class::MADE) => {
                Class::made_of(&[0xE8, i.into(), a.0], &[a]).with(Class::PART)
            }
            OpKind::Insert(i) if known && !a.has(Class::MADE) && !b.has(Class::PART) => {
                Class::made_of(&[0xE9, i.into(), a.0, b.0], &[a, b]).with(Class::MADE)
            }
            _ => Class::UNSURE,
        }
    }

    /// One of two values, by a condition that stays: a select, or an `if`, which may become one.
    pub(super) fn choice(&self, ty: Ty, c: Class, a: Class, b: Class) -> Class {
        let truths = ty == Ty::scalar(Scalar::Bool) && (a.is_constant() || b.is_constant());
        if truths || !a.is_known() || !b.is_known() || !(ty.lanes().is_some() || self.k.matrix(ty).is_some()) {
            return Class::UNSURE;
        }
        if a == b { a } else { Class::made_of(&[0xE4, c.0, a.0, b.0], &[c, a, b]) }
    }

    /// A load stays, unless what was stored at the same place may stand for it. All loads of a place count as one.
    fn loaded(&mut self, m: MemoryId, at: Class) -> Class {
        let only_read = self.k.memory(m).space == Space::Buffer(Access::Read);
        if !at.is_known() || !(only_read || self.is_unwritten(m, at)) {
            return Class::UNSURE;
        }
        Class::source(&[0xD0, m.0.into(), at.0])
    }

    fn is_bool(&self, v: crate::ir::Value) -> bool {
        self.k.ty(v) == Ty::scalar(Scalar::Bool)
    }

    fn scalar_of(&self, v: crate::ir::Value) -> Option<Scalar> {
        self.k.scalar_of(self.k.ty(v))
    }
}

/// Arithmetic on scalars.
fn binary(f: Binary, s: Scalar, a: Class, b: Class) -> Class {
    use Binary::{Add, Max, Min, Pow, Sub, Xor};
    let both = [a, b];
    let known = both.iter().all(|c| c.is_known()) && both.iter().any(|c| c.stays());
    if !known || a == b {
        return Class::UNSURE;
    }
    if let Some(at) = both.iter().position(|c| c.is_special()) {
        let zero = both[at].is_zero(s);
        match f {
            Add | Sub if zero && !s.is_float() && (at == 1 || f == Add) => return both[1 - at],
            Add | Sub | Xor if !zero => {}
            Min | Max | Pow => {}
            _ => return Class::UNSURE,
        }
    }
    let sum = f == Add && !s.is_float() && both.iter().any(|c| c.is_constant());
    if sum && both.iter().any(|c| c.stays() && c.has(Class::SUM)) {
        return Class::UNSURE;
    }
    let (x, y) = if f.commutes() { (a.0.min(b.0), a.0.max(b.0)) } else { (a.0, b.0) };
    Class::made_of(&[0xE0, f as u64, s as u64, x, y], &both).with(if sum { Class::SUM } else { 0 })
}
