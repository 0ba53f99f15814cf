//! SSA construction: variables become values, results of regions and carried values of loops.
//!
//! An `if` gets one result for each variable that is assigned in it *and* read after it; a loop carries each variable that is assigned in it
//! and read in it or after it. Both are found from the places where each variable is read, kept as sorted lists, so nothing is
//! ever as large as variables times joins. "Read after" does not ask whether an assignment stands between: dead code elimination takes
//! away the few results too many.
//!
//! Cost: n log n for n ops, plus the results that are made. A result is made at most once for each assignment and each level around it.

use crate::hash::Map;

use super::rewrite::{Rewrite, Rule};
use crate::ir::{Kernel, OpId, OpKind, RegionId, Ty, Value, VarId};

/// Where an op with regions begins and ends, in the order of the text.
#[derive(Clone, Copy, Default)]
struct Span {
    start: u32,
    end: u32,
}

/// The variables that leave an op as results, and those that a loop carries.
#[derive(Default)]
struct Joins {
    out: Vec<VarId>,
    carried: Vec<VarId>,
}

struct Analysis<'a> {
    k: &'a Kernel,
    next: u32,
    spans: Map<OpId, Span>,
    /// Where each variable is declared, and where it is read, in order.
    declared: Vec<u32>,
    reads: Vec<Vec<u32>>,
    /// The loops around, outermost first.
    loops: Vec<Span>,
    /// Variables assigned in the ops that are open, those of each op after those before it.
    assigned: Vec<VarId>,
    joins: Map<OpId, Joins>,
}

impl Analysis<'_> {
    fn number(&mut self, r: RegionId) {
        let k = self.k;
        for &op in k.region_ops(r) {
            self.next += 1;
            let start = self.next;
            match k.kind(op) {
                OpKind::Var(v) => self.declared[v.index()] = start,
                OpKind::Get(v) => self.reads[v.index()].push(start),
                kind if kind.is_structure() => {
                    k.regions(op).iter().for_each(|&r| self.number(r));
                    self.spans.insert(op, Span { start, end: self.next });
                }
                _ => {}
            }
        }
    }

    fn read_in(&self, v: VarId, span: Span) -> bool {
        let reads = &self.reads[v.index()];
        let first = reads.partition_point(|&p| p < span.start);
        reads.get(first).is_some_and(|&p| p <= span.end)
    }

    /// Whether the value that a variable has after an op may be read: further down, or in another iteration of a loop around.
    fn read_after(&self, v: VarId, span: Span) -> bool {
        let later = self.reads[v.index()].last().is_some_and(|&p| p > span.end);
        let around = self.loops.partition_point(|l| l.start < self.declared[v.index()]);
        later || self.loops.get(around).is_some_and(|&l| self.read_in(v, l))
    }

    fn region(&mut self, r: RegionId) {
        let k = self.k;
        for &op in k.region_ops(r) {
            match k.kind(op) {
                OpKind::Set(v) => self.assigned.push(v),
                kind if kind.is_structure() => {
                    let span = self.spans.get(&op).copied().unwrap_or_default();
                    let repeats = matches!(kind, OpKind::Loop | OpKind::For(_));
                    let from = self.assigned.len();
                    if repeats {
                        self.loops.push(span);
                    }
                    k.regions(op).iter().for_each(|&r| self.region(r));
                    if repeats {
                        self.loops.pop();
                    }
                    let mut here = self.assigned.split_off(from);
                    here.sort_unstable();
                    here.dedup();
                    here.retain(|v| self.declared[v.index()] < span.start);
                    let mut joins = Joins::default();
                    for &v in &here {
                        let read_later = self.read_after(v, span);
                        let carries = repeats && (read_later || self.read_in(v, span));
                        if carries {
                            joins.carried.push(v);
                        }
                        // The results of a `for` are its carried values.
                        if read_later || (carries && matches!(kind, OpKind::For(_))) {
                            joins.out.push(v);
                        }
                    }
                    self.joins.insert(op, joins);
                    self.assigned.append(&mut here);
                }
                _ => {}
            }
        }
    }
}

