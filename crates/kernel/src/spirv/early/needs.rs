//! From what surely happens back to what it needs, and the ids of that.

use std::collections::BTreeMap;

use super::class::{Class, Hashes, hash};
use super::look::{Def, Look, NONE};
use crate::ir::{Binary, MemoryId, OpId, OpKind, RegionId, Scalar, Space, Value};

pub(super) const CONSTANTS: &str = "constants";
/// Ops of a loop with constant ends that is surely not unrolled.
const STAYS_A_LOOP: u64 = 300;

/// Something that takes ids.
#[derive(Clone, Copy)]
enum Needed {
    Op(OpId),
    Join(u32),
}

struct Needs<'a> {
    look: &'a Look<'a>,
    live: Vec<u64>,
    open: Vec<u32>,
    needed: Vec<Needed>,
    read: Vec<bool>,
}

impl Needs<'_> {
    fn need(&mut self, v: u32) {
        if v == NONE || !self.look.class_at(v).stays() {
            return;
        }
        let (word, bit) = (v as usize >> 6, 1 << (v & 63));
        if self.live[word] & bit == 0 {
            self.live[word] |= bit;
            self.open.push(v);
        }
    }

    fn need_all(&mut self, values: &[Value]) {
        values.iter().for_each(|v| self.need(v.0));
    }

    /// What decides about an op with regions.
    fn need_decision(&mut self, op: OpId) {
        let k = self.look.k;
        let n = match k.kind(op) {
            OpKind::For(_) => 2,
            OpKind::Loop => 0,
            _ => 1,
        };
        self.need_all(k.args(op).get(..n).unwrap_or_default());
    }

    fn happens(&mut self, op: OpId) {
        self.needed.push(Needed::Op(op));
        match self.look.k.kind(op).is_structure() {
            true => self.need_decision(op),
            false => self.need_all(self.look.k.args(op)),
        }
    }

    fn reads(&mut self, m: MemoryId) {
        let look = self.look;
        if !matches!(look.k.memory(m).space, Space::Private(_)) || std::mem::replace(&mut self.read[m.index()], true) {
            return;
        }
        look.private.iter().filter(|s| s.0 == m).for_each(|s| self.happens(s.1));
    }

    fn solve(&mut self) {
        let look = self.look;
        look.happens.iter().for_each(|&op| self.happens(op));
        while let Some(v) = self.open.pop() {
            if let Some(join) = look.join(v) {
                self.needed.push(Needed::Join(v));
                look.inputs(join).iter().for_each(|&x| self.need(x));
                self.need_decision(join.of);
                continue;
            }
            match look.def(v) {
                Def::Nothing => {}
                Def::Same(other) => self.need(other),
                Def::Op(op) => {
                    self.needed.push(Needed::Op(op));
                    self.need_all(look.k.args(op));
                    if let OpKind::Load(m) = look.k.kind(op) {
                        self.reads(m);
                    }
                }
            }
        }
    }
}

pub(super) struct Count<'a> {
    look: &'a Look<'a>,
    table: &'a mut Hashes,
    salt: u64,
    found: Vec<(&'static str, u64)>,
    total: u64,
    /// Ops with regions that were counted.
    seen: Vec<u64>,
}

