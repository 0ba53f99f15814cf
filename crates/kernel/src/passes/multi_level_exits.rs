//! Lowers `break` and `continue` of outer loops, for formats in which only the innermost loop can be left: the inner loop ends with the number of
//! the exit and the values that go with it, and a branch after the loop takes that exit. Also a `for` whose index might overflow its
//! type becomes a `loop` that counts iterations. Cost: linear, plus the exits times the loops that they leave.

use crate::hash::Map;

use super::rewrite::{Rewrite, Rule};
use crate::eval;
use crate::ir::{BinaryOp, Compare, Kernel, OpId, OpKind, RegionId, Scalar, Ty, Value};

/// An exit from a loop to another around it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Exit {
    breaks: bool,
    target: RegionId,
}

struct Exits {
    /// The exits that lead through each loop, without those that end there.
    through: Map<RegionId, Vec<Exit>>,
    owner: Map<RegionId, OpId>,
    /// The loops around, innermost last, and the counter of each that was a `for`.
    around: Vec<RegionId>,
    counters: Map<RegionId, Value>,
    broken: Vec<bool>,
}

fn survey(k: &Kernel, r: RegionId, loops: &mut Vec<RegionId>, e: &mut Exits) {
    for &op in k.region_ops(r) {
        let exit = match k.kind(op) {
            OpKind::Break(target) => Some(Exit { breaks: true, target }),
            OpKind::Continue(target) => Some(Exit { breaks: false, target }),
            _ => None,
        };
        if let Some(exit) = exit {
            for &l in loops.iter().rev().take_while(|&&l| l != exit.target) {
                let exits = e.through.entry(l).or_default();
                if !exits.contains(&exit) {
                    exits.push(exit);
                }
            }
        }
        let repeats = matches!(k.kind(op), OpKind::Loop | OpKind::For(_));
        for &inner in k.regions(op) {
            e.owner.insert(inner, op);
            if repeats {
                loops.push(inner);
            }
            survey(k, inner, loops, e);
            if repeats {
                loops.pop();
            }
        }
    }
}

impl Exits {
    /// The types of the values that go with an exit.
    fn payload(&self, k: &Kernel, exit: Exit) -> Vec<Ty> {
        let Some(&op) = self.owner.get(&exit.target) else { return Vec::new() };
        if exit.breaks {
            return k.results(op).map(|v| k.ty(v)).collect();
        }
        let index = usize::from(matches!(k.kind(op), OpKind::For(_)));
        k.region_args(exit.target).skip(index).map(|v| k.ty(v)).collect()
    }

    fn exits(&self, r: RegionId) -> Vec<Exit> {
        self.through.get(&r).cloned().unwrap_or_default()
    }

    /// Leaves by an exit, with these new values.
    fn leave(&mut self, rw: &mut Rewrite<'_>, exit: Exit, mut values: Vec<Value>) {
        let Some(&here) = self.around.last() else { return };
        let exits = self.exits(here);
        if here == exit.target && !exit.breaks {
            if let Some(&counter) = self.counters.get(&here) {
                let one = rw.asm.constant(Scalar::U32, 1);
                let next = rw.asm.value(OpKind::Binary(BinaryOp::Add), &[counter, one], Ty::scalar(Scalar::U32));
                values.insert(0, next);
            }
            let kind = OpKind::Continue(rw.target(here));
            rw.asm.push(kind, &values, &[]);
            return;
        }
        // The results of the loop, the number of the exit, and the values of each exit.
        let own = Exit { breaks: true, target: here };
        let mut all = if exit == own { values.clone() } else { self.zeros(rw, own) };
        if !exits.is_empty() {
            let number = exits.iter().position(|&w| w == exit).map_or(0, |i| i as u64 + 1);
            all.push(rw.asm.constant(Scalar::U32, number));
            for &w in &exits {
                let more = if w == exit { values.clone() } else { self.zeros(rw, w) };
                all.extend(more);
            }
        }
        let kind = OpKind::Break(rw.target(here));
        rw.asm.push(kind, &all, &[]);
    }

    fn zeros(&self, rw: &mut Rewrite<'_>, exit: Exit) -> Vec<Value> {
        self.payload(rw.old, exit).into_iter().map(|t| rw.asm.zero(t)).collect()
    }

    /// Whether the index of a `for` stays inside of its type when it is stepped past the end.
    fn safe(rw: &Rewrite<'_>, op: OpId, step: u32) -> bool {
        let to = rw.get(rw.old.args(op)[1]);
        let s = rw.old.ty(rw.old.args(op)[0]).as_scalar().unwrap_or(Scalar::U32);
        let most = if s.is_signed() { i128::from(i32::MAX) } else { i128::from(u32::MAX) };
        step == 1 || rw.asm.as_const(to).is_some_and(|c| eval::to_int(s, c) + i128::from(step) <= most)
    }

