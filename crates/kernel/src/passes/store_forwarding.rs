//! Store-to-load forwarding: a load of what was stored or loaded before, at the same index and with nothing written between, is that
//! value. Indices that are different constants are different places; all others may be the same. Cost: linear, by hashing.

use crate::hash::Map;

use super::rewrite::{Rewrite, Rule};
use crate::ir::{Access, Effect, Kernel, MemoryId, OpId, OpKind, RegionId, Space, Value};

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Index {
    Const(u64),
    Computed(Value),
}

/// Memories as bits; those with large numbers share one. The last bit is a barrier.
#[derive(Clone, Copy, Default)]
struct Set(u128);

const SHARED_BIT: u32 = 120;
const BARRIER: u128 = 1 << 127;

impl Set {
    fn of(m: MemoryId) -> Set {
        Set(1 << m.0.min(SHARED_BIT))
    }
}

#[derive(Clone, Copy, Default)]
struct MemoryVersion {
    constant: u32,
    computed: u32,
}

struct StoreForwarding {
    known: Map<(MemoryId, Index), (Value, u32)>,
    /// What is known of a memory is valid while its age has not changed.
    ages: Vec<MemoryVersion>,
    scopes: Vec<Vec<(MemoryId, Index)>>,
    /// What each loop writes.
    writes: Map<OpId, Set>,
}

fn writes(k: &Kernel, r: RegionId, loops: &mut Map<OpId, Set>) -> Set {
    let mut all = Set::default();
    for &op in k.region_ops(r) {
        let own = match k.kind(op) {
            OpKind::Foreign(_, Effect::Anything) => Set(BARRIER),
            kind if kind.is_barrier() => Set(BARRIER),
            kind => match kind.effect() {
                Effect::Writes(m) => Set::of(m),
                _ => Set::default(),
            },
        };
        let inner = k.regions(op).iter().fold(own, |s, &r| Set(s.0 | writes(k, r, loops).0));
        if matches!(k.kind(op), OpKind::Loop | OpKind::For(_)) {
            loops.insert(op, inner);
        }
        all.0 |= inner.0;
    }
    all
}

impl StoreForwarding {
    fn forget(&mut self, k: &Kernel, what: Set) {
        for (i, m) in k.memories().iter().enumerate() {
            // Of a tape, and of its adjoint, an invocation reads only what it wrote itself.
            let seen = matches!(
                m.space,
                Space::Buffer(Access::ReadWrite) | Space::Workgroup(_) | Space::Pointed { shared: true }
            );
            if what.0 & Set::of(MemoryId(i as u32)).0 != 0 || (what.0 & BARRIER != 0 && seen) {
                self.ages[i].constant += 1;
                self.ages[i].computed += 1;
            }
        }
    }

    fn age(&self, m: MemoryId, i: Index) -> u32 {
        let age = self.ages[m.index()];
        if let Index::Const(_) = i { age.constant } else { age.computed }
    }

    fn learn(&mut self, m: MemoryId, i: Index, v: Value) {
        self.known.insert((m, i), (v, self.age(m, i)));
        if let Some(scope) = self.scopes.last_mut() {
            scope.push((m, i));
        }
    }
}

impl Rule for StoreForwarding {
    fn op(&mut self, rw: &mut Rewrite<'_>, op: OpId) {
        let old = rw.old;
        let index = |rw: &Rewrite<'_>| {
            let i = rw.get(old.args(op)[0]);
            rw.asm.as_const(i).map_or(Index::Computed(i), Index::Const)
        };
        match old.kind(op) {
            OpKind::Load(m) => {
                let i = index(rw);
                match self.known.get(&(m, i)) {
                    Some(&(v, age)) if age == self.age(m, i) => rw.replace(op, v),
                    _ => {
                        rw.copy(self, op);
                        self.learn(m, i, rw.get(old.result(op)));
                    }
                }
            }
            OpKind::Store(m) => {
                let (i, v) = (index(rw), rw.get(old.args(op)[1]));
                rw.copy(self, op);
                self.ages[m.index()].computed += 1;
                if let Index::Computed(_) = i {
                    self.ages[m.index()].constant += 1;
                }
                self.learn(m, i, v);
            }
            OpKind::Foreign(_, Effect::Anything) => {
                rw.copy(self, op);
                self.forget(old, Set(BARRIER));
            }
            kind if kind.is_barrier() => {
                rw.copy(self, op);
                self.forget(old, Set(BARRIER));
            }
            OpKind::Loop | OpKind::For(_) => {
                // Another iteration may have written what is read before it is written in the text.
                let inside = self.writes.get(&op).copied().unwrap_or_default();
                self.forget(old, inside);
                rw.copy(self, op);
                self.forget(old, inside);
            }
            kind => {
                rw.copy(self, op);
                if let Effect::Writes(m) = kind.effect() {
                    self.forget(old, Set::of(m));
                }
            }
        }
    }

    fn enter(&mut self, _: &mut Rewrite<'_>, _: OpId, _: RegionId) {
        self.scopes.push(Vec::new());
    }

    /// What was learnt in a region holds only there, and what it wrote is unknown afterwards.
    fn leave(&mut self, _: &mut Rewrite<'_>) {
        for key in self.scopes.pop().unwrap_or_default() {
            self.known.remove(&key);
        }
    }
}

pub(super) fn run(k: &Kernel) -> Option<Kernel> {
    if !k.kinds().any(|kind| matches!(kind, OpKind::Load(_))) {
        return None;
    }
    let mut loops = Map::default();
    writes(k, k.body(), &mut loops);
    let ages = vec![MemoryVersion::default(); k.memories().len()];
    Some(Rewrite::run(k, &mut StoreForwarding { known: Map::default(), ages, scopes: vec![Vec::new()], writes: loops }))
}
