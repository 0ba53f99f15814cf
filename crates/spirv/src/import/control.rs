//! Blocks as regions. Merge instructions say where a construct ends, so a function is walked once: what a branch leads to is the next
//! block, or the end of a construct that is open, or the function is refused.
//!
//! Values that a join chooses (`OpPhi`) and values that are used outside of the region they are made in become variables, which SSA
//! construction makes values again. A construct that is left from further inside becomes a loop that runs once, which the pass `single_trip_loops`
//! takes away where it can. What was not foreseen is noted in the [`Plan`], and the import begins again.

use rspirv::spirv::Op as S;

use super::body::{Import, Refusal, Stop};
use super::module::{At, Block};
use impasto_kernel::MAX_DEPTH;
use impasto_kernel::hash::{Map, Set};
use impasto_kernel::ir::{OpKind, RegionId, Scalar, Ty, Value, VarId};

/// What an import found out that must be known before it begins.
#[derive(Default)]
pub(super) struct Plan {
    /// Blocks whose selection is left from further inside.
    pub(super) wrapped: Set<u32>,
    /// Functions that return from further inside.
    pub(super) returning: Set<u32>,
    /// Values that are used outside of their region.
    pub(super) demoted: Set<u32>,
    /// Whether anything was added, so that the import must begin again.
    pub(super) grew: bool,
}

/// A continue block of this many instructions is written wherever the loop is continued.
const SMALL: usize = 8;

/// A construct that is open: where branches out of it lead.
pub(super) enum Frame {
    /// An `if`: its header and where its arms meet.
    Choice { header: u32, merge: u32 },
    /// A selection in a loop that runs once; the switch cases that others fall into, with the variable that says so and the loop to leave.
    Wrapped { merge: u32, region: RegionId, falls: Map<u32, VarId>, inner: RegionId },
    /// A loop; the loop that runs once around its body, if its continue construct stands after that.
    Loop { header: u32, merge: u32, next: u32, region: RegionId, body: Option<RegionId>, continuing: bool },
    /// A function that is imported in place of its call: the loop that runs once, and the variable of what it returns.
    Call { function: u32, region: Option<RegionId>, result: Option<VarId>, depth: usize },
}

/// What becomes of a branch.
enum Flow {
    /// It ends this region.
    Ended,
    /// It leads on to a block.
    Continues,
}

