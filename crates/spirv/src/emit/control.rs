//! Regions as blocks. After the pass `multi_level_exits` every loop is left by one level only, so a `break` is a branch to the merge block of the
//! innermost loop, a `continue` one to its continue block.

use impasto_kernel::hash::Map;

use rspirv::spirv;

use super::foreign::ForeignSurvey;
use super::words::Words;
use crate::import::foreign::Foreign;
use impasto_kernel::ir::{Builtin, Compare, Kernel, MemoryId, OpId, OpKind, RegionId, Scalar, Space, Value};

/// Where control comes from, and the values it brings.
type From = (u32, Vec<u32>);

enum Frame {
    Choice { merge: u32, from: Vec<From> },
    Repeat { region: RegionId, merge: u32, next: u32, breaks: Vec<From>, continues: Vec<From> },
}

pub(super) struct Emit<'a> {
    pub(super) k: &'a Kernel,
    pub(super) w: Words,
    /// The id of each value.
    pub(super) ids: Vec<u32>,
    pub(super) bindings: Vec<u32>,
    /// The bits of values that are constants.
    pub(super) constants: Vec<Option<u64>>,
    /// The variable of the function for each variable that SSA construction has not taken away.
    pub(super) vars: Vec<u32>,
    /// The ids of places in memory, by memory, index and part of the element, and which became known in the regions that are open.
    pub(super) places: Map<(MemoryId, u32, u32), u32>,
    pub(super) known: Vec<(MemoryId, u32, u32)>,
    /// The ids of the operands of one op.
    pub(super) operands: Vec<u32>,
    frames: Vec<Frame>,
    block: u32,
    pub(super) inputs: [u32; Builtin::ALL.len()],
    /// Of imported kernels.
    pub(super) foreign: Option<&'a Foreign>,
    pub(super) ahead: ForeignSurvey,
}

impl<'a> Emit<'a> {
    /// Adds a kernel to the words of its module.
    pub(super) fn run(k: &'a Kernel, mut w: Words) -> Words {
        w.begin(k);
        let mut n = 0;
        let mut bindings = Vec::new();
        for m in k.memories() {
            bindings.push(n);
            n += u32::from(matches!(m.space, Space::Buffer(_)));
        }
        let mut e = Emit {
            k,
            w,
            ids: vec![0; k.value_count()],
            bindings,
            constants: vec![None; k.value_count()],
            vars: Vec::new(),
            places: Map::default(),
            known: Vec::new(),
            operands: Vec::new(),
            frames: Vec::new(),
            block: 0,
            inputs: [0; Builtin::ALL.len()],
            foreign: Foreign::of(k),
            ahead: if k.foreign().is_some() { ForeignSurvey::of(k) } else { ForeignSurvey::default() },
        };
        e.function();
        e.w
    }

    fn function(&mut self) {
        if let Some(foreign) = self.foreign {
            let [returns, id, control, ty] = foreign.function;
            let [returns, id, ty] = [returns, id, ty].map(|old| self.w.outside(old));
            self.w.push(spirv::Op::Function, &[returns, id, control, ty]);
            self.label();
            self.local_variables();
            self.region(self.k.body());
            return self.w.push(spirv::Op::FunctionEnd, &[]);
        }
        let main = self.w.id("interface");
        self.w.own.main = main;
        let (void, ty) = (self.w.void(), self.w.function_type());
        self.w.push(spirv::Op::Function, &[void, main, 0, ty]);
        self.label();
        // Variables and private arrays come first in the first block, then the inputs that are used: they dominate everything.
        let (memories, builtins) = self.used();
        for (m, used) in memories.iter().enumerate() {
            if *used && matches!(self.k.memories()[m].space, Space::Private(_)) {
                self.variable(MemoryId(m as u32));
            }
        }
        for &ty in self.k.vars() {
            let ty = self.w.ty(self.k, ty);
            let pointer = self.w.pointer(spirv::StorageClass::Function, ty);
            let id = self.w.id("variables");
            self.w.push(spirv::Op::Variable, &[pointer, id, spirv::StorageClass::Function as u32]);
            self.vars.push(id);
        }
        for &(b, _) in Builtin::ALL.iter().filter(|b| builtins[b.0 as usize]) {
            use spirv::BuiltIn as B;
            let (input, wide) = match b {
                Builtin::GlobalId => (B::GlobalInvocationId, true),
                Builtin::LocalId => (B::LocalInvocationId, true),
                Builtin::WorkgroupId => (B::WorkgroupId, true),
                Builtin::NumWorkgroups => (B::NumWorkgroups, true),
                Builtin::LocalIndex => (B::LocalInvocationIndex, false),
                Builtin::SubgroupSize => (B::SubgroupSize, false),
                Builtin::SubgroupLane => (B::SubgroupLocalInvocationId, false),
                Builtin::SubgroupId => (B::SubgroupId, false),
            };
            let ty = self.w.lanes(Scalar::U32, if wide { 3 } else { 1 });
            let variable = self.w.builtin(input, ty);
            let id = self.w.id("inputs");
            self.w.push(spirv::Op::Load, &[ty, id, variable]);
            self.inputs[b as usize] = id;
        }
        self.region(self.k.body());
        self.w.push(spirv::Op::FunctionEnd, &[]);
    }

