//! Structured control flow as labels and branches. Results and carried values are registers that each way in moves its own values to.

use impasto_kernel::ir::{OpId, OpKind, RegionId, Scalar, Value};

use super::Emit;
use super::text::{Class, Label, Operand, imm};

/// An op with regions that is being written.
pub(super) enum Frame {
    /// An `if` or `switch`, its results, and where it ends.
    Choice { results: Vec<Operand>, end: Label },
    /// A loop: its region, the registers of its carried values, where the next iteration begins, its results, where it ends.
    Repeat { region: RegionId, carried: Vec<Operand>, next: Label, results: Vec<Operand>, end: Label },
}

impl Emit<'_> {
    pub(super) fn region(&mut self, r: RegionId) {
        let around = std::mem::replace(&mut self.region, r);
        let k = self.k;
        for &op in k.region_ops(r) {
            if !self.t.is_live() {
                break;
            }
            match k.kind(op) {
                OpKind::If => self.branch(op),
                OpKind::Switch(table) => self.switch(op, table),
                OpKind::Loop => self.repeat(op),
                OpKind::For(step) => self.count(op, step),
                OpKind::Yield => {
                    let from = self.all_of(k.args(op));
                    if let Some(Frame::Choice { results, end }) = self.frames.last() {
                        self.t.mov_all(results, &from);
                        self.t.bra(*end);
                    }
                }
                OpKind::Break(target) | OpKind::Continue(target) => self.leave(op, target),
                OpKind::Return => self.t.ret(),
                OpKind::Unreachable => {
                    self.t.ins("trap", &[]);
                    self.t.ret();
                }
                _ => self.plain(op),
            }
        }
        self.region = around;
    }

    fn leave(&mut self, op: OpId, target: RegionId) {
        let from = self.all_of(self.k.args(op));
        let breaks = matches!(self.k.kind(op), OpKind::Break(_));
        for frame in self.frames.iter().rev() {
            if let Frame::Repeat { region, carried, next, results, end } = frame
                && *region == target
            {
                self.t.mov_all(if breaks { results } else { carried }, &from);
                self.t.bra(if breaks { *end } else { *next });
                return;
            }
        }
    }

    /// Registers for values that several ways lead to.
    fn joins(&mut self, values: impl Iterator<Item = Value>) -> Vec<Operand> {
        let mut all = Vec::new();
        for v in values {
            let regs = self.new_regs(self.k.ty(v));
            all.extend_from_slice(&regs);
            self.values[v.index()] = regs;
        }
        all
    }

    /// A region that only yields, and nothing.
    fn is_empty(&self, r: RegionId) -> bool {
        let k = self.k;
        let ops = k.region_ops(r);
        ops.len() == 1 && k.kind(ops[0]) == OpKind::Yield && k.args(ops[0]).is_empty()
    }

    fn branch(&mut self, op: OpId) {
        let k = self.k;
        let condition = self.scalar(k.args(op)[0]);
        let &[then, other] = k.regions(op) else { return };
        let results = self.joins(k.results(op));
        let (end, label) = (self.t.label(), self.t.label());
        self.frames.push(Frame::Choice { results, end });
        if self.is_empty(then) {
            self.t.bra_if(condition, true, end);
            self.region(other);
        } else {
            self.t.bra_if(condition, false, if self.is_empty(other) { end } else { label });
            self.region(then);
            if !self.is_empty(other) {
                self.t.place(label);
                self.region(other);
            }
        }
        self.frames.pop();
        self.t.place(end);
    }

    fn switch(&mut self, op: OpId, table: u32) {
        let k = self.k;
        let selector = self.scalar(k.args(op)[0]);
        let regions = k.regions(op);
        let results = self.joins(k.results(op));
        let end = self.t.label();
        let labels: Vec<Label> = regions.iter().map(|&r| if self.is_empty(r) { end } else { self.t.label() }).collect();
        for &(case, arm) in k.switch_cases(table) {
            let p = self.t.make(Class::Pred, "setp.eq.u32", &[selector, imm(case as u32)]);
            self.t.bra_if(p, true, labels[arm as usize]);
        }
        if let Some(&default) = labels.last() {
            self.t.bra(default);
        }
        self.frames.push(Frame::Choice { results, end });
        // The default comes first: control is on its way there.
        for (&r, &label) in regions.iter().zip(&labels).rev() {
            if label != end {
                self.t.place(label);
                self.region(r);
            }
        }
        self.frames.pop();
        self.t.place(end);
    }

    fn repeat(&mut self, op: OpId) {
        let k = self.k;
        let region = k.regions(op)[0];
        let first = self.all_of(k.args(op));
        let carried = self.joins(k.region_args(region));
        self.t.mov_all(&carried, &first);
        let results = self.joins(k.results(op));
        let (next, end) = (self.t.label(), self.t.label());
        self.t.place_head(next);
        self.frames.push(Frame::Repeat { region, carried, next, results, end });
        self.region(region);
        self.frames.pop();
        self.t.place(end);
    }

    /// A loop that counts. The condition stands at its end, and once before it.
    fn count(&mut self, op: OpId, step: u32) {
        let k = self.k;
        let region = k.regions(op)[0];
        let args = k.args(op);
        let signed = k.ty(args[0]).as_scalar() == Some(Scalar::I32);
        let (from, to) = (self.scalar(args[0]), self.scalar(args[1]));
        let first = self.all_of(&args[2..]);
        let index = self.joins(k.region_args(region).take(1))[0];
        let carried = self.joins(k.region_args(region).skip(1));
        let results = self.joins(k.results(op));
        self.t.mov(index, from);
        self.t.mov_all(&carried, &first);
        let less = if signed { "setp.lt.s32" } else { "setp.lt.u32" };
        let (body, next, done, end) = (self.t.label(), self.t.label(), self.t.label(), self.t.label());
        let runs = match (from.constant(), to.constant()) {
            (Some(a), Some(b)) => {
                let some = if signed { (a as i32) < b as i32 } else { a < b };
                Operand::Imm(Class::Pred, some.into())
            }
            _ => self.t.make(Class::Pred, less, &[index, to]),
        };
        self.t.bra_if(runs, false, done);
        if self.t.is_live() {
            self.t.place_head(body);
            self.frames.push(Frame::Repeat { region, carried: carried.clone(), next, results: results.clone(), end });
            self.region(region);
            self.frames.pop();
            self.t.place(next);
            if self.t.is_live() {
                let again = self.another(index, to, step, signed, less);
                self.t.bra_if(again, true, body);
            }
        }
        self.t.place(done);
        if self.t.is_live() {
            self.t.mov_all(&results, &carried);
        }
        self.t.place(end);
    }

    /// Steps the index; whether there is another iteration. The index must not run past the end of its type, where the comparison would begin anew.
    fn another(&mut self, index: Operand, to: Operand, step: u32, signed: bool, less: &str) -> Operand {
        let most = if signed { i64::from(i32::MAX) } else { i64::from(u32::MAX) };
        let known = to.constant().map(|t| if signed { i64::from(t as i32) } else { t as i64 });
        let next = self.t.make(Class::B32, "add.u32", &[index, imm(step)]);
        let again = if step == 1 || known.is_some_and(|t| t <= most - i64::from(step)) {
            self.t.make(Class::Pred, less, &[next, to])
        } else {
            let left = self.t.make(Class::B32, "sub.u32", &[to, index]);
            self.t.make(Class::Pred, "setp.gt.u32", &[left, imm(step)])
        };
        self.t.mov(index, next);
        again
    }
}
