//! From what surely happens back to what it needs, and the ids of that.

use std::collections::BTreeMap;

use super::class::{Class, hash};
use super::look::{Def, Look, NONE};
use super::tally::Tally;
use crate::ir::{Binary, MemoryId, OpId, OpKind, RegionId, Scalar, Space, Value};

pub(super) const CONSTANTS: &str = "constants";
/// Ops of a loop with constant ends that is surely not unrolled.
const STAYS_A_LOOP: u64 = 300;

/// What of a kernel is needed, and the ids that it takes.
pub(super) struct Needs {
    /// Whether variables will be values, with joins where they meet.
    values: bool,
    live: Vec<u64>,
    open: Vec<u32>,
    read: Vec<bool>,
    /// What was seen of what happens, and of the stores to arrays of one invocation.
    happened: usize,
    private: usize,
    /// Ops with regions that were counted.
    seen: Vec<u64>,
    /// Ops in loops with constant ends, with the loop.
    inside: Vec<(u32, OpId)>,
    own: Tally,
    constants: Tally,
}

impl Needs {
    pub(super) fn of(look: &Look<'_>, values: bool) -> Needs {
        Needs {
            values,
            live: Vec::new(),
            open: Vec::new(),
            read: vec![false; look.k.memories().len()],
            happened: 0,
            private: 0,
            seen: vec![0; look.k.op_count().div_ceil(64)],
            inside: Vec::new(),
            own: Tally::new(),
            constants: Tally::new(),
        }
    }

    /// Goes back from what was looked at since the last time.
    pub(super) fn take(&mut self, look: &Look<'_>) {
        self.live.resize(look.value_count().div_ceil(64), 0);
        let stores = std::mem::replace(&mut self.private, look.private.len());
        for &(m, op) in &look.private[stores..] {
            if self.read[m.index()] {
                self.happens(look, op);
            }
        }
        let from = std::mem::replace(&mut self.happened, look.happens.len());
        for &op in &look.happens[from..] {
            self.happens(look, op);
            self.solve(look);
        }
        self.solve(look);
    }

    /// Whether what was seen so far takes more than this many.
    pub(super) fn exceeds(&mut self, limit: u64) -> bool {
        self.own.exceeds(limit) || self.constants.exceeds(limit)
    }

    /// The ids by what takes them, and constants; nothing, if a loop with constant ends may be unrolled.
    pub(super) fn counted(mut self, look: &Look<'_>) -> Option<(BTreeMap<&'static str, u64>, Tally)> {
        // What stands outside of loops with constant ends came first: in them only what is not there as well keeps them large.
        let mut inside = std::mem::take(&mut self.inside);
        inside.sort_by_key(|&(home, _)| home);
        inside.iter().for_each(|&(home, op)| self.count(look, op, home));
        let (found, mut sizes) = self.own.counted(look.around.len());
        for i in (1..sizes.len()).rev() {
            if sizes[i] < STAYS_A_LOOP {
                return None;
            }
            sizes[look.around[i] as usize] += sizes[i];
        }
        Some((found, self.constants))
    }

    fn need(&mut self, look: &Look<'_>, v: u32) {
        if v == NONE || !look.class_at(v).stays() {
            return;
        }
        let (word, bit) = (v as usize >> 6, 1 << (v & 63));
        if self.live[word] & bit == 0 {
            self.live[word] |= bit;
            self.open.push(v);
        }
    }

    fn need_all(&mut self, look: &Look<'_>, values: &[Value]) {
        values.iter().for_each(|v| self.need(look, v.0));
    }

    /// What decides about an op with regions.
    fn need_decision(&mut self, look: &Look<'_>, op: OpId) {
        let n = match look.k.kind(op) {
            OpKind::For(_) => 2,
            OpKind::Loop => 0,
            _ => 1,
        };
        self.need_all(look, look.k.args(op).get(..n).unwrap_or_default());
    }

    fn happens(&mut self, look: &Look<'_>, op: OpId) {
        self.is_needed(look, op);
        match look.k.kind(op).is_structure() {
            true => self.need_decision(look, op),
            false => self.need_all(look, look.k.args(op)),
        }
    }

    fn is_needed(&mut self, look: &Look<'_>, op: OpId) {
        match look.home.get(op.index()) {
            None | Some(0) => self.count(look, op, 0),
            Some(&home) => self.inside.push((home, op)),
        }
    }

    fn reads(&mut self, look: &Look<'_>, m: MemoryId) {
        if !matches!(look.k.memory(m).space, Space::Private(_)) || std::mem::replace(&mut self.read[m.index()], true) {
            return;
        }
        look.private[..self.private].iter().filter(|s| s.0 == m).for_each(|s| self.happens(look, s.1));
    }