    /// Which memories and inputs are used.
    fn used(&self) -> (Vec<bool>, [bool; Builtin::ALL.len()]) {
        let mut memories = vec![false; self.k.memories().len()];
        let mut builtins = [false; Builtin::ALL.len()];
        let mut open = vec![self.k.body()];
        while let Some(r) = open.pop() {
            for &op in self.k.region_ops(r) {
                open.extend_from_slice(self.k.regions(op));
                match self.k.kind(op) {
                    OpKind::Builtin(b, _) => builtins[b as usize] = true,
                    OpKind::Load(m)
                    | OpKind::Store(m)
                    | OpKind::Atomic(m, _)
                    | OpKind::Len(m)
                    | OpKind::MatrixLoad(m, _)
                    | OpKind::MatrixStore(m, _) => memories[m.index()] = true,
                    _ => {}
                }
            }
        }
        (memories, builtins)
    }

    fn label(&mut self) -> u32 {
        let id = self.w.id("blocks");
        self.begin(id);
        id
    }

    fn begin(&mut self, label: u32) {
        self.w.push(spirv::Op::Label, &[label]);
        self.block = label;
    }

    fn branch(&mut self, to: u32) {
        self.w.push(spirv::Op::Branch, &[to]);
    }

    pub(super) fn value(&self, v: Value) -> u32 {
        self.ids[v.index()]
    }

    fn values(&self, op: OpId) -> Vec<u32> {
        self.k.args(op).iter().map(|&v| self.value(v)).collect()
    }

    /// What became known since `mark` holds in a region that ends here.
    fn forget(&mut self, mark: usize) {
        for place in self.known.drain(mark..) {
            self.places.remove(&place);
        }
    }

    fn region(&mut self, r: RegionId) {
        let mark = self.known.len();
        self.ops(self.k.region_ops(r));
        self.forget(mark);
    }

    fn ops(&mut self, ops: &[OpId]) {
        let k = self.k;
        for &op in ops {
            match k.kind(op) {
                OpKind::If => self.choice(op, None),
                OpKind::Switch(table) => self.choice(op, Some(table)),
                OpKind::Loop => self.run_loop(op, None),
                OpKind::For(step) => self.run_loop(op, Some(step)),
                OpKind::Yield => {
                    let (values, block) = (self.values(op), self.block);
                    if let Some(Frame::Choice { merge, from }) = self.frames.last_mut() {
                        from.push((block, values));
                        let merge = *merge;
                        self.branch(merge);
                    }
                }
                OpKind::Break(target) | OpKind::Continue(target) => {
                    let breaks = matches!(k.kind(op), OpKind::Break(_));
                    let (values, block) = (self.values(op), self.block);
                    let frame = self.frames.iter_mut().rev().find_map(|f| match f {
                        Frame::Repeat { region, merge, next, breaks, continues } if *region == target => {
                            Some((*merge, *next, breaks, continues))
                        }
                        _ => None,
                    });
                    if let Some((merge, next, out, on)) = frame {
                        if breaks {
                            out.push((block, values))
                        } else {
                            on.push((block, values))
                        }
                        self.branch(if breaks { merge } else { next });
                    }
                }
                OpKind::Return => self.w.push(spirv::Op::Return, &[]),
                OpKind::Unreachable => self.w.push(spirv::Op::Unreachable, &[]),
                _ => self.plain(op),
            }
        }
    }

