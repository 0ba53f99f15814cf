//! What each loop keeps of its forward run. Going backwards an iteration is computed again from what was carried into it; of that, the slice that
//! the derivatives of the body need is looked for, and nothing else is kept:
//!
//! 1. A carried value that no derivative needs (a sum) is not kept.
//! 2. An integer that grows by the same amount each iteration is computed from the number of the iteration.
//! 3. Every other one is written to the tape at the start of each iteration.
//!
//! Cost: linear, times the depth of loops.

use std::collections::HashSet;

use impasto_kernel::hash::Map;
use impasto_kernel::ir::{
    Access, BinaryOp, Kernel, MemoryId, OpId, OpKind, RegionId, Scalar, Space, Subgroup, Ty, Value,
};

use super::activity::{Activity, Places};
use super::normal::NormalForm;
use super::table;

/// How a carried value is had again.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Restore {
    /// Nothing needs it.
    Nothing,
    /// It is the first value, plus this for each iteration.
    Steps(Value),
    /// It is on the tape: the first of its words, among floats or among integers.
    Tape { first: u32 },
}

/// What a loop keeps for each iteration.
#[derive(Clone, Debug)]
pub(super) struct LoopPlan {
    /// For each carried value.
    pub(super) keep: Vec<Restore>,
    /// Words on the tape of floats, and on that of integers.
    pub(super) words: [u32; 2],
}

pub(super) struct Plan {
    pub(super) loops: Map<OpId, LoopPlan>,
    /// Values that going backwards needs, anywhere.
    pub(super) needed: Vec<bool>,
    /// Those, and what they were made of by way of memory of the workgroup: values that the first run forward needs.
    pub(super) first: Vec<bool>,
    /// Memories that the kernel writes.
    pub(super) written: Vec<bool>,
    /// Buffers that are not read, and of which no element is written twice: their adjoints need not be taken away.
    pub(super) once: Vec<bool>,
    /// Whether invocations see what others wrote, so that barriers matter to adjoints.
    pub(super) together: bool,
    log_words: [u32; 2],
}

/// The tape of a value, floats or integers, and its words there.
pub(super) fn words(ty: Ty) -> (usize, u32) {
    match ty.lanes() {
        Some((s, n)) if s.is_float() => (0, n),
        Some((s, n)) if s.bits() == 64 => (1, 2 * n),
        Some((_, n)) => (1, n),
        None => (1, 0),
    }
}

struct Slice<'a> {
    k: &'a Kernel,
    places: &'a Places,
    normal: &'a NormalForm,
    /// Where it stops: the arguments of this region are given.
    root: RegionId,
    seen: Vec<bool>,
    touched: Vec<Value>,
    whole: HashSet<OpId>,
    open: Vec<Value>,
    /// The writes to each memory; of those through which what was written is looked for.
    writes: &'a Map<MemoryId, Vec<OpId>>,
    memories: HashSet<MemoryId>,
    /// Whether memory of the workgroup is one of them.
    shared: bool,
}

