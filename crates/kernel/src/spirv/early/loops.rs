//! Loops. What one carries is assumed to stay and proven at the end of the turn; where that fails, the loop is walked again without the
//! assumption.

use super::class::Class;
use super::look::{Def, Exit, Frame, Look, NONE};
use crate::ir::{Binary, OpId, OpKind, RegionId, Ty, VarId};
use crate::passes::MOST_UNROLLED;

/// Times that a loop is walked.
const MOST_TURNS: usize = 3;
/// Ops of a loop with constant ends, for it to be worth a look.
const LARGE: usize = 4096;

/// What stands in a loop.
struct Body {
    ops: usize,
    vars: Vec<VarId>,
    breaks: usize,
    continues: usize,
}

/// What a loop carries, by place: the value before it, and what it is in the loop: a join of its own, or what it was, if it never changes.
pub(super) struct Carried {
    init: u32,
    pub(super) value: u32,
    pub(super) joins: bool,
}

/// A loop that was walked, and how much there was before it.
pub(super) struct Walked<'a> {
    pub(super) region: RegionId,
    pub(super) frame: &'a Frame,
    pub(super) first_join: u32,
    pub(super) happened: usize,
    pub(super) private: usize,
    pub(super) ops: usize,
}

impl Look<'_> {
    /// What stands in a loop, however deep.
    fn body(&mut self, r: RegionId) -> Body {
        let k = self.k;
        self.meetings += 1;
        let vars = self.spare.vars.pop().unwrap_or_default();
        let mut body = Body { ops: 0, vars, breaks: 0, continues: 0 };
        let mut open = std::mem::take(&mut self.spare.regions);
        open.push(r);
        while let Some(inner) = open.pop() {
            body.ops += k.region_ops(inner).len();
            for &op in k.region_ops(inner) {
                let kind = k.kind(op);
                self.foresee(op, kind);
                match kind {
                    OpKind::Set(v) => match k.args(op).first().and_then(|&x| self.foresee_set(v, x)) {
                        Some(places) => {
                            places.iter().for_each(|&(place, _)| self.changes(&mut body, place));
                            self.foreseen(places);
                        }
                        None => self.changes(&mut body, v),
                    },
                    OpKind::Break(t) if t == r => body.breaks += 1,
                    OpKind::Continue(t) if t == r => body.continues += 1,
                    kind if kind.is_structure() => open.extend_from_slice(k.regions(op)),
                    _ => {}
                }
            }
        }
        self.spare.regions = open;
        body
    }

    fn changes(&mut self, body: &mut Body, v: VarId) {
        let first = std::mem::replace(&mut self.met[v.index()], self.meetings) != self.meetings;
        if first && self.vars[v.index()] != NONE {
            body.vars.push(v);
        }
    }

    pub(super) fn counted_loop(&mut self, op: OpId) -> bool {
        let k = self.k;
        let (&[from, to, ..], &[r], OpKind::For(step)) = (k.args(op), k.regions(op), k.kind(op)) else {
            return self.skim(op);
        };
        let ends = [self.class(from), self.class(to)];
        let turns = self.turns_between(from, to, step);
        if turns == Some(0) {
            k.results(op).zip(&k.args(op)[2..]).for_each(|(v, &x)| self.same(v, self.root(x)));
            return true;
        }
        let mut body = self.body(r);
        // What may be written out.
        let few = turns.filter(|&turns| turns <= MOST_UNROLLED);
        let constant = few.is_some() && self.counted && body.ops > LARGE;
        let enough = few.filter(|_| !constant).map(|turns| self.enough(turns));
        if !ends.iter().all(|c| c.is_known()) || enough.is_some_and(|enough| body.ops < enough) {
            return self.skim(op);
        }
        self.doubts += usize::from(ends.iter().any(|c| c.has(Class::ASSUMED)));
        let outside = self.inside;
        if constant {
            self.home.resize(k.op_count(), 0);
            self.inside = self.around.len() as u32;
            self.around.push(outside);
        }
        let walked = self.turns(op, r, &mut body, 1, |look, walked, carried| match enough {
            Some(enough) => look.stays_a_loop(walked, carried, enough),
            None => Some(true),
        });
        self.inside = outside;
        let Some((carried, frame)) = walked else { return self.skim(op) };
        let broken = body.breaks > 0;
        let sure = !broken || !frame.more_breaks && frame.breaks.len() == body.breaks;
        let result = |look: &mut Self, i: usize, ty: Ty| {
            // The results of a loop that nothing breaks are what it carries.
            let value = carried[i].value;
            if !broken || !sure {
                return if sure { value } else { NONE };
            }
            let values: Vec<u32> = std::iter::once(value).chain(frame.breaks.iter().map(|b| b.value(i))).collect();
            look.one_of(op, &values, ty)
        };
        self.give(op, &frame.vars, result);
        self.forget(frame);
        true
    }

    fn forget(&mut self, frame: Frame) {
        let mut vars = self.close_frame(frame);
        vars.clear();
        self.spare.vars.push(vars);
    }

    /// The results of a loop, and the variables that it assigns.
    fn give(&mut self, op: OpId, vars: &[VarId], mut result: impl FnMut(&mut Self, usize, Ty) -> u32) {
        let k = self.k;
        let explicit = k.results(op).len();
        for (i, v) in k.results(op).enumerate() {
            let to = result(self, i, k.ty(v));
            self.same(v, to);
        }
        for (i, &v) in vars.iter().enumerate() {
            let to = result(self, explicit + i, self.types[v.index()]);
            self.assign(v, to);
        }
    }

    /// Walks the body of a loop until what it is assumed to carry is proven; `index` is whether it counts. Nothing, if that cannot be, or if `stays`
    /// says so; where that says no, it is walked again.
    fn turns(
        &mut self,
        op: OpId,
        r: RegionId,
        body: &mut Body,
        index: usize,
        stays: impl Fn(&mut Self, &Walked<'_>, &mut [Carried]) -> Option<bool>,
    ) -> Option<(Vec<Carried>, Frame)> {
        let k = self.k;
        let explicit: Vec<u32> = k.args(op).iter().skip(2 * index).map(|&v| self.root(v)).collect();
        let types =
            k.region_args(r).skip(index).map(|v| k.ty(v)).chain(body.vars.iter().map(|v| self.types[v.index()]));
        let types: Vec<Ty> = types.collect();
        let inits = explicit.iter().copied().chain(body.vars.iter().map(|v| self.vars[v.index()]));
        let inits: Vec<u32> = inits.collect();
        let first_join = self.value_count() as u32;
        let mut carried = Vec::new();
        for (i, (&init, &ty)) in inits.iter().zip(&types).enumerate() {
            let class = self.class_at(init);
            let joins = class.is_known() && self.has_id(ty);
            let value = if joins {
                let own = Class::source(&[0xF1, op.0.into(), i as u64]);
                let own = if class.stays() { own } else { own.with(Class::ASSUMED) };
                self.new_join(op, &[init, NONE, NONE], own)
            } else {
                NONE
            };
            carried.push(Carried { init, value, joins });
        }
        for _ in 0..MOST_TURNS {
            let (happened, private, mark) = (self.happens.len(), self.private.len(), self.undo.len());
            self.depth += 1;
            self.open_frame(r, body.vars.clone());
            if let (1, Some(i)) = (index, k.region_args(r).next()) {
                self.classes[i.index()] = Class::source(&[0xF0, op.0.into()]);
            }
            for (arg, c) in k.region_args(r).skip(index).zip(&carried) {
                self.same(arg, c.value);
            }
            for (&v, c) in body.vars.iter().zip(&carried[explicit.len()..]) {
                self.assign(v, c.value);
            }
            let doubts = self.doubts;
            self.region(r);
            self.take_back(mark, |_, _| ());
            self.depth -= 1;
            let frame = self.frames.pop()?;
            let mut proven = true;
            // Whether there is a second turn must not depend on what is assumed.
            let doubted = self.doubts > doubts;
            // A loop that is needed needs what ends it.
            let end = frame.breaks.first().and_then(|b| b.branch).map_or(NONE, |(condition, _)| condition);
            for (i, c) in carried.iter_mut().enumerate().filter(|(_, c)| c.joins) {
                let next = frame.continues.first().map_or(NONE, |e| e.value(i));
                if let Some(join) = self.join(c.value) {
                    self.inputs[join.first as usize + 1] = next;
                    self.inputs[join.first as usize + 2] = end;
                }
                let varies = frame.continues.iter().any(|e| self.varies(c, e.value(i)));
                let assumed = self.class_at(c.value).has(Class::ASSUMED);
                if !varies || assumed && doubted {
                    // What comes to itself in every turn is what it was.
                    let continues = &frame.continues;
                    let same = continues.len() == body.continues && continues.iter().all(|e| e.value(i) == c.value);
                    *c = Carried { init: c.init, value: if same { c.init } else { NONE }, joins: false };
                    proven = false;
                }
            }
            let walked = Walked { region: r, frame: &frame, first_join, happened, private, ops: body.ops };
            let stays = if proven { stays(self, &walked, &mut carried) } else { Some(false) };
            if stays == Some(true) {
                return Some((carried, frame));
            }
            self.happens.truncate(happened);
            self.private.truncate(private);
            self.patience = self.patience.saturating_sub(body.ops);
            if stays.is_none() || self.patience == 0 {
                return None;
            }
        }
        None
    }

    /// Whether what a loop carries is surely another value in a later turn, so that no pass takes what it was before for it.
    fn varies(&self, c: &Carried, next: u32) -> bool {
        let (class, own) = (self.class_at(next), self.class_at(c.value));
        if !class.is_known() || class == own || class == self.class_at(c.init) {
            return false;
        }
        if class.is_constant() || !own.has(Class::ASSUMED) {
            return true;
        }
        // A whole number that is counted up or down.
        let counts = || {
            let Def::Op(op) = self.def(next) else { return false };
            let (OpKind::Binary(Binary::Add | Binary::Sub), &[a, b]) = (self.k.kind(op), self.k.args(op)) else {
                return false;
            };
            let s = self.k.ty(a).as_scalar().filter(|s| s.is_int());
            let step = self.class(b);
            self.root(a) == c.value && step.is_constant() && s.is_some_and(|s| step != Class::constant(s, 0))
        };
        !class.has(Class::ASSUMED) || counts()
    }

    pub(super) fn open_loop(&mut self, op: OpId) -> bool {
        let k = self.k;
        let &[r] = k.regions(op) else { return self.skim(op) };
        let mut body = self.body(r);
        if body.continues == 0 {
            return self.once(op, r, body);
        }
        // What may never be continued may be no loop.
        let is_continued = |walked: &Walked<'_>| (!walked.frame.continues.is_empty()).then_some(true);
        let Some((_, frame)) = self.turns(op, r, &mut body, 0, |_, walked, _| is_continued(walked)) else {
            return self.skim(op);
        };
        let sure = !frame.more_breaks && frame.breaks.len() == body.breaks;
        let result = |look: &mut Self, i: usize, ty: Ty| {
            let values: Vec<u32> = frame.breaks.iter().map(|b| b.value(i)).collect();
            if sure { look.one_of(op, &values, ty) } else { NONE }
        };
        self.give(op, &frame.vars, result);
        let goes_on = !frame.breaks.is_empty();
        self.forget(frame);
        goes_on
    }

    /// A loop that runs once: what an early return of a function is. Its breaks become the ends of branches.
    fn once(&mut self, op: OpId, r: RegionId, body: Body) -> bool {
        let k = self.k;
        for (arg, &init) in k.region_args(r).zip(k.args(op)) {
            self.same(arg, self.root(init));
        }
        let mark = self.undo.len();
        self.depth += 1;
        self.open_frame(r, body.vars);
        self.region(r);
        self.take_back(mark, |_, _| ());
        self.depth -= 1;
        let Some(frame) = self.frames.pop() else { return false };
        let sure = !frame.more_breaks
            && frame.breaks.len() == body.breaks
            && frame.breaks.iter().all(|b| b.depth == 0 || b.depth == 1 && b.branch.is_some());
        let result = |look: &mut Self, i: usize, ty: Ty| {
            if !sure { NONE } else { look.first_of(op, &frame.breaks, i, ty) }
        };
        self.give(op, &frame.vars, result);
        let goes_on = !frame.breaks.is_empty();
        self.forget(frame);
        goes_on
    }

    /// The value of the first of these breaks that is reached.
    fn first_of(&mut self, op: OpId, breaks: &[Exit], i: usize, ty: Ty) -> u32 {
        let Some((last, before)) = breaks.split_last() else { return NONE };
        let mut class = self.class_at(last.value(i));
        for b in before.iter().rev() {
            let own = self.class_at(b.value(i));
            class = match b.branch {
                Some((c, 0)) => self.choice(ty, self.class_at(c), own, class),
                Some((c, _)) => self.choice(ty, self.class_at(c), class, own),
                None => Class::UNSURE,
            };
        }
        let values: Vec<u32> = breaks.iter().map(|b| b.value(i)).collect();
        match values.iter().find(|&&v| self.class_at(v) == class) {
            _ if !class.is_known() => NONE,
            Some(&v) => v,
            None => self.new_join(op, &values, class),
        }
    }
}