    /// A region that only yields: control can go past it.
    fn is_empty(&self, r: RegionId) -> bool {
        self.k.region_ops(r).len() == 1 && self.k.terminator(r).map(|t| self.k.kind(t)) == Some(OpKind::Yield)
    }

    fn choice(&mut self, op: OpId, table: Option<u32>) {
        let k = self.k;
        let regions = k.regions(op);
        let selector = self.value(k.args(op)[0]);
        let merge = self.w.id("blocks");
        // Only one empty region may be passed by, where there are results: a join has one value for each block it comes from.
        let plain = k.results(op).len() == 0;
        let mut passed = false;
        let mut from = Vec::new();
        let mut labels = Vec::new();
        for &r in regions {
            let pass = self.is_empty(r) && if table.is_some() { plain } else { !passed };
            if pass {
                passed = true;
                if let Some(t) = k.terminator(r) {
                    from.push((self.block, self.values(t)));
                }
                labels.push(merge);
            } else {
                labels.push(self.w.id("blocks"));
            }
        }
        if table.is_some() {
            // The block before a switch is one predecessor, however many of its cases lead to the join.
            from.truncate(1);
        }
        self.w.push(spirv::Op::SelectionMerge, &[merge, 0]);
        match table {
            None => self.w.push(spirv::Op::BranchConditional, &[selector, labels[0], labels[1]]),
            Some(table) => {
                let default = labels[labels.len() - 1];
                let mut operands = vec![selector, default];
                for &(value, arm) in k.switch_cases(table) {
                    operands.push(value as u32);
                    if k.ty(k.args(op)[0]).as_scalar().is_some_and(|s| s.bits() == 64) {
                        operands.push((value >> 32) as u32);
                    }
                    operands.push(labels[arm as usize]);
                }
                self.w.push(spirv::Op::Switch, &operands);
            }
        }
        self.frames.push(Frame::Choice { merge, from });
        for (&r, &label) in regions.iter().zip(&labels) {
            if label != merge {
                self.begin(label);
                self.region(r);
            }
        }
        let Some(Frame::Choice { from, .. }) = self.frames.pop() else { return };
        self.begin(merge);
        self.join(k.results(op), &from);
    }

    /// The results of an op whose ends come together here.
    fn join(&mut self, results: impl Iterator<Item = Value>, from: &[From]) {
        for (i, v) in results.enumerate() {
            let Some((_, first)) = from.first() else { return };
            let same = from.iter().all(|f| f.1[i] == first[i]);
            self.ids[v.index()] = if same { first[i] } else { self.phi(v, i, from) };
        }
    }

    fn phi(&mut self, v: Value, i: usize, from: &[From]) -> u32 {
        let (t, id) = (self.w.ty(self.k, self.k.ty(v)), self.w.id("joins"));
        let mut operands = vec![t, id];
        from.iter().for_each(|(block, values)| operands.extend([values[i], *block]));
        self.w.push(spirv::Op::Phi, &operands);
        id
    }

    /// The ops before the first branch of a loop, if that only decides whether the loop ends; and that decision: the `if`, which of its regions
    /// ends the loop, and the `break` in it.
    fn decision(&self, r: RegionId) -> Option<(&'a [OpId], OpId, usize, OpId)> {
        let k = self.k;
        let ops = k.region_ops(r);
        let at = ops.iter().position(|&op| k.kind(op).is_structure())?;
        let regions = k.regions(ops[at]);
        if k.kind(ops[at]) != OpKind::If || k.results(ops[at]).len() > 0 {
            return None;
        }
        let ends = regions.iter().position(|&a| k.region_ops(a).len() == 1 && !self.is_empty(a))?;
        let last = k.terminator(regions[ends]).filter(|&t| k.kind(t) == OpKind::Break(r))?;
        self.is_empty(regions[1 - ends]).then_some((&ops[..at], ops[at], ends, last))
    }

