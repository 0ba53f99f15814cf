//! Running the primal forward in its adjoint: the values that going backwards needs, where they are needed, and what its loops leave on the tape.

use super::super::plan::{LoopPlan, Restore};
use super::super::tape::{self, Record};
use super::{ForwardLoop, Reverse};
use impasto_kernel::ir::{Access, Compare, OpId, OpKind, RegionId, Space, Ty, Value};

impl Reverse<'_> {
    /// Runs a region forward, without its terminator. With `taping`, its loops leave what is needed to take them backwards, here; with `first`,
    /// this is the one run in which memory of the workgroup is written.
    pub(super) fn forward(&mut self, r: RegionId, taping: bool, first: bool) {
        let k = self.k;
        for &op in k.region_ops(r) {
            let kind = k.kind(op);
            self.asm.stands_for(k, op);
            if kind.is_terminator() {
                return;
            }
            if self.normal.guards.contains_key(&op) {
                continue;
            }
            match kind {
                _ if self.normal.logged.contains_key(&op) => self.logged(op, first),
                OpKind::For(step) => self.run_for(op, step, taping && self.activity.holds.contains(&op), first),
                OpKind::If | OpKind::Switch(_) | OpKind::Loop => self.run_structure(op, first),
                OpKind::Load(_) | OpKind::Store(_) | OpKind::Atomic(..) | OpKind::Barrier if !self.runs(op, first) => {
                    for v in k.results(op) {
                        self.map[v.index()] = self.asm.zero(k.ty(v));
                    }
                }
                _ => self.copy(op),
            }
        }
    }

    /// A read that is written down the first time, and then taken from there.
    fn logged(&mut self, op: OpId, first: bool) {
        let (Some(&at), Some(tape)) = (self.normal.logged.get(&op), self.tape) else { return };
        let (at, result) = (self.get(at), self.k.result(op));
        if first {
            self.copy(op);
            let value = self.get(result);
            tape.put_log(&mut self.asm, at, value);
        } else {
            self.map[result.index()] = tape.take_log(&mut self.asm, at, self.k.ty(result));
        }
    }

    /// Behind the first run. If there was no room for what was written down, no loop is taken backwards.
    pub(super) fn end_log(&mut self) {
        let Some(tape) = self.tape.as_mut().filter(|_| !self.normal.logged.is_empty()) else { return };
        let total = self.normal.log_total.map(|v| self.map[v.index()]);
        let whole = tape.end_log(&mut self.asm, total, self.top);
        let zero = self.asm.number(0);
        let mut ran: Vec<&mut ForwardLoop> = self.ran.iter_mut().map(|(_, r)| r).collect();
        ran.sort_unstable_by_key(|r| r.trip_count);
        for ran in ran {
            ran.trip_count = self.asm.select(whole, ran.trip_count, zero);
        }
    }

    /// Whether an op on memory is done when the primal is run forward.
    fn runs(&self, op: OpId, first: bool) -> bool {
        let k = self.k;
        match k.kind(op) {
            OpKind::Barrier => first && self.replayed.contains(&true),
            OpKind::Load(m) | OpKind::Store(m) | OpKind::Atomic(m, _) => match (k.memory(m).space, k.kind(op)) {
                (Space::Buffer(Access::Tape), _) => true,
                (Space::Buffer(Access::Scratch), _) => first && self.replayed[m.index()],
                (Space::Buffer(_), OpKind::Load(_)) => !self.plan.written[m.index()],
                (Space::Buffer(_), _) => false,
                _ => first && self.replayed[m.index()],
            },
            _ => true,
        }
    }

    pub(super) fn types(&self, values: impl Iterator<Item = Value>) -> Vec<Ty> {
        values.map(|v| self.k.ty(v)).collect()
    }

    fn copy(&mut self, op: OpId) {
        if let OpKind::Load(m) = self.k.kind(op)
            && self.parts.has(m)
        {
            let index = self.get(self.k.args(op)[0]);
            if let Some(v) = self.parts.load(&mut self.asm, m, index) {
                self.map[self.k.result(op).index()] = v;
            }
            return;
        }
        let (args, kind, types) =
            (self.args(op), self.asm.kind_of(self.k, op, &self.targets), self.types(self.k.results(op)));
        let new = self.asm.push(kind, &args, &types);
        self.bind(self.k.results(op), self.asm.kernel.results(new));
    }

    fn open(&mut self, r: RegionId) {
        let types = self.types(self.k.region_args(r));
        let new = self.asm.open(&types);
        self.targets[r.index()] = new;
        self.bind(self.k.region_args(r), self.asm.kernel.region_args(new));
    }

    fn finish_structure(&mut self, op: OpId, args: &[Value], regions: &[RegionId]) {
        let (kind, types) = (self.asm.kind_of(self.k, op, &self.targets), self.types(self.k.results(op)));
        let new = self.asm.push_structure(kind, args, &types, regions);
        self.bind(self.k.results(op), self.asm.kernel.results(new));
    }

    fn run_structure(&mut self, op: OpId, first: bool) {
        let k = self.k;
        let args = self.args(op);
        let mut regions = Vec::new();
        for &r in k.regions(op) {
            self.open(r);
            self.forward(r, false, first);
            if let Some(end) = k.terminator(r) {
                self.copy(end);
            }
            regions.push(self.asm.close());
        }
        self.finish_structure(op, &args, &regions);
    }

    fn run_for(&mut self, op: OpId, step: u32, taping: bool, first: bool) {
        let k = self.k;
        let r = k.regions(op)[0];
        let args = self.args(op);
        let plan = if taping { self.plan.loops.get(&op).cloned() } else { None };
        let record = plan.as_ref().filter(|p| p.words != [0; 2]).and_then(|p| {
            let tape = self.tape?;
            Some(tape.record(&mut self.asm, self.top, p.words))
        });
        self.open(r);
        // A loop that may end early does so here; it does not when an iteration is run again to take it backwards.
        let guard = k.region_ops(r).iter().copied().find(|op| self.normal.guards.contains_key(op));
        if let Some(guard) = guard {
            self.run_structure(guard, first);
        }
        if let Some((record, plan)) = record.zip(plan.as_ref()) {
            self.write_turn(r, &record, plan, args[0], step);
        }
        self.forward(r, false, first);
        if let Some(end) = k.terminator(r) {
            self.copy(end);
        }
        let region = self.asm.close();
        self.finish_structure(op, &args, &[region]);
        if !taping {
            return;
        }
        let trip_count = match self.normal.trip_count.get(&op).and_then(|&j| k.results(op).nth(j)) {
            Some(counted) => self.get(counted),
            None => tape::trip_count(&mut self.asm, args[0], args[1], step),
        };
        let mut ran = ForwardLoop { record, trip_count };
        if let (Some(record), Some(tape)) = (record, self.tape) {
            (ran.trip_count, self.top) = tape.settle(&mut self.asm, &record, trip_count);
        }
        self.ran.insert(op, ran);
    }

    fn write_turn(&mut self, r: RegionId, record: &Record, plan: &LoopPlan, from: Value, step: u32) {
        let Some(tape) = self.tape else { return };
        let values: Vec<Value> = self.k.region_args(r).map(|v| self.get(v)).collect();
        let iteration = tape::iteration(&mut self.asm, values[0], from, step);
        let fits = self.asm.compare(Compare::Lt, iteration, record.room);
        self.asm.when(fits, |asm| {
            for (keep, &v) in plan.keep.iter().zip(&values[1..]) {
                if let Restore::Tape { first } = *keep {
                    tape.put(asm, record, iteration, first, v);
                }
            }
        });
    }
}