impl Slice<'_> {
    fn need(&mut self, v: Value) {
        if !std::mem::replace(&mut self.seen[v.index()], true) {
            self.touched.push(v);
            self.open.push(v);
        }
    }

    fn all(&mut self, values: &[Value]) {
        values.iter().for_each(|&v| self.need(v));
    }

    fn solve(&mut self) {
        while let Some(v) = self.open.pop() {
            let scope = self.places.scope[v.index()];
            // What comes from outside is there.
            if !self.places.inside(scope, self.root) {
                continue;
            }
            match self.places.def[v.index()] {
                Some(op) => self.result(op, v),
                None if scope != self.root => {
                    if let Some(op) = self.places.owner[scope.index()] {
                        self.argument(op, scope, v);
                    }
                }
                None => {}
            }
        }
    }

    /// How often a loop runs.
    fn control(&mut self, op: OpId) {
        let k = self.k;
        match k.kind(op) {
            OpKind::For(_) => {
                self.all(&k.args(op)[..2]);
                if let Some(&trip_count) = self.normal.trip_count.get(&op) {
                    // Whether it runs is carried before the number of iterations.
                    for j in [trip_count - 1, trip_count] {
                        self.carried(op, j);
                    }
                }
            }
            _ => self.everything(op),
        }
    }

    fn carried(&mut self, op: OpId, j: usize) {
        let k = self.k;
        let r = k.regions(op)[0];
        self.need(k.args(op)[2 + j]);
        let end = k.terminator(r).map(|t| k.args(t)[j]);
        end.into_iter().chain(k.region_args(r).nth(j + 1)).chain(k.results(op).nth(j)).for_each(|v| self.need(v));
    }

    /// All that an op with regions uses.
    fn everything(&mut self, op: OpId) {
        if !self.whole.insert(op) {
            return;
        }
        let k = self.k;
        self.all(k.args(op));
        let mut open: Vec<RegionId> = k.regions(op).to_vec();
        while let Some(r) = open.pop() {
            for &inner in k.region_ops(r) {
                self.all(k.args(inner));
                open.extend_from_slice(k.regions(inner));
            }
        }
    }

    fn result(&mut self, op: OpId, v: Value) {
        let k = self.k;
        let j = (v.0 - k.result(op).0) as usize;
        if let Some(&at) = self.normal.logged.get(&op) {
            self.need(at);
            if !self.shared {
                return;
            }
        }
        match k.kind(op) {
            OpKind::If | OpKind::Switch(_) => {
                self.all(k.args(op));
                for &r in k.regions(op) {
                    if let Some(t) = k.terminator(r).filter(|&t| k.kind(t) == OpKind::Yield) {
                        self.need(k.args(t)[j]);
                    }
                }
            }
            OpKind::For(_) => {
                self.carried(op, j);
                self.control(op);
            }
            OpKind::Loop => self.everything(op),
            OpKind::Load(m) | OpKind::Atomic(m, _) => {
                self.all(k.args(op));
                self.memory(m);
            }
            _ => self.all(k.args(op)),
        }
    }

    /// What is written to a memory inside of the root, and whether it is.
    fn memory(&mut self, m: MemoryId) {
        let follows = match self.k.memory(m).space {
            Space::Buffer(Access::Tape) => true,
            Space::Buffer(Access::Scratch) | Space::Workgroup(_) => self.shared,
            Space::Buffer(_) => false,
            Space::Private(_) | Space::Registers(_) | Space::Pointed { .. } => true,
        };
        if !follows || !self.memories.insert(m) {
            return;
        }
        let (places, writes, root) = (self.places, self.writes, self.root);
        for &op in writes.get(&m).into_iter().flatten() {
            let home = places.home[op.index()];
            if !places.inside(home, root) {
                continue;
            }
            self.all(self.k.args(op));
            for r in places.around(home).take_while(|&r| r != root) {
                match places.owner[r.index()] {
                    Some(owner) if matches!(self.k.kind(owner), OpKind::If | OpKind::Switch(_)) => {
                        self.need(self.k.args(owner)[0]);
                    }
                    Some(owner) => self.control(owner),
                    None => {}
                }
            }
        }
    }

    fn argument(&mut self, op: OpId, scope: RegionId, v: Value) {
        let index = self.k.region_args(scope).position(|a| a == v).unwrap_or(0);
        match self.k.kind(op) {
            OpKind::For(_) if index > 0 => {
                self.carried(op, index - 1);
                self.control(op);
            }
            _ => self.control(op),
        }
    }

    /// What the derivatives of an op need.
    fn seed(&mut self, activity: &Activity, op: OpId) {
        let k = self.k;
        let args = k.args(op);
        match k.kind(op) {
            OpKind::Load(m) | OpKind::Store(m) | OpKind::Atomic(m, _) if activity.memory(m) => self.need(args[0]),
            OpKind::If | OpKind::Switch(_) if activity.holds.contains(&op) => self.need(args[0]),
            OpKind::For(_) if activity.holds.contains(&op) => self.control(op),
            OpKind::Subgroup(f) if activity.value(k.result(op)) => match f {
                Subgroup::Min | Subgroup::Max => self.all(&[args[0], k.result(op)]),
                _ => self.all(&args[1..]),
            },
            kind @ (OpKind::Unary(_) | OpKind::Binary(_) | OpKind::Fma | OpKind::Select | OpKind::Custom)
                if activity.value(k.result(op)) =>
            {
                for i in (0..args.len()).filter(|&i| activity.value(args[i])) {
                    let needs = table::needs(kind, i).unwrap_or_default();
                    for (j, &v) in args.iter().enumerate() {
                        if needs.args >> (j % 64) & 1 == 1 {
                            self.need(v);
                        }
                    }
                    if needs.result {
                        self.need(k.result(op));
                    }
                }
            }
            _ => {}
        }
    }

    fn seeds(&mut self, activity: &Activity, r: RegionId) {
        let k = self.k;
        for &op in k.region_ops(r) {
            self.seed(activity, op);
            k.regions(op).iter().for_each(|&inner| self.seeds(activity, inner));
        }
    }

    /// Ready for another slice.
    fn clear(&mut self, root: RegionId) {
        self.touched.drain(..).for_each(|v| self.seen[v.index()] = false);
        self.whole.clear();
        self.memories.clear();
        self.root = root;
    }
}