    fn run_loop(&mut self, op: OpId, step: Option<u32>) {
        let k = self.k;
        let region = k.regions(op)[0];
        let before = self.block;
        let mut first = self.values(op);
        // The index of a `for` begins with `from`; `to` is not carried.
        let to = step.map(|_| first.remove(1));
        let (header, next, merge) = (self.w.id("blocks"), self.w.id("blocks"), self.w.id("blocks"));
        let all = k.region_ops(region);
        let decision = if step.is_some() { None } else { self.decision(region) };
        let rest = decision.map_or(all, |(before, ..)| &all[before.len() + 1..]);
        // A body without control flow of its own is one block, which is also the one that begins the next iteration.
        let straight = (step.is_some() || decision.is_some())
            && !rest.iter().any(|&op| k.kind(op).is_structure())
            && k.terminator(region).is_some_and(|t| k.kind(t) == OpKind::Continue(region));
        let mark = self.known.len();
        let control = self.foreign.map_or(&[0][..], |f| f.loop_control(k, op));
        let loop_merge = [&[merge, next], control].concat();
        self.branch(header);
        self.begin(header);
        let mut later = Vec::new();
        for (v, &init) in k.region_args(region).zip(&first) {
            let (t, id) = (self.w.ty(k, k.ty(v)), self.w.id("joins"));
            // The value of the next iteration is not known yet; it is patched below.
            later.push(self.w.place() + 5);
            self.w.push(spirv::Op::Phi, &[t, id, init, before, init, next]);
            self.ids[v.index()] = id;
        }
        let mut frame = (Vec::new(), Vec::new());
        if let (Some(to), Some(index)) = (to, k.region_args(region).next()) {
            let (less, s) = (self.w.id("loops"), k.ty(index));
            let bool_ty = self.w.scalar(Scalar::Bool);
            let op = super::ops::compare(Compare::Lt, s.as_scalar().unwrap_or(Scalar::U32));
            self.w.push(op, &[bool_ty, less, self.value(index), to]);
            self.w.push(spirv::Op::LoopMerge, &loop_merge);
            let body = if straight { next } else { self.w.id("blocks") };
            self.w.push(spirv::Op::BranchConditional, &[less, body, merge]);
            let carried = k.region_args(region).skip(1).map(|v| self.value(v)).collect();
            frame.0.push((self.block, carried));
            self.begin(body);
        } else if let Some((before, choice, ends, last)) = decision {
            before.iter().for_each(|&op| self.plain(op));
            frame.0.push((self.block, self.values(last)));
            let condition = self.value(k.args(choice)[0]);
            self.w.push(spirv::Op::LoopMerge, &loop_merge);
            let body = if straight { next } else { self.w.id("blocks") };
            let (yes, no) = if ends == 0 { (merge, body) } else { (body, merge) };
            self.w.push(spirv::Op::BranchConditional, &[condition, yes, no]);
            self.begin(body);
        } else {
            self.w.push(spirv::Op::LoopMerge, &loop_merge);
            let body = self.w.id("blocks");
            self.branch(body);
            self.begin(body);
        }
        let (breaks, continues) = match rest.split_last() {
            Some((&last, body)) if straight => {
                body.iter().for_each(|&op| self.plain(op));
                frame.1.push((self.block, self.values(last)));
                frame
            }
            _ => {
                self.frames.push(Frame::Repeat { region, merge, next, breaks: frame.0, continues: frame.1 });
                self.ops(rest);
                let Some(Frame::Repeat { breaks, continues, .. }) = self.frames.pop() else { return };
                self.begin(next);
                (breaks, continues)
            }
        };
        self.forget(mark);
        self.carry(region, step, &first, &later, &continues);
        self.branch(header);
        self.begin(merge);
        self.join(k.results(op), &breaks);
    }

    /// Patches the joins at the head of a loop, which stand at `later`, with the values of the next iteration; before the first they are `first`.
    fn carry(&mut self, region: RegionId, step: Option<u32>, first: &[u32], later: &[usize], continues: &[From]) {
        let k = self.k;
        let index = usize::from(step.is_some());
        for (i, v) in k.region_args(region).enumerate().skip(index) {
            let id = match continues.first() {
                // There is no next iteration: the first value stands for what never comes.
                None => first[i],
                Some((_, values)) if continues.iter().all(|c| c.1[i - index] == values[i - index]) => values[i - index],
                Some(_) => self.phi(v, i - index, continues),
            };
            self.w.patch(later[i], id);
        }
        // Joins come first in a block, so the index is stepped after them.
        if let (Some(step), Some(v)) = (step, k.region_args(region).next()) {
            let (t, id) = (self.w.ty(k, k.ty(v)), self.w.id("loops"));
            let step = self.w.constant(k.ty(v).as_scalar().unwrap_or(Scalar::U32), step.into());
            self.w.push(spirv::Op::IAdd, &[t, id, self.value(v), step]);
            self.w.patch(later[0], id);
        }
    }
}
