//! Reverse mode. A region is taken backwards where its values are in sight: first it is run forward, then its ops are gone through from the
//! last to the first, each handing the adjoint of its results to its operands by the table. An adjoint is a value; a region that adds to
//! adjoints from outside takes them as they are and gives them as they become.
//!
//! - An `if` becomes an `if` on the same condition, each region of which is run again and taken backwards.
//! - A `for` becomes a `for` over its iterations from the last to the first, which carries adjoints.
//! - A load adds to the adjoint memory, in one step; a store takes from it.
//!
//! Every op is taken backwards once, and run forward once for each loop or `if` around it, and once more. What of that nothing needs, dead code
//! removal takes out. Cost: linear in what is written, which is linear in ops times depth.

mod replay;

use impasto_kernel::hash::Map;
use impasto_kernel::ir::{
    Access, Assembler, Atomic, BinaryOp, Builtin, Compare, Kernel, MemoryId, OpId, OpKind, RegionId, Scalar, Space,
    Subgroup, Ty, Value,
};

use super::activity::{Activity, Places};
use super::normal::NormalForm;
use super::parts::BufferScalars;
use super::plan::{LoopPlan, Plan, Restore};
use super::table::{self, OpWriter};
use super::tape::{Record, Tape};
use super::write::{BOOL, F32, U32};

/// A loop that was run forward where it will be taken backwards.
#[derive(Clone, Copy)]
struct ForwardLoop {
    record: Option<Record>,
    /// Iterations to take back.
    trip_count: Value,
}

pub(super) struct Reverse<'a> {
    pub(super) k: &'a Kernel,
    pub(super) normal: &'a NormalForm,
    pub(super) parts: &'a BufferScalars,
    pub(super) places: &'a Places,
    pub(super) activity: &'a Activity,
    pub(super) plan: &'a Plan,
    pub(super) asm: Assembler,
    /// What stands for each value of the primal, where it was last run.
    map: Vec<Value>,
    targets: Vec<RegionId>,
    adjoints: Vec<Option<Value>>,
    /// The adjoint of each memory, and of the parameters.
    memories: Vec<Option<MemoryId>>,
    params: Option<MemoryId>,
    /// Memories that are read forward, so that their stores matter.
    replayed: Vec<bool>,
    tape: Option<Tape>,
    /// The first free slots.
    top: [Value; 2],
    ran: Map<OpId, ForwardLoop>,
}

/// The adjoint memories and tapes of a kernel to be written.
pub(super) struct AdjointMemories {
    pub(super) memories: Vec<Option<MemoryId>>,
    pub(super) params: Option<MemoryId>,
    pub(super) tapes: [Option<MemoryId>; 2],
    pub(super) status: Option<MemoryId>,
}

/// The adjoint of a kernel, into one with this header.
pub(super) fn reverse(
    normal: &NormalForm,
    parts: &BufferScalars,
    places: &Places,
    activity: &Activity,
    plan: &Plan,
    header: Kernel,
    outlets: AdjointMemories,
) -> Kernel {
    let k = &normal.kernel;
    let mut replayed = vec![false; k.memories().len()];
    for &op in &places.ops {
        if let OpKind::Load(m) | OpKind::Atomic(m, _) = k.kind(op) {
            let changes = |s: Space| !matches!(s, Space::Buffer(Access::Read | Access::ReadWrite | Access::Tape));
            replayed[m.index()] |= plan.first[k.result(op).index()] && changes(k.memory(m).space);
        }
    }
    let mut asm = Assembler::new(header);
    let zero = asm.number(0);
    let taped = outlets.tapes.iter().any(Option::is_some);
    let tape = taped.then(|| Tape::new(&mut asm, outlets.tapes, outlets.status));
    let mut r = Reverse {
        k,
        normal,
        parts,
        places,
        activity,
        plan,
        asm,
        map: vec![zero; k.value_count()],
        targets: vec![RegionId(u32::MAX); k.region_count()],
        adjoints: vec![None; k.value_count()],
        memories: outlets.memories,
        params: outlets.params,
        replayed,
        tape,
        top: [zero; 2],
        ran: Map::default(),
    };
    r.clear_arrays();
    r.forward(k.body(), true, true);
    r.end_log();
    r.backward(k.body());
    r.asm.push(OpKind::Return, &[], &[]);
    r.asm.finish()
}