/// The amount by which a carried integer grows each iteration, if it is always the same.
fn steps(k: &Kernel, places: &Places, r: RegionId, j: usize) -> Option<Value> {
    let arg = k.region_args(r).nth(j + 1)?;
    matches!(k.ty(arg).as_scalar(), Some(Scalar::U32 | Scalar::I32)).then_some(())?;
    let next = k.args(k.terminator(r)?)[j];
    let op = places.def[next.index()].filter(|&op| k.kind(op) == OpKind::Binary(BinaryOp::Add))?;
    let by = match *k.args(op) {
        [a, b] if a == arg => b,
        [a, b] if b == arg => a,
        _ => return None,
    };
    let constant = places.def[by.index()].is_some_and(|d| matches!(k.kind(d), OpKind::Const(_)));
    (constant || !places.inside(places.scope[by.index()], r)).then_some(by)
}

impl Plan {
    pub(super) fn new(normal: &NormalForm, places: &Places, activity: &Activity) -> Plan {
        let k = &normal.kernel;
        let mut writes: Map<MemoryId, Vec<OpId>> = Map::default();
        for &op in &places.ops {
            if let OpKind::Store(m) | OpKind::Atomic(m, _) = k.kind(op) {
                writes.entry(m).or_default().push(op);
            }
        }
        let mut slice = Slice {
            k,
            places,
            normal,
            root: k.body(),
            seen: vec![false; k.value_count()],
            touched: Vec::new(),
            whole: HashSet::new(),
            open: Vec::new(),
            writes: &writes,
            memories: HashSet::new(),
            shared: false,
        };
        slice.seeds(activity, k.body());
        slice.solve();
        let needed = slice.seen.clone();
        slice.clear(k.body());
        slice.shared = true;
        slice.seeds(activity, k.body());
        slice.solve();
        let first = slice.seen.clone();
        slice.shared = false;
        let mut loops = Map::default();
        for &op in places.ops.iter().filter(|op| activity.holds.contains(op)) {
            if !matches!(k.kind(op), OpKind::For(_)) {
                continue;
            }
            let r = k.regions(op)[0];
            slice.clear(r);
            slice.seeds(activity, r);
            slice.solve();
            loops.insert(op, loop_plan(normal, places, op, &slice.seen));
        }
        let mut written = vec![false; k.memories().len()];
        let mut read = written.clone();
        for &op in &places.ops {
            match k.kind(op) {
                OpKind::Atomic(m, _) if activity.value(k.result(op)) => {
                    (written[m.index()], read[m.index()]) = (true, true);
                }
                OpKind::Store(m) | OpKind::Atomic(m, _) => written[m.index()] = true,
                OpKind::Load(m) => read[m.index()] = true,
                _ => {}
            }
        }
        let all = || (0..k.memories().len()).map(|m| MemoryId(m as u32));
        let buffer = |m: MemoryId| matches!(k.memory(m).space, Space::Buffer(Access::ReadWrite));
        let once = all().map(|m| buffer(m) && !read[m.index()] && super::places::once(k, places, m)).collect();
        let together = all().any(|m| activity.memory(m) && written[m.index()] && read[m.index()]);
        Plan { loops, needed, first, written, once, together, log_words: normal.log_words }
    }

    /// Words of all loops and of the log, on each tape: none, if nothing is kept.
    pub(super) fn words(&self) -> [u32; 2] {
        let plus = |a: [u32; 2], b: [u32; 2]| [a[0].saturating_add(b[0]), a[1].saturating_add(b[1])];
        self.loops.values().fold(self.log_words, |a, p| plus(a, p.words))
    }

    /// Whether a load gives the same when it is done again, at any time.
    pub(super) fn repeatable(&self, k: &Kernel, m: MemoryId) -> bool {
        match k.memory(m).space {
            Space::Buffer(Access::Tape) => true,
            Space::Buffer(Access::Scratch) => false,
            Space::Buffer(_) => !self.written[m.index()],
            Space::Workgroup(_) | Space::Private(_) | Space::Registers(_) | Space::Pointed { .. } => false,
        }
    }
}

fn loop_plan(normal: &NormalForm, places: &Places, op: OpId, seen: &[bool]) -> LoopPlan {
    let k = &normal.kernel;
    let r = k.regions(op)[0];
    let mut plan = LoopPlan { keep: Vec::new(), words: [0; 2] };
    for (j, arg) in k.region_args(r).skip(1).enumerate() {
        // An iteration that is taken back was run.
        let runs = normal.trip_count.get(&op).is_some_and(|&trip_count| j + 1 == trip_count);
        let keep = if !seen[arg.index()] || runs {
            Restore::Nothing
        } else if let Some(by) = steps(k, places, r, j) {
            Restore::Steps(by)
        } else {
            let (tape, n) = words(k.ty(arg));
            plan.words[tape] += n;
            Restore::Tape { first: plan.words[tape] - n }
        };
        plan.keep.push(keep);
    }
    plan
}
