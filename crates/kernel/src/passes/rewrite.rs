//! How passes are written: the old kernel is walked in order and a new one is written. A [`Rule`] says what stands for an op; what it does
//! not care about is copied. What cannot be reached any more is not written.

use crate::ir::{Assembler, Kernel, OpId, OpKind, RegionId, Ty, Value};

/// What a pass does with each op.
pub trait Rule: Sized {
    /// Writes what stands for an op, and enters its results into the map.
    fn op(&mut self, rw: &mut Rewrite<'_>, op: OpId) {
        rw.copy(self, op);
    }

    /// A region of this new op is open now, its arguments are in the map.
    fn enter(&mut self, _rw: &mut Rewrite<'_>, _op: OpId, _region: RegionId) {}

    /// That region will be closed now.
    fn leave(&mut self, _rw: &mut Rewrite<'_>) {}
}

/// The old kernel, the new one, and what in the new one stands for what in the old one.
pub struct Rewrite<'a> {
    /// The kernel that is read.
    pub old: &'a Kernel,
    /// The kernel that is written.
    pub asm: Assembler,
    map: Vec<Value>,
    targets: Vec<RegionId>,
}

impl<'a> Rewrite<'a> {
    /// Begins a kernel with this header.
    pub fn new(old: &'a Kernel, header: Kernel) -> Rewrite<'a> {
        Rewrite {
            old,
            asm: Assembler::new(header),
            map: vec![Value(u32::MAX); old.value_count()],
            targets: vec![RegionId(u32::MAX); old.region_count()],
        }
    }

    /// The whole kernel by this rule.
    pub fn run(old: &Kernel, rule: &mut impl Rule) -> Kernel {
        Rewrite::run_with(old, old.header(), rule)
    }

    /// The whole kernel by this rule, with other memory.
    pub fn run_with(old: &Kernel, header: Kernel, rule: &mut impl Rule) -> Kernel {
        let mut rw = Rewrite::new(old, header);
        rw.region(rule, old.body());
        rw.asm.finish()
    }

    /// What stands for an old value.
    pub fn get(&self, v: Value) -> Value {
        self.map[v.index()]
    }

    /// Says what stands for an old value.
    pub fn set(&mut self, old: Value, new: Value) {
        self.map[old.index()] = new;
    }

    /// What stands for the operands of an old op.
    pub fn args(&self, op: OpId) -> Vec<Value> {
        self.old.args(op).iter().map(|&v| self.get(v)).collect()
    }

    /// What stands for a loop of the old kernel.
    pub fn target(&self, region: RegionId) -> RegionId {
        self.targets[region.index()]
    }

    /// Says what stands for a loop of the old kernel.
    pub fn set_target(&mut self, old: RegionId, new: RegionId) {
        self.targets[old.index()] = new;
    }

    /// The only result of an old op is this new value.
    pub fn replace(&mut self, op: OpId, new: Value) {
        self.set(self.old.result(op), new);
    }

    /// The ops of an old region, into the innermost open region.
    pub fn region(&mut self, rule: &mut impl Rule, r: RegionId) {
        let old = self.old;
        for &op in old.region_ops(r) {
            if self.asm.ended() {
                return;
            }
            self.asm.stands_for(old, op);
            rule.op(self, op);
        }
    }

    /// The ops of an old region without its `yield`, into the innermost open region. The yielded values, if it was reached.
    pub fn inline(&mut self, rule: &mut impl Rule, r: RegionId) -> Option<Vec<Value>> {
        let old = self.old;
        for &op in old.region_ops(r) {
            if self.asm.ended() {
                return None;
            }
            if old.kind(op) == OpKind::Yield {
                return Some(self.args(op));
            }
            self.asm.stands_for(old, op);
            rule.op(self, op);
        }
        None
    }

    /// The kind of an old op, with the loops of the new kernel in it. Constants and case tables keep their numbers.
    pub fn kind(&self, op: OpId) -> OpKind {
        match self.old.kind(op) {
            OpKind::Continue(r) => OpKind::Continue(self.target(r)),
            OpKind::Break(r) => OpKind::Break(self.target(r)),
            kind => kind,
        }
    }

    /// The types of the results of an old op.
    pub fn result_types(&self, op: OpId) -> Vec<Ty> {
        self.old.results(op).map(|v| self.old.ty(v)).collect()
    }

    /// Opens a region that stands for an old one, with its arguments.
    pub fn open(&mut self, r: RegionId) -> RegionId {
        let types: Vec<Ty> = self.old.region_args(r).map(|v| self.old.ty(v)).collect();
        let new = self.asm.open(&types);
        for (a, b) in self.old.region_args(r).zip(self.asm.kernel.region_args(new)) {
            self.set(a, b);
        }
        self.set_target(r, new);
        new
    }

    /// The results of an old op are those of a new one. What stands after an op that does not go on is not written.
    pub fn results(&mut self, op: OpId, new: OpId) {
        for (a, b) in self.old.results(op).zip(self.asm.kernel.results(new)) {
            self.set(a, b);
        }
        if !self.asm.falls_through(new) && !self.asm.ended() {
            self.asm.push(OpKind::Unreachable, &[], &[]);
        }
    }

    /// An op without regions as it is, into the open region with this number.
    pub fn copy_to(&mut self, level: usize, op: OpId) {
        let kind = self.kind(op);
        let (old, map) = (self.old, &self.map);
        let args = old.args(op).iter().map(|v| map[v.index()]);
        let types = old.results(op).map(|v| old.ty(v));
        let new = self.asm.push_at(level, kind, args, types, &[]);
        for (a, b) in old.results(op).zip(self.asm.kernel.results(new)) {
            self.map[a.index()] = b;
        }
    }

    /// The op as it is, its regions by the rule.
    pub fn copy(&mut self, rule: &mut impl Rule, op: OpId) {
        let old = self.old;
        if old.regions(op).is_empty() {
            return self.copy_to(self.asm.depth() - 1, op);
        }
        let args = self.args(op);
        let types = self.result_types(op);
        let mut regions = Vec::new();
        for &r in old.regions(op) {
            self.open(r);
            rule.enter(self, op, r);
            self.region(rule, r);
            rule.leave(self);
            regions.push(self.asm.close());
        }
        let kind = self.kind(op);
        self.asm.stands_for(old, op);
        let new = self.asm.push_structure(kind, &args, &types, &regions);
        self.results(op, new);
    }
}
