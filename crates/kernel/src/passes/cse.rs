//! Common subexpression elimination by value numbering: what was computed already, in this region or one around it, is not computed again.
//! Loads of read-only buffers count as computations. Cost: linear, by hashing.

use std::collections::hash_map::Entry;

use crate::hash::Map;

use super::rewrite::{Rewrite, Rule};
use crate::ir::{Access, Effect, Kernel, OpId, OpKind, RegionId, Space, Ty, Value};

/// Ops with more operands are left alone.
const MOST: usize = 4;
type Key = (OpKind, Ty, [u64; MOST / 2]);

/// A region that was opened: how many were open around it, and the number of regions opened before.
#[derive(Clone, Copy, PartialEq)]
struct Scope {
    depth: u32,
    serial: u32,
}

struct Cse {
    /// What was computed, and where. It counts while that region is open.
    known: Map<Key, (Value, Scope)>,
    open: Vec<Scope>,
    regions: u32,
}

pub(super) fn run(k: &Kernel) -> Option<Kernel> {
    let outermost = Scope { depth: 0, serial: 0 };
    Some(Rewrite::run(k, &mut Cse { known: Map::default(), open: vec![outermost], regions: 0 }))
}

impl Rule for Cse {
    fn op(&mut self, rw: &mut Rewrite<'_>, op: OpId) {
        let old = rw.old;
        let repeatable = match old.kind(op).effect() {
            Effect::Pure | Effect::Partial => true,
            Effect::Reads(m) => old.memory(m).space == Space::Buffer(Access::Read),
            _ => false,
        };
        let args = old.args(op);
        if !repeatable || args.len() > MOST {
            return rw.copy(self, op);
        }
        let kind = rw.kind(op);
        let mut numbers = [u32::MAX; MOST];
        numbers.iter_mut().zip(args).for_each(|(n, &v)| *n = rw.get(v).0);
        if matches!(kind, OpKind::Binary(b) if b.commutes()) {
            numbers[..args.len()].sort_unstable();
        }
        let pair = |i: usize| u64::from(numbers[2 * i]) << 32 | u64::from(numbers[2 * i + 1]);
        let here = self.open[self.open.len() - 1];
        match self.known.entry((kind, old.ty(old.result(op)), [pair(0), pair(1)])) {
            Entry::Occupied(e) if self.open.get(e.get().1.depth as usize) == Some(&e.get().1) => {
                rw.replace(op, e.get().0);
            }
            entry => {
                rw.copy_to(rw.asm.depth() - 1, op);
                entry.insert_entry((rw.get(old.result(op)), here));
            }
        }
    }

    fn enter(&mut self, _: &mut Rewrite<'_>, _: OpId, _: RegionId) {
        self.regions += 1;
        self.open.push(Scope { depth: self.open.len() as u32, serial: self.regions });
    }

    fn leave(&mut self, _: &mut Rewrite<'_>) {
        self.open.pop();
    }
}