struct Construct {
    joins: Map<OpId, Joins>,
    /// The value of each variable now, and what it was before each assignment that may have to be undone.
    now: Vec<Value>,
    undo: Vec<(VarId, Value)>,
    /// The ops around, and the op of each loop region.
    around: Vec<OpId>,
    loops: Map<RegionId, OpId>,
}

impl Construct {
    fn assign(&mut self, v: VarId, value: Value) {
        self.undo.push((v, self.now[v.index()]));
        self.now[v.index()] = value;
    }

    fn values(&self, vars: &[VarId]) -> impl Iterator<Item = Value> {
        vars.iter().map(|v| self.now[v.index()])
    }

    fn structure(&mut self, rw: &mut Rewrite<'_>, op: OpId) {
        let old = rw.old;
        let joins = self.joins.remove(&op).unwrap_or_default();
        let ty = |v: &VarId| old.vars[v.index()];
        let mut args = rw.args(op);
        args.extend(self.values(&joins.carried));
        let mut types = rw.result_types(op);
        types.extend(joins.out.iter().map(ty));
        let out = joins.out.clone();
        let carried = joins.carried.clone();
        self.joins.insert(op, joins);
        self.around.push(op);
        let mut regions = Vec::new();
        for &r in old.regions(op) {
            let mark = self.undo.len();
            let inner: Vec<Ty> = old.region_args(r).map(|v| old.ty(v)).chain(carried.iter().map(ty)).collect();
            let new = rw.asm.open(&inner);
            rw.set_target(r, new);
            self.loops.insert(r, op);
            let mut values = rw.asm.kernel.region_args(new);
            for (a, b) in old.region_args(r).zip(&mut values) {
                rw.set(a, b);
            }
            for (&v, b) in carried.iter().zip(values) {
                self.assign(v, b);
            }
            rw.region(self, r);
            regions.push(rw.asm.close());
            while self.undo.len() > mark {
                if let Some((v, before)) = self.undo.pop() {
                    self.now[v.index()] = before;
                }
            }
        }
        self.around.pop();
        let kind = rw.kind(op);
        rw.asm.stands_for(old, op);
        let new = rw.asm.push_structure(kind, &args, &types, &regions);
        let given = rw.asm.kernel.results(new).skip(old.results(op).len());
        for (&v, b) in out.iter().zip(given) {
            self.assign(v, b);
        }
        rw.results(op, new);
    }
}

impl Rule for Construct {
    fn op(&mut self, rw: &mut Rewrite<'_>, op: OpId) {
        let kind = rw.old.kind(op);
        match kind {
            OpKind::Var(v) | OpKind::Set(v) => {
                let value = rw.get(rw.old.args(op)[0]);
                self.assign(v, value);
            }
            OpKind::Get(v) => rw.replace(op, self.now[v.index()]),
            OpKind::Yield | OpKind::Break(_) | OpKind::Continue(_) => {
                let to = match kind {
                    OpKind::Break(r) | OpKind::Continue(r) => self.loops.get(&r).copied(),
                    _ => self.around.last().copied(),
                };
                let mut args = rw.args(op);
                if let Some(joins) = to.and_then(|to| self.joins.get(&to)) {
                    let vars = if let OpKind::Continue(_) = kind { &joins.carried } else { &joins.out };
                    args.extend(self.values(vars));
                }
                let kind = rw.kind(op);
                rw.asm.push(kind, &args, &[]);
            }
            kind if kind.is_structure() => self.structure(rw, op),
            _ => rw.copy(self, op),
        }
    }
}

/// Variables become values.
pub(super) fn run(k: &Kernel) -> Option<Kernel> {
    let mut a = Analysis {
        k,
        next: 0,
        spans: Map::default(),
        declared: vec![0; k.vars.len()],
        reads: vec![Vec::new(); k.vars.len()],
        loops: Vec::new(),
        assigned: Vec::new(),
        joins: Map::default(),
    };
    a.number(k.body());
    a.region(k.body());
    let mut construct = Construct {
        joins: a.joins,
        now: vec![Value(u32::MAX); k.vars.len()],
        undo: Vec::new(),
        around: Vec::new(),
        loops: Map::default(),
    };
    let mut new = Rewrite::run(k, &mut construct);
    new.vars.clear();
    Some(new)
}