impl Reverse<'_> {
    fn get(&self, v: Value) -> Value {
        self.map[v.index()]
    }

    fn args(&self, op: OpId) -> Vec<Value> {
        self.k.args(op).iter().map(|&v| self.get(v)).collect()
    }

    fn bind(&mut self, old: impl Iterator<Item = Value>, new: impl Iterator<Item = Value>) {
        old.zip(new).for_each(|(a, b)| self.map[a.index()] = b);
    }

    /// Adjoints of arrays begin at zero. An array of the workgroup is cleared by all its invocations together.
    fn clear_arrays(&mut self) {
        let threads: u32 = self.k.workgroup.iter().product();
        let mut shared = false;
        for m in self.memories.clone().into_iter().flatten() {
            let Space::Workgroup(n) = self.asm.kernel.memory(m).space else { continue };
            shared = true;
            let first = self.asm.value(OpKind::Builtin(Builtin::LocalIndex, 0), &[], U32);
            let end = self.asm.number(n);
            let region = self.asm.open(&[U32]);
            let at: Vec<Value> = self.asm.kernel.region_args(region).collect();
            let zero = self.asm.zero(F32);
            self.asm.push(OpKind::Store(m), &[at[0], zero], &[]);
            self.asm.push(OpKind::Continue(region), &[], &[]);
            self.asm.close();
            self.asm.push_structure(OpKind::For(threads), &[first, end], &[], &[region]);
        }
        if shared {
            self.asm.push(OpKind::Barrier, &[], &[]);
        }
    }

    fn adjoint(&self, v: Value) -> Option<Value> {
        self.adjoints[v.index()]
    }

    /// Adds to the adjoint of a value of the primal.
    fn give(&mut self, v: Value, more: Value) {
        if !self.activity.value(v) {
            return;
        }
        let sum = match self.adjoint(v) {
            Some(now) => self.asm.plus(now, more),
            None => more,
        };
        self.adjoints[v.index()] = Some(sum);
    }

    fn adjoint_or_zero(&mut self, v: Value) -> Value {
        match self.adjoint(v) {
            Some(now) => now,
            None => self.asm.zero(self.k.ty(v)),
        }
    }

    /// Takes a region backwards that was run forward just before. Its results have their adjoints.
    fn backward(&mut self, r: RegionId) {
        let k = self.k;
        // What is taken backwards inside goes above all that this region has on the tape, so that none of it is overwritten while the region
        // lasts: to differentiate again, its parts are run again in another order.
        let top = self.top;
        for &op in k.region_ops(r).iter().rev() {
            self.top = top;
            self.asm.stands_for(k, op);
            match k.kind(op) {
                OpKind::If | OpKind::Switch(_) if self.activity.holds.contains(&op) => self.branch_back(op),
                OpKind::For(step) if self.activity.holds.contains(&op) => self.for_back(op, step),
                OpKind::Barrier if self.plan.together => {
                    self.asm.push(OpKind::Barrier, &[], &[]);
                }
                OpKind::Store(m) if self.activity.memory(m) => self.store_back(op, m),
                OpKind::Atomic(m, f) if self.activity.memory(m) => self.atomic_back(op, m, f),
                kind if kind.is_structure() || kind.is_terminator() => {}
                _ => self.plain_back(op),
            }
        }
    }

    fn plain_back(&mut self, op: OpId) {
        let k = self.k;
        if k.results(op).len() == 0 || !self.activity.value(k.result(op)) {
            return;
        }
        let Some(g) = self.adjoint(k.result(op)) else { return };
        let args = k.args(op);
        let ty = k.ty(k.result(op));
        match k.kind(op) {
            OpKind::Param(p) => {
                if let Some(m) = self.params {
                    let at = self.asm.number(p);
                    self.asm.value(OpKind::Atomic(m, Atomic::Add), &[at, g], F32);
                }
            }
            OpKind::Load(m) => self.load_back(op, m, g),
            OpKind::Make => {
                for (i, &v) in args.iter().enumerate().filter(|(_, v)| self.activity.value(**v)) {
                    let part = self.asm.component(g, i as u32);
                    self.give(v, part);
                }
            }
            OpKind::Extract(i) => {
                let whole = self.adjoint_or_zero(args[0]);
                let before = self.asm.component(whole, i);
                let sum = self.asm.plus(before, g);
                let new = self.asm.value(OpKind::Insert(i), &[whole, sum], k.ty(args[0]));
                self.adjoints[args[0].index()] = Some(new);
            }
            OpKind::Insert(i) => {
                let part = self.asm.component(g, i);
                self.give(args[1], part);
                let zero = self.asm.zero(k.ty(args[1]));
                let rest = self.asm.value(OpKind::Insert(i), &[g, zero], ty);
                self.give(args[0], rest);
            }
            OpKind::Convert => {
                let back = self.asm.value(OpKind::Convert, &[g], k.ty(args[0]));
                self.give(args[0], back);
            }
            OpKind::Subgroup(f) => self.subgroup_back(op, f, g),
            kind => {
                let values = self.args(op);
                let result = self.get(k.result(op));
                for (i, &v) in args.iter().enumerate() {
                    if !self.activity.value(v) {
                        continue;
                    }
                    let mut primal = OpWriter { asm: &mut self.asm, args: &values, result, ty };
                    let partial = table::partial(&mut primal, kind, i);
                    if let Some(more) = partial.times(&mut self.asm, g) {
                        self.give(v, more);
                    }
                }
            }
        }
    }

    /// The places of an element's components in the adjoint memory, which holds scalars.
    fn element(&mut self, op: OpId, m: MemoryId) -> Option<(MemoryId, Vec<Value>)> {
        let to = self.memories[m.index()]?;
        let n = self.k.memory(m).ty.lanes().map_or(1, |l| l.1);
        let index = self.get(self.k.args(op)[0]);
        let first = self.parts.place(&mut self.asm, self.k, m, index);
        if n == 1 {
            return Some((to, vec![first]));
        }
        let component = |i: u32| {
            let i = self.asm.number(i);
            self.asm.plus(first, i)
        };
        Some((to, (0..n).map(component).collect()))
    }

    fn load_back(&mut self, op: OpId, m: MemoryId, g: Value) {
        let own = matches!(self.k.memory(m).space, Space::Buffer(Access::Tape | Access::Scratch));
        let Some((to, places)) = self.element(op, m) else { return };
        for (i, at) in places.into_iter().enumerate() {
            let part = self.asm.component(g, i as u32);
            if own {
                let before = self.asm.value(OpKind::Load(to), &[at], F32);
                let sum = self.asm.plus(before, part);
                self.asm.push(OpKind::Store(to), &[at, sum], &[]);
            } else {
                self.asm.value(OpKind::Atomic(to, Atomic::Add), &[at, part], F32);
            }
        }
    }

    /// What was stored has the adjoint of the element, and what stood there before has none.
    fn store_back(&mut self, op: OpId, m: MemoryId) {
        let once = self.plan.once[m.index()];
        let own = matches!(self.k.memory(m).space, Space::Buffer(Access::Tape | Access::Scratch));
        let value = self.k.args(op)[1];
        let Some((to, places)) = self.element(op, m) else { return };
        let mut parts = Vec::new();
        for at in places {
            let zero = self.asm.zero(F32);
            parts.push(if once {
                self.asm.value(OpKind::Load(to), &[at], F32)
            } else if own {
                let part = self.asm.value(OpKind::Load(to), &[at], F32);
                self.asm.push(OpKind::Store(to), &[at, zero], &[]);
                part
            } else {
                self.asm.value(OpKind::Atomic(to, Atomic::Exchange), &[at, zero], F32)
            });
        }
        let whole = self.asm.whole(&parts, self.k.ty(value));
        self.give(value, whole);
    }

    fn atomic_back(&mut self, op: OpId, m: MemoryId, f: Atomic) {
        let value = self.k.args(op)[1];
        let Some((to, places)) = self.element(op, m) else { return };
        let before = self.adjoint(self.k.result(op));
        for at in places {
            let part = if f == Atomic::Add {
                self.asm.value(OpKind::Load(to), &[at], F32)
            } else {
                let now = before.unwrap_or_else(|| self.asm.zero(F32));
                self.asm.value(OpKind::Atomic(to, Atomic::Exchange), &[at, now], F32)
            };
            self.give(value, part);
        }
    }

    fn subgroup_back(&mut self, op: OpId, f: Subgroup, g: Value) {
        let k = self.k;
        let x = k.args(op)[0];
        let ty = k.ty(x);
        let together = |asm: &mut Assembler, f: Subgroup, v: Value| {
            let ty = asm.kernel.ty(v);
            asm.value(OpKind::Subgroup(f), &[v], ty)
        };
        let asm = &mut self.asm;
        let more = match f {
            Subgroup::Add => together(asm, f, g),
            Subgroup::ExclusiveAdd => {
                // What all lanes get, without this one and those before it.
                let (all, before) = (together(asm, Subgroup::Add, g), together(asm, f, g));
                let end = asm.binary(BinaryOp::Sub, all, before);
                asm.binary(BinaryOp::Sub, end, g)
            }
            Subgroup::BroadcastFirst => {
                let lane = asm.value(OpKind::Builtin(Builtin::SubgroupLane, 0), &[], U32);
                let first = together(asm, f, lane);
                let all = together(asm, Subgroup::Add, g);
                let here = asm.compare(Compare::Eq, lane, first);
                let zero = asm.zero(ty);
                asm.select(here, all, zero)
            }
            Subgroup::Min | Subgroup::Max => {
                // The first of the lanes that have it.
                let (own, result) = (self.map[x.index()], self.map[k.result(op).index()]);
                let has = asm.compare(Compare::Eq, own, result);
                let count = asm.value(OpKind::Convert, &[has], U32);
                let before = together(asm, Subgroup::ExclusiveAdd, count);
                let zero = asm.number(0);
                let first = asm.compare(Compare::Eq, before, zero);
                let here = asm.value(OpKind::Binary(BinaryOp::And), &[has, first], BOOL);
                let all = together(asm, Subgroup::Add, g);
                let zero = asm.zero(ty);
                asm.select(here, all, zero)
            }
            Subgroup::ShuffleXor => {
                let mask = self.map[k.args(op)[1].index()];
                asm.value(OpKind::Subgroup(f), &[g, mask], ty)
            }
            Subgroup::All | Subgroup::Any => return,
        };
        self.give(x, more);
    }

    fn branch_back(&mut self, op: OpId) {
        let k = self.k;
        let c = self.get(k.args(op)[0]);
        let touched = self.activity.touched.get(&op).cloned().unwrap_or_default();
        let before: Vec<Option<Value>> = touched.iter().map(|&v| self.adjoint(v)).collect();
        let top = self.top;
        let mut regions = Vec::new();
        for &r in k.regions(op) {
            self.top = top;
            touched.iter().zip(&before).for_each(|(v, &a)| self.adjoints[v.index()] = a);
            self.asm.open(&[]);
            self.forward(r, true, false);
            if let Some(end) = k.terminator(r).filter(|&t| k.kind(t) == OpKind::Yield) {
                for (&v, result) in k.args(end).iter().zip(k.results(op)) {
                    if let Some(g) = self.adjoint(result) {
                        self.give(v, g);
                    }
                }
            }
            self.backward(r);
            let after: Vec<Value> = touched.iter().map(|&v| self.adjoint_or_zero(v)).collect();
            self.asm.push(OpKind::Yield, &after, &[]);
            regions.push(self.asm.close());
        }
        let types = self.types(touched.iter().copied());
        let kind = self.asm.kind_of(self.k, op, &self.targets);
        let new = self.asm.push_structure(kind, &[c], &types, &regions);
        touched.iter().zip(self.asm.kernel.results(new)).for_each(|(v, a)| self.adjoints[v.index()] = Some(a));
    }

    fn for_back(&mut self, op: OpId, step: u32) {
        let k = self.k;
        let r = k.regions(op)[0];
        let (Some(ran), Some(plan)) = (self.ran.get(&op).copied(), self.plan.loops.get(&op).cloned()) else { return };
        let inner: Vec<Value> = k.region_args(r).collect();
        let touched = self.activity.touched.get(&op).cloned().unwrap_or_default();
        let results: Vec<Value> = k.results(op).collect();
        // A value that no iteration reads may still be a result: that of the last iteration.
        let is_active = |j: &usize| self.activity.value(inner[j + 1]) || self.activity.value(results[*j]);
        let active: Vec<usize> = (0..results.len()).filter(is_active).collect();
        let mut init: Vec<Value> = active.iter().map(|&j| self.adjoint_or_zero(results[j])).collect();
        init.extend(touched.iter().map(|&v| self.adjoint_or_zero(v)).collect::<Vec<_>>());
        let types: Vec<Ty> = init.iter().map(|&v| self.asm.kernel.ty(v)).collect();
        let args = self.args(op);
        let one = self.asm.number(1);
        let last = self.asm.binary(BinaryOp::Sub, ran.trip_count, one);

        let region = self.asm.open(&std::iter::once(U32).chain(types.iter().copied()).collect::<Vec<_>>());
        let given: Vec<Value> = self.asm.kernel.region_args(region).collect();
        let iteration = self.asm.binary(BinaryOp::Sub, last, given[0]);
        self.restore(op, step, iteration, &args, &plan, ran.record.as_ref());
        self.forward(r, true, false);
        inner.iter().for_each(|v| self.adjoints[v.index()] = None);
        touched.iter().zip(&given[1 + active.len()..]).for_each(|(v, &a)| self.adjoints[v.index()] = Some(a));
        if let Some(end) = k.terminator(r) {
            for (&j, &g) in active.iter().zip(&given[1..]) {
                self.give(k.args(end)[j], g);
            }
        }
        self.backward(r);
        let mut next: Vec<Value> = active.iter().map(|&j| self.adjoint_or_zero(inner[j + 1])).collect();
        next.extend(touched.iter().map(|&v| self.adjoint_or_zero(v)).collect::<Vec<_>>());
        self.asm.push(OpKind::Continue(region), &next, &[]);
        self.asm.close();

        let zero = self.asm.number(0);
        let all: Vec<Value> = [zero, ran.trip_count].into_iter().chain(init).collect();
        let new = self.asm.push_structure(OpKind::For(1), &all, &types, &[region]);
        let after: Vec<Value> = self.asm.kernel.results(new).collect();
        touched.iter().zip(&after[active.len()..]).for_each(|(v, &a)| self.adjoints[v.index()] = Some(a));
        for (&j, &g) in active.iter().zip(&after) {
            self.give(k.args(op)[2 + j], g);
        }
    }

    /// The index and the carried values as they were when an iteration began.
    fn restore(
        &mut self,
        op: OpId,
        step: u32,
        iteration: Value,
        args: &[Value],
        plan: &LoopPlan,
        record: Option<&Record>,
    ) {
        let k = self.k;
        let r = k.regions(op)[0];
        let inner: Vec<Value> = k.region_args(r).collect();
        let s = k.ty(inner[0]);
        let times = |asm: &mut Assembler, by: Value| {
            let ty = asm.kernel.ty(by);
            let iteration = asm.value(OpKind::Convert, &[iteration], ty);
            asm.times(iteration, by)
        };
        let by = self.asm.constant(s.as_scalar().unwrap_or(Scalar::U32), step.into());
        let distance = times(&mut self.asm, by);
        self.map[inner[0].index()] = self.asm.plus(args[0], distance);
        for (j, keep) in plan.keep.iter().enumerate() {
            let v = inner[j + 1];
            self.map[v.index()] = match *keep {
                Restore::Nothing if k.ty(v) == BOOL => self.asm.constant(Scalar::Bool, 1),
                Restore::Nothing => self.asm.zero(k.ty(v)),
                Restore::Steps(by) => {
                    let by = match self.places.def[by.index()].map(|d| k.kind(d)) {
                        Some(OpKind::Const(c)) => {
                            let s = k.ty(by).as_scalar().unwrap_or(Scalar::U32);
                            self.asm.constant(s, k.const_bits(c))
                        }
                        _ => self.get(by),
                    };
                    let distance = times(&mut self.asm, by);
                    self.asm.plus(args[2 + j], distance)
                }
                Restore::Tape { first } => match (record, self.tape) {
                    (Some(record), Some(tape)) => tape.take(&mut self.asm, record, iteration, first, k.ty(v)),
                    _ => self.asm.zero(k.ty(v)),
                },
            };
        }
    }
}