    fn solve(&mut self, look: &Look<'_>) {
        while let Some(v) = self.open.pop() {
            if let Some(join) = look.join(v) {
                if self.values {
                    self.join(look, v);
                }
                look.inputs(join).iter().for_each(|&x| self.need(look, x));
                self.need_decision(look, join.of);
                continue;
            }
            match look.def(v) {
                Def::Nothing | Def::Constant(_) => {}
                Def::Same(other) => self.need(look, other),
                Def::Op(op) => {
                    self.is_needed(look, op);
                    self.need_all(look, look.k.args(op));
                    if let OpKind::Load(m) = look.k.kind(op) {
                        self.reads(look, m);
                    }
                }
            }
        }
    }

    fn constant(&mut self, look: &Look<'_>, v: u32) {
        let class = look.class_at(v);
        if !class.is_constant() {
            return;
        }
        // The bits of a bf16 are a word, which may be another constant.
        if look.join(v).is_some() || look.k.ty(Value(v)) != crate::ir::Ty::scalar(Scalar::Bf16) {
            self.constants.add(CONSTANTS, 0, class.0);
        }
    }

    fn place(&mut self, look: &Look<'_>, what: &'static str, home: u32, m: MemoryId, at: Value) {
        let class = look.class(at);
        if class.is_known() {
            self.own.add(what, home, hash(&[0x51, m.0.into(), class.0]));
            self.constant(look, at.0);
        }
    }

    /// A value; its class is a hash of it already.
    fn value(&mut self, what: &'static str, home: u32, class: Class) {
        if class.stays() {
            self.own.add(what, home, class.0);
        }
    }

    fn join(&mut self, look: &Look<'_>, v: u32) {
        self.value("joins", 0, look.class_at(v));
        if let Some(join) = look.join(v) {
            look.inputs(join).iter().filter(|&&x| x != NONE).for_each(|&x| self.constant(look, x));
            // An `if` may become a select.
            if !matches!(look.k.kind(join.of), OpKind::If) {
                self.structure(look, join.of);
            }
        }
    }

    /// The blocks of an op with regions, and what counts a loop.
    fn structure(&mut self, look: &Look<'_>, op: OpId) {
        let (word, bit) = (op.index() >> 6, 1 << (op.0 & 63));
        if self.seen[word] & bit != 0 {
            return;
        }
        self.seen[word] |= bit;
        match look.k.kind(op) {
            OpKind::For(_) => {
                self.own.add_certain("blocks", 3);
                self.own.add_certain("loops", 3);
            }
            // One that runs once is no loop in the end.
            OpKind::Loop if ends_with_continue(look, op) => self.own.add_certain("blocks", 3),
            OpKind::Loop => {}
            _ => self.own.add_certain("blocks", 2),
        }
    }

    fn count(&mut self, look: &Look<'_>, op: OpId, home: u32) {
        let k = look.k;
        let (kind, args) = (k.kind(op), k.args(op));
        match (kind, args) {
            (OpKind::Store(m), &[at, x, ..]) => {
                self.place(look, kind.name(), home, m, at);
                self.constant(look, x.0);
            }
            (OpKind::MatrixStore(m, _), &[at, ..]) => self.place(look, kind.name(), home, m, at),
            _ if kind.is_structure() => self.structure(look, op),
            (OpKind::Param(_) | OpKind::Builtin(..) | OpKind::Const(_), _) => {}
            _ if k.results(op).len() == 1 => {
                let what = kind.name();
                self.value(what, home, look.class(k.result(op)));
                if let (OpKind::Load(m) | OpKind::MatrixLoad(m, _) | OpKind::Atomic(m, _), &[at, ..]) = (kind, args) {
                    // It is one op of the loop, which has a value.
                    self.place(look, what, 0, m, at);
                }
                // A product may become a shift, by another constant; others may vanish with an op.
                if !matches!(kind, OpKind::Binary(Binary::Mul)) {
                    args.iter().filter(|&&v| look.class(v).is_plain()).for_each(|v| self.constant(look, v.0));
                }
            }
            _ => {}
        }
    }
}

fn ends_with_continue(look: &Look<'_>, op: OpId) -> bool {
    let k = look.k;
    let continued =
        |&r: &RegionId| k.terminator(r).is_some_and(|t| matches!(k.kind(t), OpKind::Continue(to) if to == r));
    k.regions(op).iter().any(continued)
}
