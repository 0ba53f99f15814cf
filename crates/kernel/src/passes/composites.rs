//! Forwards members of composites: `extract` of a `make` or an `insert` is the member that went in. Cost: linear; a chain of inserts is
//! followed at most as far as the composite has members.

use super::rewrite::{Rewrite, Rule};
use crate::ir::{Assembler, Kernel, OpId, OpKind, Ty, Value};

struct Composites;

pub(super) fn run(k: &Kernel) -> Option<Kernel> {
    k.kinds().any(is_composite).then(|| Rewrite::run(k, &mut Composites))
}

fn is_composite(kind: OpKind) -> bool {
    matches!(kind, OpKind::Extract(_) | OpKind::Make | OpKind::Insert(_))
}

impl Rule for Composites {
    fn op(&mut self, rw: &mut Rewrite<'_>, op: OpId) {
        let kind = rw.old.kind(op);
        if !is_composite(kind) {
            return rw.copy(self, op);
        }
        let args = rw.args(op);
        let found = match kind {
            OpKind::Extract(i) => match member(&rw.asm, args[0], i) {
                None if under(&rw.asm, args[0], i) != args[0] => {
                    // Inserts of other members are nothing to this one.
                    let (from, ty) = (under(&rw.asm, args[0], i), rw.old.ty(rw.old.result(op)));
                    Some(rw.asm.value(OpKind::Extract(i), &[from], ty))
                }
                found => found,
            },
            OpKind::Make => whole(&rw.asm, &args, rw.old.ty(rw.old.result(op))),
            OpKind::Insert(i) if member(&rw.asm, args[0], i) == Some(args[1]) => Some(args[0]),
            OpKind::Insert(i) => match rw.asm.made_by(args[0]) {
                Some((OpKind::Make, members)) => {
                    let mut members = members.to_vec();
                    members[i as usize] = args[1];
                    let ty = rw.old.ty(rw.old.result(op));
                    Some(rw.asm.value(OpKind::Make, &members, ty))
                }
                _ => None,
            },
            _ => None,
        };
        match found {
            Some(v) => rw.replace(op, v),
            None => rw.copy(self, op),
        }
    }
}

/// The composite below the inserts of other members.
fn under(asm: &Assembler, mut v: Value, i: u32) -> Value {
    for _ in 0..asm.kernel.members(asm.kernel.ty(v)) {
        match asm.made_by(v) {
            Some((OpKind::Insert(j), args)) if j != i => v = args[0],
            _ => break,
        }
    }
    v
}

/// A member of a composite, if what made the composite says it.
fn member(asm: &Assembler, v: Value, i: u32) -> Option<Value> {
    match asm.made_by(under(asm, v, i))? {
        (OpKind::Make, members) => members.get(i as usize).copied(),
        (OpKind::Insert(j), args) if j == i => Some(args[1]),
        _ => None,
    }
}

/// The composite whose members these are, all and in order.
fn whole(asm: &Assembler, members: &[Value], ty: Ty) -> Option<Value> {
    let mut source = None;
    for (i, &m) in members.iter().enumerate() {
        match asm.made_by(m)? {
            (OpKind::Extract(j), from) if j as usize == i && source.is_none_or(|s| s == from[0]) => {
                source = Some(from[0])
            }
            _ => return None,
        }
    }
    source.filter(|&s| asm.kernel.ty(s) == ty)
}
