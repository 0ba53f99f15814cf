//! Lowers atomic sums of floats to compare-and-exchange loops on their bits, for formats without them. Cost: linear.

use super::rewrite::{Rewrite, Rule};
use crate::ir::{Atomic, BinaryOp, Compare, Kernel, MemoryId, OpId, OpKind, RegionId, Scalar, Ty, Value};

const BITS: Ty = Ty::scalar(Scalar::U32);
const FLOAT: Ty = Ty::scalar(Scalar::F32);

struct FloatAtomics {
    /// The memories that hold bits instead of floats.
    bits: Vec<bool>,
}

impl FloatAtomics {
    fn is_bits(&self, m: MemoryId) -> bool {
        self.bits[m.index()]
    }

    fn sum(rw: &mut Rewrite<'_>, m: MemoryId, index: Value, x: Value) -> Value {
        let seen = rw.asm.value(OpKind::Load(m), &[index], BITS);
        let region = rw.asm.open(&[BITS]);
        let old = rw.asm.kernel.region_args(region).next().unwrap_or(seen);
        let float = rw.asm.value(OpKind::Bitcast, &[old], FLOAT);
        let sum = rw.asm.value(OpKind::Binary(BinaryOp::Add), &[float, x], FLOAT);
        let new = rw.asm.value(OpKind::Bitcast, &[sum], BITS);
        let found = rw.asm.value(OpKind::Atomic(m, Atomic::CompareExchange), &[index, old, new], BITS);
        let done = rw.asm.value(OpKind::Compare(Compare::Eq), &[found, old], Ty::scalar(Scalar::Bool));
        let arm = |rw: &mut Rewrite<'_>, kind: OpKind, values: &[Value]| -> RegionId {
            rw.asm.open(&[]);
            rw.asm.push(kind, values, &[]);
            rw.asm.close()
        };
        let arms = [arm(rw, OpKind::Break(region), &[float]), arm(rw, OpKind::Yield, &[])];
        rw.asm.push_structure(OpKind::If, &[done], &[], &arms);
        rw.asm.push(OpKind::Continue(region), &[found], &[]);
        rw.asm.close();
        let tried = rw.asm.push_structure(OpKind::Loop, &[seen], &[FLOAT], &[region]);
        rw.asm.kernel.result(tried)
    }
}

impl Rule for FloatAtomics {
    fn op(&mut self, rw: &mut Rewrite<'_>, op: OpId) {
        let args = rw.args(op);
        match rw.old.kind(op) {
            OpKind::Load(m) if self.is_bits(m) => {
                let bits = rw.asm.value(OpKind::Load(m), &args, BITS);
                let x = rw.asm.value(OpKind::Bitcast, &[bits], FLOAT);
                rw.replace(op, x);
            }
            OpKind::Store(m) if self.is_bits(m) => {
                let bits = rw.asm.value(OpKind::Bitcast, &[args[1]], BITS);
                rw.asm.push(OpKind::Store(m), &[args[0], bits], &[]);
            }
            OpKind::Atomic(m, Atomic::Add) if self.is_bits(m) => {
                let old = Self::sum(rw, m, args[0], args[1]);
                rw.replace(op, old);
            }
            OpKind::Atomic(m, f) if self.is_bits(m) => {
                let bits = rw.asm.value(OpKind::Bitcast, &[args[1]], BITS);
                let old = rw.asm.value(OpKind::Atomic(m, f), &[args[0], bits], BITS);
                let x = rw.asm.value(OpKind::Bitcast, &[old], FLOAT);
                rw.replace(op, x);
            }
            _ => rw.copy(self, op),
        }
    }
}

pub(super) fn run(k: &Kernel) -> Option<Kernel> {
    let mut bits = vec![false; k.memories().len()];
    let mut open = vec![k.body()];
    while let Some(r) = open.pop() {
        for &op in k.region_ops(r) {
            open.extend_from_slice(k.regions(op));
            if let OpKind::Atomic(m, _) = k.kind(op) {
                bits[m.index()] = k.memory(m).ty == FLOAT;
            }
        }
    }
    if !bits.contains(&true) {
        return None;
    }
    let mut header = k.header();
    for (m, _) in header.memories.iter_mut().zip(&bits).filter(|x| *x.1) {
        m.ty = BITS;
    }
    Some(Rewrite::run_with(k, header, &mut FloatAtomics { bits }))
}