impl<'a> Import<'a> {
    fn block(&self, label: u32) -> Result<&'a Block, Stop> {
        let at = self.block_of.get(&label).copied();
        let Some((f, b)) = at else { return Err(self.refuse(self.here, "a branch leads to another function")) };
        Ok(&self.s.functions[f].blocks[b])
    }

    pub(super) fn refuse(&self, at: At, reason: impl Into<String>) -> Stop {
        Stop::Refused(Refusal { word: at as usize, reason: reason.into() })
    }

    /// The blocks from this one on, until every way has ended.
    pub(super) fn blocks(&mut self, mut label: u32) -> Result<(), Stop> {
        loop {
            let b = self.block(label)?;
            self.steps += 1;
            if !self.visited.insert(label) {
                return Err(self.refuse(
                    b.end,
                    "a block is reached in two ways that no merge joins: the control flow is not structured",
                ));
            }
            if self.asm.depth() >= MAX_DEPTH - 8 {
                return Err(self.refuse(b.end, format!("constructs nest deeper than {}", MAX_DEPTH - 8)));
            }
            self.phis(b)?;
            let merge = b.merge.map(|at| (self.s.op(at), self.s.operands(at), at));
            if let Some((S::LoopMerge, w, at)) = merge {
                match self.run_loop(b, w[0], w[1], at)? {
                    Flow::Ended => return Ok(()),
                    Flow::Continues => label = w[0],
                }
                continue;
            }
            self.body(b)?;
            match self.end(b, merge.map(|(_, w, _)| w[0]))? {
                Some(next) => label = next,
                None => return Ok(()),
            }
        }
    }

    fn body(&mut self, b: &Block) -> Result<(), Stop> {
        for &at in &b.body {
            self.here = at;
            self.instruction(at)?;
        }
        self.here = b.end;
        Ok(())
    }

    /// The terminator of a block; the block that follows, if one does. `merge` is where its selection ends.
    fn end(&mut self, b: &Block, merge: Option<u32>) -> Result<Option<u32>, Stop> {
        let w = self.s.operands(b.end);
        match (self.s.op(b.end), merge) {
            (S::Branch, _) => Ok(match self.branch(b.label, w[0])? {
                Flow::Ended => None,
                Flow::Continues => Some(w[0]),
            }),
            (S::BranchConditional, _) if w[1] == w[2] => Ok(match self.branch(b.label, w[1])? {
                Flow::Ended => None,
                Flow::Continues => Some(w[1]),
            }),
            (S::BranchConditional, Some(merge)) => {
                let c = self.value(w[0])?;
                let wrapped = self.plan.wrapped.contains(&b.label);
                if wrapped {
                    let region = self.open();
                    self.frames.push(Frame::Wrapped { merge, region, falls: Map::default(), inner: region });
                } else {
                    self.frames.push(Frame::Choice { header: b.label, merge });
                }
                let arms = [self.arm(b.label, w[1])?, self.arm(b.label, w[2])?];
                self.frames.pop();
                self.structure(OpKind::If, &[c], &arms);
                if wrapped {
                    self.close_once();
                }
                Ok((!self.asm.ended()).then_some(merge))
            }
            (S::BranchConditional, None) => self.exits(b, w),
            (S::Switch, Some(merge)) => self.switch(b, w, merge),
            (S::Switch, None) => Err(self.refuse(b.end, "a switch has no merge")),
            (S::Return, _) => self.leave(b, None).map(|()| None),
            (S::ReturnValue, _) => self.leave(b, Some(w[0])).map(|()| None),
            (S::Unreachable, _) => {
                self.asm.push(OpKind::Unreachable, &[], &[]);
                Ok(None)
            }
            (op, _) => Err(self.refuse(b.end, format!("{op:?} does not belong into a compute shader"))),
        }
    }

    /// A conditional branch of which one way at least leaves a construct.
    fn exits(&mut self, b: &Block, w: &[u32]) -> Result<Option<u32>, Stop> {
        let c = self.value(w[0])?;
        let leaves = [self.is_exit(w[1]), self.is_exit(w[2])];
        let next = match leaves {
            [true, true] => None,
            [true, false] => Some(w[2]),
            [false, true] => Some(w[1]),
            [false, false] => {
                return Err(self.refuse(b.end, "a conditional branch has no merge, and neither way leaves a construct"));
            }
        };
        // Not the end of what stands around: a branch there is one from further inside.
        self.frames.push(Frame::Choice { header: b.label, merge: 0 });
        let mut arms = Vec::new();
        for (i, &to) in w[1..3].iter().enumerate() {
            if leaves[i] {
                arms.push(self.arm(b.label, to)?);
            } else {
                self.open();
                self.asm.push(OpKind::Yield, &[], &[]);
                arms.push(self.close());
            }
        }
        self.frames.pop();
        self.structure(OpKind::If, &[c], &arms);
        Ok(next)
    }

    fn is_exit(&self, to: u32) -> bool {
        for frame in self.frames.iter().rev() {
            match frame {
                Frame::Choice { merge, .. } if *merge == to => return true,
                Frame::Wrapped { merge, falls, .. } if *merge == to || falls.contains_key(&to) => return true,
                Frame::Loop { header, merge, next, .. } if [*header, *merge, *next].contains(&to) => return true,
                Frame::Call { .. } => return false,
                _ => {}
            }
        }
        false
    }

    /// One way of a selection, as a region.
    fn arm(&mut self, from: u32, to: u32) -> Result<RegionId, Stop> {
        self.open();
        if let Flow::Continues = self.branch(from, to)? {
            self.blocks(to)?;
        }
        Ok(self.close())
    }

    /// A branch: it ends the region if it leaves a construct.
    fn branch(&mut self, from: u32, to: u32) -> Result<Flow, Stop> {
        let top = self.frames.len().saturating_sub(1);
        for i in (0..self.frames.len()).rev() {
            match &self.frames[i] {
                &Frame::Choice { header, merge } if merge == to => {
                    self.edge(from, to)?;
                    if i == top {
                        self.asm.push(OpKind::Yield, &[], &[]);
                    } else {
                        self.plan.grew |= self.plan.wrapped.insert(header);
                        self.asm.push(OpKind::Unreachable, &[], &[]);
                    }
                    return Ok(Flow::Ended);
                }
                &Frame::Wrapped { merge, region, .. } if merge == to => {
                    self.edge(from, to)?;
                    self.asm.push(OpKind::Break(region), &[], &[]);
                    return Ok(Flow::Ended);
                }
                Frame::Wrapped { falls, inner, .. } if falls.contains_key(&to) => {
                    let (var, inner) = (falls[&to], *inner);
                    self.edge(from, to)?;
                    let yes = self.asm.constant(Scalar::Bool, 1);
                    self.asm.push(OpKind::Set(var), &[yes], &[]);
                    self.asm.push(OpKind::Break(inner), &[], &[]);
                    return Ok(Flow::Ended);
                }
                &Frame::Loop { header, region, .. } if header == to => {
                    self.edge(from, to)?;
                    self.asm.push(OpKind::Continue(region), &[], &[]);
                    return Ok(Flow::Ended);
                }
                &Frame::Loop { merge, region, .. } if merge == to => {
                    self.edge(from, to)?;
                    self.asm.push(OpKind::Break(region), &[], &[]);
                    return Ok(Flow::Ended);
                }
                &Frame::Loop { next, body, continuing: false, .. } if next == to => {
                    self.edge(from, to)?;
                    if let Some(body) = body {
                        self.asm.push(OpKind::Break(body), &[], &[]);
                        return Ok(Flow::Ended);
                    }
                    // The constructs that are open here are not left to by what follows.
                    self.frames.push(Frame::Choice { header: 0, merge: 0 });
                    self.continues(i, true);
                    let before = std::mem::take(&mut self.visited);
                    self.blocks(to)?;
                    self.visited.extend(before);
                    self.continues(i, false);
                    self.frames.pop();
                    return Ok(Flow::Ended);
                }
                Frame::Call { .. } => break,
                _ => {}
            }
        }
        self.edge(from, to)?;
        Ok(Flow::Continues)
    }

    /// Says whether the continue construct of a loop that is open is being written.
    fn continues(&mut self, frame: usize, now: bool) {
        if let Frame::Loop { continuing, .. } = &mut self.frames[frame] {
            *continuing = now;
        }
    }

    /// A loop from its header on.
    fn run_loop(&mut self, b: &Block, merge: u32, next: u32, at: At) -> Result<Flow, Stop> {
        let joined = self.preds.get(&next).copied().unwrap_or(0) > 1;
        let small = next == b.label || {
            let c = self.block(next)?;
            c.merge.is_none() && c.body.len() <= SMALL && c.phis.is_empty()
        };
        let region = self.open();
        // Joins of the header have other values in each iteration.
        self.read_phis(b)?;
        let wraps = joined && !small;
        let body = wraps.then(|| self.open());
        self.frames.push(Frame::Loop { header: b.label, merge, next, region, body, continuing: false });
        self.body(b)?;
        // The end of the header is an ordinary branch: the selection that it may be ends where the loop does.
        if let Some(on) = self.end(b, None)? {
            self.blocks(on)?;
        }
        if wraps {
            self.close_once_on();
            if !self.asm.ended() {
                self.continues(self.frames.len() - 1, true);
                self.blocks(next)?;
            }
        }
        self.frames.pop();
        let done = self.close();
        self.here = at;
        let control = self.foreign.loop_control_number(&self.s.operands(at)[2..]);
        self.asm.at_number(control);
        self.structure(OpKind::Loop, &[], &[done]);
        self.asm.at_number(0);
        Ok(if self.asm.ended() { Flow::Ended } else { Flow::Continues })
    }

    fn switch(&mut self, b: &Block, w: &[u32], merge: u32) -> Result<Option<u32>, Stop> {
        let selector = self.value(w[0])?;
        let Some(Scalar::I32 | Scalar::U32 | Scalar::I64 | Scalar::U64) = self.asm.kernel.ty(selector).as_scalar()
        else {
            return Err(self.refuse(b.end, "a switch on integers of 8 or 16 bits"));
        };
        let words = self.s.case_words(w[0]);
        // The blocks of the arms in order of their cases, the default where it comes first.
        let mut cases: Vec<(u64, u32)> = Vec::new();
        for case in w[2..].chunks_exact(words + 1) {
            let bits = case[..words].iter().rev().fold(0u64, |a, &x| a << 32 | u64::from(x));
            cases.push((bits, case[words]));
        }
        let default = w[1];
        let mut arms: Vec<u32> = Vec::new();
        for &(_, label) in &cases {
            if !arms.contains(&label) && label != default {
                arms.push(label);
            }
        }
        arms.push(default);
        let falls = self.falls(&arms, merge)?;
        let region = self.open();
        let inner = if falls.is_empty() { region } else { self.open() };
        let mut vars = Map::default();
        for &label in &falls {
            // Outside of the loops that run once, and false each time.
            let no = self.asm.constant(Scalar::Bool, 0);
            let var = self.variable(Ty::scalar(Scalar::Bool));
            self.asm.push(OpKind::Set(var), &[no], &[]);
            vars.insert(label, var);
        }
        self.frames.push(Frame::Wrapped { merge, region, falls: vars.clone(), inner });
        let mut regions = Vec::new();
        for &label in &arms {
            regions.push(self.arm(b.label, label)?);
        }
        let table: Vec<(u64, u32)> = cases
            .iter()
            .filter(|c| c.1 != default)
            .filter_map(|c| arms.iter().position(|&a| a == c.1).map(|i| (c.0, i as u32)))
            .collect();
        let table = self.asm.case_table(table);
        self.structure(OpKind::Switch(table), &[selector], &regions);
        if !falls.is_empty() {
            self.close_once();
            // The cases that others fall into, each after those that fall.
            for &label in arms.iter().filter(|a| falls.contains(*a)) {
                if self.asm.ended() {
                    break;
                }
                if let Some(Frame::Wrapped { falls, .. }) = self.frames.last_mut() {
                    falls.remove(&label);
                }
                let taken = self.get(vars[&label]);
                self.frames.push(Frame::Choice { header: 0, merge: 0 });
                self.open();
                // What falls on from here sets its variable and goes on after it.
                let once = self.open();
                if let Some(Frame::Wrapped { inner, .. }) = self.frames.iter_mut().rev().nth(1) {
                    *inner = once;
                }
                self.blocks(label)?;
                self.close_once_on();
                if !self.asm.ended() {
                    self.asm.push(OpKind::Yield, &[], &[]);
                }
                let then = self.close();
                self.open();
                self.asm.push(OpKind::Yield, &[], &[]);
                let other = self.close();
                self.frames.pop();
                self.structure(OpKind::If, &[taken], &[then, other]);
            }
        }
        self.frames.pop();
        self.close_once();
        Ok((!self.asm.ended()).then_some(merge))
    }

    /// The arms that another arm falls into: those with a branch to them from elsewhere than the switch.
    fn falls(&self, arms: &[u32], merge: u32) -> Result<Vec<u32>, Stop> {
        let several = |label: &&u32| {
            **label != merge && !self.is_exit(**label) && self.preds.get(*label).copied().unwrap_or(0) > 1
        };
        Ok(arms.iter().filter(several).copied().collect())
    }

    /// The end of a function.
    fn leave(&mut self, b: &Block, value: Option<u32>) -> Result<(), Stop> {
        let frame = self.frames.iter().rev().find_map(|f| match f {
            Frame::Call { function, region, result, depth } => Some((*function, *region, *result, *depth)),
            _ => None,
        });
        let Some((function, region, result, depth)) = frame else {
            if value.is_some() {
                return Err(self.refuse(b.end, "an entry point returns a value"));
            }
            self.asm.push(OpKind::Return, &[], &[]);
            return Ok(());
        };
        if let (Some(var), Some(id)) = (result, value) {
            let v = self.value(id)?;
            self.asm.push(OpKind::Set(var), &[v], &[]);
        }
        match region {
            Some(region) => {
                self.asm.push(OpKind::Break(region), &[], &[]);
            }
            // What stands after the call follows.
            None if self.asm.depth() == depth => self.returned = true,
            None => {
                self.plan.grew |= self.plan.returning.insert(function);
                self.asm.push(OpKind::Unreachable, &[], &[]);
            }
        }
        Ok(())
    }

    /// A function in place of its call; the variable of what it returns.
    pub(super) fn call(&mut self, function: usize, result: Option<Ty>) -> Result<Option<VarId>, Stop> {
        let f = &self.s.functions[function];
        let returns = f.blocks.iter().filter(|b| matches!(self.s.op(b.end), S::Return | S::ReturnValue)).count();
        let (id, first) = (f.id, f.blocks[0].label);
        let result = result.map(|ty| self.variable(ty));
        let wraps = returns != 1 || self.plan.returning.contains(&id);
        let region = wraps.then(|| self.open());
        self.frames.push(Frame::Call { function: id, region, result, depth: self.asm.depth() });
        // The same function may be called again: its blocks are reached in every call.
        let before = std::mem::take(&mut self.visited);
        let here = self.here;
        self.blocks(first)?;
        self.here = here;
        self.visited = before;
        self.frames.pop();
        if wraps {
            self.close_once_on();
        } else if !std::mem::take(&mut self.returned) && !self.asm.ended() {
            self.asm.push(OpKind::Unreachable, &[], &[]);
        }
        Ok(result)
    }

    /// Closes a loop that runs once, at the end of which it is left.
    fn close_once(&mut self) {
        if !self.asm.ended() {
            let region = self.innermost();
            self.asm.push(OpKind::Break(region), &[], &[]);
        }
        self.close_once_on();
    }

    /// Closes a loop that runs once, whose ways have all ended.
    fn close_once_on(&mut self) {
        let region = self.close();
        self.structure(OpKind::Loop, &[], &[region]);
    }

    fn structure(&mut self, kind: OpKind, args: &[Value], regions: &[RegionId]) {
        let op = self.asm.push_structure(kind, args, &[], regions);
        if !self.asm.falls_through(op) && !self.asm.ended() {
            self.asm.push(OpKind::Unreachable, &[], &[]);
        }
    }

    /// What the joins of a block choose when it is reached from here.
    fn edge(&mut self, from: u32, to: u32) -> Result<(), Stop> {
        let b = self.block(to)?;
        let mut chosen = Vec::new();
        for &at in &b.phis {
            let w = self.s.operands(at);
            let (id, ty) = (w[1], w[0]);
            let Some(pair) = w[2..].chunks_exact(2).find(|p| p[1] == from) else {
                return Err(self.refuse(at, "a join has no value for a block that leads to it"));
            };
            chosen.push((id, ty, self.value(pair[0])?));
        }
        for (id, ty, v) in chosen {
            let var = self.join_variable(id, ty)?;
            self.asm.push(OpKind::Set(var), &[v], &[]);
        }
        Ok(())
    }

    fn phis(&mut self, b: &Block) -> Result<(), Stop> {
        // The joins of a loop's header are read inside of the loop.
        if b.merge.is_some_and(|at| self.s.op(at) == S::LoopMerge) {
            return Ok(());
        }
        self.read_phis(b)
    }

    fn read_phis(&mut self, b: &Block) -> Result<(), Stop> {
        for &at in &b.phis {
            let (ty, id) = (self.s.operands(at)[0], self.s.operands(at)[1]);
            let var = self.join_variable(id, ty)?;
            let v = self.get(var);
            self.define(id, v);
        }
        Ok(())
    }
}