    /// Opens the body of a loop that stands for a `for` and counts its iterations; gives what the loop carries first.
    fn open_counted(&mut self, rw: &mut Rewrite<'_>, op: OpId, step: u32, args: &[Value]) -> Vec<Value> {
        let old = rw.old;
        let r = old.regions(op)[0];
        let u32_ty = Ty::scalar(Scalar::U32);
        // trip_count = if from < to { (to - from - 1) / step + 1 } else { 0 }, all modulo 2^32.
        let s = old.ty(old.args(op)[0]).as_scalar().unwrap_or(Scalar::U32);
        let bin = |rw: &mut Rewrite<'_>, f, a, b| rw.asm.value(OpKind::Binary(f), &[a, b], u32_ty);
        let from = rw.asm.value(OpKind::Convert, &[args[0]], u32_ty);
        let to = rw.asm.value(OpKind::Convert, &[args[1]], u32_ty);
        let (one, none) = (rw.asm.constant(Scalar::U32, 1), rw.asm.constant(Scalar::U32, 0));
        let step_value = rw.asm.constant(Scalar::U32, step.into());
        let distance = bin(rw, BinaryOp::Sub, to, from);
        let before = bin(rw, BinaryOp::Sub, distance, one);
        let steps = bin(rw, BinaryOp::Div, before, step_value);
        let some = bin(rw, BinaryOp::Add, steps, one);
        let any = rw.asm.value(OpKind::Compare(Compare::Lt), &args[..2], Ty::scalar(Scalar::Bool));
        let trip_count = rw.asm.value(OpKind::Select, &[any, some, none], u32_ty);
        let mut inner: Vec<Ty> = old.region_args(r).map(|v| old.ty(v)).collect();
        inner[0] = u32_ty;
        let new = rw.asm.open(&inner);
        rw.set_target(r, new);
        let values: Vec<Value> = rw.asm.kernel.region_args(new).collect();
        old.region_args(r).zip(&values).skip(1).for_each(|(a, &b)| rw.set(a, b));
        self.around.push(r);
        self.counters.insert(r, values[0]);
        let done = rw.asm.value(OpKind::Compare(Compare::Ge), &[values[0], trip_count], Ty::scalar(Scalar::Bool));
        rw.asm.open(&[]);
        self.leave(rw, Exit { breaks: true, target: r }, values[1..].to_vec());
        let over = rw.asm.close();
        rw.asm.open(&[]);
        rw.asm.push(OpKind::Yield, &[], &[]);
        let on = rw.asm.close();
        rw.asm.push_structure(OpKind::If, &[done], &[], &[over, on]);
        let offset = bin(rw, BinaryOp::Mul, values[0], step_value);
        let place = bin(rw, BinaryOp::Add, from, offset);
        let index = rw.asm.value(OpKind::Convert, &[place], Ty::scalar(s));
        old.region_args(r).take(1).for_each(|a| rw.set(a, index));
        std::iter::once(none).chain(args[2..].iter().copied()).collect()
    }

    /// Takes the exit by which a loop was left: the first result is its number, the others are the values of all exits. A loop that never ends by
    /// itself was left by one of them.
    fn take_exit(&mut self, rw: &mut Rewrite<'_>, op: OpId, exits: &[Exit], results: &[Value]) {
        let old = rw.old;
        let mut at = 1;
        let goes_on = old.falls_through(op, &self.broken);
        for (i, &exit) in exits.iter().enumerate() {
            let n = self.payload(old, exit).len();
            let values = results[at..at + n].to_vec();
            at += n;
            if !goes_on && i + 1 == exits.len() {
                return self.leave(rw, exit, values);
            }
            let number = rw.asm.constant(Scalar::U32, i as u64 + 1);
            let taken = rw.asm.value(OpKind::Compare(Compare::Eq), &[results[0], number], Ty::scalar(Scalar::Bool));
            rw.asm.open(&[]);
            self.leave(rw, exit, values);
            let then = rw.asm.close();
            rw.asm.open(&[]);
            rw.asm.push(OpKind::Yield, &[], &[]);
            let other = rw.asm.close();
            rw.asm.push_structure(OpKind::If, &[taken], &[], &[then, other]);
        }
    }

    fn run_loop(&mut self, rw: &mut Rewrite<'_>, op: OpId) {
        let old = rw.old;
        let r = old.regions(op)[0];
        let exits = self.exits(r);
        let args = rw.args(op);
        let mut types = rw.result_types(op);
        let plain = types.len();
        if !exits.is_empty() {
            types.push(Ty::scalar(Scalar::U32));
            exits.iter().for_each(|&w| types.extend(self.payload(old, w)));
        }
        let (kind, new_args) = match old.kind(op) {
            OpKind::For(step) if !exits.is_empty() || !Self::safe(rw, op, step) => {
                (OpKind::Loop, self.open_counted(rw, op, step, &args))
            }
            kind => {
                rw.open(r);
                self.around.push(r);
                (kind, args)
            }
        };
        rw.region(self, r);
        self.around.pop();
        let region = rw.asm.close();
        rw.asm.stands_for(old, op);
        let new = rw.asm.push_structure(kind, &new_args, &types, &[region]);
        let results: Vec<Value> = rw.asm.kernel.results(new).collect();
        old.results(op).zip(&results).for_each(|(a, &b)| rw.set(a, b));
        self.take_exit(rw, op, &exits, &results[plain..]);
        if !rw.asm.falls_through(new) && !rw.asm.ended() {
            rw.asm.push(OpKind::Unreachable, &[], &[]);
        }
    }
}

impl Rule for Exits {
    fn op(&mut self, rw: &mut Rewrite<'_>, op: OpId) {
        match rw.old.kind(op) {
            OpKind::Loop | OpKind::For(_) => self.run_loop(rw, op),
            OpKind::Break(target) => {
                let values = rw.args(op);
                self.leave(rw, Exit { breaks: true, target }, values);
            }
            OpKind::Continue(target) => {
                let values = rw.args(op);
                self.leave(rw, Exit { breaks: false, target }, values);
            }
            _ => rw.copy(self, op),
        }
    }
}

pub(super) fn run(k: &Kernel) -> Option<Kernel> {
    if !k.kinds().any(|kind| matches!(kind, OpKind::Loop | OpKind::For(_))) {
        return None;
    }
    let mut e = Exits {
        through: Map::default(),
        owner: Map::default(),
        around: Vec::new(),
        counters: Map::default(),
        broken: k.broken(),
    };
    survey(k, k.body(), &mut Vec::new(), &mut e);
    Some(Rewrite::run(k, &mut e))
}
