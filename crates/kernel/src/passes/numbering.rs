//! Value numbering: what was computed already, in this region or one around it, is not computed again. Loads of buffers that are only read
//! count as computations. Cost: linear, by hashing.

use crate::hash::Map;

use super::rewrite::{Rewrite, Rule};
use crate::ir::{Access, Effect, Kernel, OpId, OpKind, RegionId, Space, Ty, Value};

/// Ops with more operands are left alone.
const MOST: usize = 4;
type Key = (OpKind, Ty, [u32; MOST]);

#[derive(Default)]
struct Numbering {
    known: Map<Key, Value>,
    /// What became known in each open region: it is forgotten at its end.
    scopes: Vec<Vec<Key>>,
}

pub(super) fn run(k: &Kernel) -> Kernel {
    Rewrite::run(k, &mut Numbering { scopes: vec![Vec::new()], ..Numbering::default() })
}

impl Rule for Numbering {
    fn op(&mut self, rw: &mut Rewrite<'_>, op: OpId) {
        let old = rw.old;
        let repeatable = match old.kind(op).effect() {
            Effect::Pure => true,
            Effect::Reads(m) => old.memory(m).space == Space::Buffer(Access::Read),
            _ => false,
        };
        let args = old.args(op);
        if !repeatable || args.len() > MOST {
            return rw.copy(self, op);
        }
        let kind = rw.kind(op);
        let mut key = [u32::MAX; MOST];
        key.iter_mut().zip(args).for_each(|(k, &v)| *k = rw.get(v).0);
        if matches!(kind, OpKind::Binary(b) if b.commutes()) {
            key[..args.len()].sort_unstable();
        }
        let key = (kind, old.ty(old.result(op)), key);
        if let Some(&v) = self.known.get(&key) {
            return rw.replace(op, v);
        }
        rw.copy(self, op);
        self.known.insert(key, rw.get(old.result(op)));
        if let Some(scope) = self.scopes.last_mut() {
            scope.push(key);
        }
    }

    fn enter(&mut self, _: &mut Rewrite<'_>, _: OpId, _: RegionId) {
        self.scopes.push(Vec::new());
    }

    fn leave(&mut self, _: &mut Rewrite<'_>) {
        for key in self.scopes.pop().unwrap_or_default() {
            self.known.remove(&key);
        }
    }
}
