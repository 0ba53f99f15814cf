//! Removes loops that run once. A loop that is never continued becomes straight code: its breaks become the results of branches, and what
//! follows an `if` one of whose arms breaks moves into the other arm. An early `return` from a kernel function looks like this.
//!
//! ```text
//! loop { if c { break a }  x; break b }      ->      if c { yield a } else { x; yield b }
//! ```
//!
//! Cost: linear, plus the breaks times the ops around them.

use super::rewrite::{Rewrite, Rule};
use crate::hash::{Map, Set};
use crate::ir::{Kernel, OpId, OpKind, RegionId, Ty, Value};
use crate::verify::MAX_DEPTH;

struct SingleTripLoops {
    continued: Vec<bool>,
    /// Which ops contain a `break` of which loop.
    breaks: Set<(OpId, RegionId)>,
}

impl SingleTripLoops {
    fn survey(&mut self, k: &Kernel, r: RegionId, around: &mut Vec<OpId>, loops: &mut Map<RegionId, usize>) {
        for &op in k.region_ops(r) {
            match k.kind(op) {
                OpKind::Continue(target) => self.continued[target.index()] = true,
                OpKind::Break(target) => {
                    if let Some(&depth) = loops.get(&target) {
                        self.breaks.extend(around[depth..].iter().map(|&o| (o, target)));
                    }
                }
                _ => {}
            }
            around.push(op);
            for &inner in k.regions(op) {
                if k.kind(op) == OpKind::Loop {
                    loops.insert(inner, around.len());
                }
                self.survey(k, inner, around, loops);
            }
            around.pop();
        }
    }

    /// Whether the breaks of this loop can be results, in regions that do not nest too deep. `level` is how deep these ops would stand;
    /// the answer is how deep what stands after them would.
    fn fits(&self, k: &Kernel, ops: &[OpId], target: RegionId, level: usize) -> Option<usize> {
        if level > MAX_DEPTH / 2 {
            return None;
        }
        let mut level = level;
        for &op in ops {
            if !self.breaks.contains(&(op, target)) {
                continue;
            }
            let branch = matches!(k.kind(op), OpKind::If | OpKind::Switch(_));
            let goes_on = |r: &RegionId| k.terminator(*r).is_some_and(|t| k.kind(t) == OpKind::Yield);
            if !branch || k.regions(op).iter().filter(|r| goes_on(r)).count() > 1 {
                return None;
            }
            // What stands after the branch goes into the arm that goes on, after what stands there.
            let mut next = level;
            for r in k.regions(op) {
                let end = self.fits(k, k.region_ops(*r), target, level + 1)?;
                next = if goes_on(r) { end } else { next };
            }
            level = next;
            if level > MAX_DEPTH / 2 {
                return None;
            }
        }
        Some(level)
    }

    /// Writes ops up to where they break the loop, and gives what it breaks with; nothing if they leave another way. After a `yield`
    /// come the ops after the branch that it ends, the innermost branch last.
    fn write<'a>(
        &mut self,
        rw: &mut Rewrite<'a>,
        ops: &'a [OpId],
        target: RegionId,
        types: &[Ty],
        continuations: &mut Vec<(OpId, &'a [OpId])>,
    ) -> Option<Vec<Value>> {
        let old = rw.old;
        for (i, &op) in ops.iter().enumerate() {
            if rw.asm.ended() {
                return None;
            }
            match old.kind(op) {
                OpKind::Break(r) if r == target => return Some(rw.args(op)),
                OpKind::Yield => {
                    let (branch, rest) = continuations.pop()?;
                    for (result, &v) in old.results(branch).zip(old.args(op)) {
                        rw.set(result, rw.get(v));
                    }
                    let given = self.write(rw, rest, target, types, continuations);
                    continuations.push((branch, rest));
                    return given;
                }
                OpKind::If | OpKind::Switch(_) if self.breaks.contains(&(op, target)) => {
                    let args = rw.args(op);
                    continuations.push((op, &ops[i + 1..]));
                    let mut regions = Vec::new();
                    for &r in old.regions(op) {
                        rw.asm.open(&[]);
                        if let Some(values) = self.write(rw, old.region_ops(r), target, types, continuations) {
                            rw.asm.push(OpKind::Yield, &values, &[]);
                        }
                        regions.push(rw.asm.close());
                    }
                    continuations.pop();
                    let kind = rw.kind(op);
                    rw.asm.stands_for(old, op);
                    let new = rw.asm.push_structure(kind, &args, types, &regions);
                    if !rw.asm.falls_through(new) {
                        rw.asm.push(OpKind::Unreachable, &[], &[]);
                        return None;
                    }
                    return Some(rw.asm.kernel.results(new).collect());
                }
                _ => {
                    rw.asm.stands_for(old, op);
                    self.op(rw, op);
                }
            }
        }
        None
    }
}

impl Rule for SingleTripLoops {
    fn op(&mut self, rw: &mut Rewrite<'_>, op: OpId) {
        let old = rw.old;
        let (OpKind::Loop, &[body]) = (old.kind(op), old.regions(op)) else { return rw.copy(self, op) };
        let once = !self.continued[body.index()];
        if !once || self.fits(old, old.region_ops(body), body, rw.asm.depth()).is_none() {
            return rw.copy(self, op);
        }
        for (inner, v) in old.region_args(body).zip(rw.args(op)) {
            rw.set(inner, v);
        }
        let types = rw.result_types(op);
        if let Some(values) = self.write(rw, old.region_ops(body), body, &types, &mut Vec::new()) {
            for (result, v) in old.results(op).zip(values) {
                rw.set(result, v);
            }
        }
    }
}

pub(super) fn run(k: &Kernel) -> Option<Kernel> {
    let mut once = SingleTripLoops { continued: vec![false; k.region_count()], breaks: Set::default() };
    let mut loops = Map::default();
    once.survey(k, k.body(), &mut Vec::new(), &mut loops);
    if loops.keys().all(|r| once.continued[r.index()]) {
        return None;
    }
    Some(Rewrite::run(k, &mut once))
}