impl Count<'_> {
    /// Ids by what takes them; nothing, if a loop with constant ends may be unrolled.
    pub(super) fn of(
        look: &Look<'_>,
        table: &mut Hashes,
        salt: u64,
        values: bool,
    ) -> Option<BTreeMap<&'static str, u64>> {
        let live = vec![0; look.value_count().div_ceil(64)];
        let read = vec![false; look.k.memories().len()];
        let mut needs = Needs { look, live, open: Vec::new(), needed: Vec::new(), read };
        needs.solve();
        let seen = vec![0; look.k.op_count().div_ceil(64)];
        let mut count = Count { look, table, salt, found: Vec::new(), total: 0, seen };
        // What stands outside of loops with constant ends comes first: in them only what is not there as well keeps them large.
        let home = |op: OpId| look.home.get(op.index()).copied().unwrap_or(0);
        let mut inside: Vec<(u32, OpId)> = Vec::new();
        for needed in needs.needed {
            match needed {
                Needed::Op(op) if home(op) != 0 => inside.push((home(op), op)),
                Needed::Op(op) => count.op(op),
                Needed::Join(v) if values => count.join(v),
                Needed::Join(_) => {}
            }
        }
        inside.sort_by_key(|&(home, _)| home);
        let mut sizes = vec![0; look.around.len()];
        for (home, op) in inside {
            let before = count.total;
            count.op(op);
            sizes[home as usize] += u64::from(count.total > before);
        }
        for i in (1..sizes.len()).rev() {
            if sizes[i] < STAYS_A_LOOP {
                return None;
            }
            sizes[look.around[i] as usize] += sizes[i];
        }
        // A name may stand in the program twice.
        let mut found = BTreeMap::new();
        count.found.into_iter().for_each(|(what, n)| *found.entry(what).or_insert(0) += n);
        Some(found)
    }

    fn add(&mut self, what: &'static str, hash: u64) {
        if !self.table.add(hash) {
            return;
        }
        self.total += 1;
        // What comes often comes in a row.
        match self.found.iter().position(|f| std::ptr::eq(f.0, what)) {
            Some(0) => self.found[0].1 += 1,
            Some(i) => {
                self.found[i].1 += 1;
                self.found.swap(i, i - 1);
            }
            None => self.found.push((what, 1)),
        }
    }

    /// Something of this kernel.
    fn own(&mut self, what: &'static str, words: [u64; 3]) {
        self.add(what, hash(&[self.salt, words[0], words[1], words[2]]));
    }

    fn constant(&mut self, v: u32) {
        // The bits of a bf16 are a word, which may be another constant.
        let bf16 = self.look.join(v).is_none() && self.look.k.ty(Value(v)) == crate::ir::Ty::scalar(Scalar::Bf16);
        let class = self.look.class_at(v);
        if class.is_constant() && !bf16 {
            self.add(CONSTANTS, hash(&[0x52, class.0]));
        }
    }

    fn place(&mut self, what: &'static str, m: MemoryId, at: Value) {
        let class = self.look.class(at);
        if class.is_known() {
            self.own(what, [0x51, m.0.into(), class.0]);
            self.constant(at.0);
        }
    }

    fn value(&mut self, what: &'static str, class: Class) {
        self.own(what, [0x50, class.0, 0]);
    }

    fn join(&mut self, v: u32) {
        self.value("joins", self.look.class_at(v));
        if let Some(join) = self.look.join(v) {
            let look = self.look;
            look.inputs(join).iter().filter(|&&x| x != NONE).for_each(|&x| self.constant(x));
            // An `if` may become a select.
            if look.k.kind(join.of) != OpKind::If {
                self.structure(join.of);
            }
        }
    }

    fn ends_with_continue(&self, op: OpId) -> bool {
        let k = self.look.k;
        let continued = |&r: &RegionId| k.terminator(r).is_some_and(|t| k.kind(t) == OpKind::Continue(r));
        k.regions(op).iter().any(continued)
    }

    /// The blocks of an op with regions, and what counts a loop.
    fn structure(&mut self, op: OpId) {
        let (word, bit) = (op.index() >> 6, 1 << (op.0 & 63));
        if self.seen[word] & bit != 0 {
            return;
        }
        self.seen[word] |= bit;
        let (blocks, count) = match self.look.k.kind(op) {
            OpKind::For(_) => (3, 3),
            // One that runs once is no loop in the end.
            OpKind::Loop if self.ends_with_continue(op) => (3, 0),
            OpKind::Loop => (0, 0),
            _ => (2, 0),
        };
        (0..blocks).for_each(|i| self.own("blocks", [0x53, op.0.into(), i]));
        (0..count).for_each(|i| self.own("loops", [0x54, op.0.into(), i]));
    }

    fn op(&mut self, op: OpId) {
        let k = self.look.k;
        let (kind, args) = (k.kind(op), k.args(op));
        let what = kind.name();
        match (kind, args) {
            (OpKind::Store(m), &[at, x, ..]) => {
                self.place(what, m, at);
                self.constant(x.0);
            }
            (OpKind::MatrixStore(m, _), &[at, ..]) => self.place(what, m, at),
            _ if kind.is_structure() => self.structure(op),
            (OpKind::Param(_) | OpKind::Builtin(..) | OpKind::Const(_), _) => {}
            _ if k.results(op).len() == 1 => {
                self.value(what, self.look.class(k.result(op)));
                if let (OpKind::Load(m) | OpKind::MatrixLoad(m, _) | OpKind::Atomic(m, _), &[at, ..]) = (kind, args) {
                    self.place(what, m, at);
                }
                // A product may become a shift, by another constant; others may vanish with an op.
                if kind != OpKind::Binary(Binary::Mul) {
                    args.iter().filter(|&&v| self.look.class(v).is_plain()).for_each(|v| self.constant(v.0));
                }
            }
            _ => {}
        }
    }
}
