//! The form that can be taken backwards: every region ends where its text ends. `continue`, `break` and `return` at depth become values: a
//! number that says how a region was left, and what the exit takes along; what stands after is run only where nothing has left. A `for`
//! that is left early carries whether it still runs and how many iterations it took, and ends at the first iteration that does not run.
//!
//! A `loop` that is never continued runs once, and is written as what stands in it: this is what an early return from a function looks like.
//! Other loops without a bound are copied as they are: if a derivative flows through one it is refused later, otherwise it is only computed again.
//! Cost: linear, plus exits times the values that they take along.

use impasto_kernel::hash::{Map, Set};
use impasto_kernel::ir::{Assembler, BinaryOp, Compare, Kernel, OpId, OpKind, RegionId, Scalar, Ty, Value};

use super::write::{BOOL, CopyMap, U32};

/// A kernel in this form.
pub(super) struct NormalForm {
    pub(super) kernel: Kernel,
    /// For each `for` that may end early: the carried value that counts its iterations.
    pub(super) trip_count: Map<OpId, usize>,
    /// The op in each of those that ends it, and the carried value that it looks at.
    pub(super) guards: Map<OpId, usize>,
    /// Reads that are written down in the log, and where; the words of one of each; where the logs end.
    pub(super) logged: Map<OpId, Value>,
    pub(super) log_words: [u32; 2],
    pub(super) log_total: [Value; 2],
}

impl NormalForm {
    pub(super) fn empty() -> NormalForm {
        NormalForm {
            kernel: Kernel::empty("", [1; 3]),
            trip_count: Map::default(),
            guards: Map::default(),
            logged: Map::default(),
            log_words: [0; 2],
            log_total: [Value(0); 2],
        }
    }
}

const FELL: u32 = 0;
const RETURNED: u32 = 1;

fn continued(depth: usize) -> u32 {
    2 + 2 * depth as u32
}

fn broken(depth: usize) -> u32 {
    3 + 2 * depth as u32
}

/// How an op may be left other than by its end: the loops that are continued or broken, by their depth, and whether by return.
#[derive(Clone, Default)]
struct ExitSet {
    loops: Vec<usize>,
    returns: bool,
}

impl ExitSet {
    fn any(&self) -> bool {
        self.returns || !self.loops.is_empty()
    }

    fn add(&mut self, other: &ExitSet) {
        self.returns |= other.returns;
        self.loops.extend_from_slice(&other.loops);
        self.loops.sort_unstable();
        self.loops.dedup();
    }
}

struct Survey<'a> {
    k: &'a Kernel,
    exits: Map<OpId, ExitSet>,
    /// The depth of each loop, and whether it is continued only at its end.
    depth: Map<RegionId, usize>,
    plain: Map<OpId, bool>,
    continued: Set<RegionId>,
}

impl Survey<'_> {
    fn region(&mut self, r: RegionId, depth: usize) -> ExitSet {
        let k = self.k;
        let mut all = ExitSet::default();
        for &op in k.region_ops(r) {
            if let OpKind::Continue(t) = k.kind(op) {
                self.continued.insert(t);
            }
            match k.kind(op) {
                OpKind::Continue(t) | OpKind::Break(t) => all.loops.extend(self.depth.get(&t)),
                OpKind::Return => all.returns = true,
                kind if kind.is_structure() => {
                    let repeats = matches!(kind, OpKind::Loop | OpKind::For(_));
                    let mut own = ExitSet::default();
                    for &inner in k.regions(op) {
                        if repeats {
                            self.depth.insert(inner, depth);
                        }
                        let exits = self.region(inner, depth + usize::from(repeats));
                        own.add(&exits);
                    }
                    if repeats {
                        let r = k.regions(op)[0];
                        own.loops.retain(|&l| l != depth);
                        let early = k.region_ops(r).split_last().is_none_or(|(&last, before)| {
                            k.kind(last) != OpKind::Continue(r) || before.iter().any(|b| self.leaves(*b, depth))
                        });
                        self.plain.insert(op, !early && !own.any());
                    }
                    all.add(&own);
                    self.exits.insert(op, own);
                }
                _ => {}
            }
        }
        all
    }

    fn leaves(&self, op: OpId, depth: usize) -> bool {
        self.exits.get(&op).is_some_and(|w| w.loops.contains(&depth))
    }
}

/// What a region gives to what stands after it: its own values, how it was left, and what the loops that it leaves take along.
struct RegionResults {
    own: Vec<Ty>,
    loops: Vec<usize>,
}

struct Exits<'a> {
    from: CopyMap<'a>,
    asm: Assembler,
    survey: Survey<'a>,
    /// The types that each loop around carries, outermost first.
    carried: Vec<Vec<Ty>>,
    trip_count: Map<OpId, usize>,
    guards: Map<OpId, usize>,
}

/// The kernel in the form that can be taken backwards; or the op that cannot, and why.
pub(super) fn normal(k: &Kernel) -> Result<NormalForm, (OpId, String)> {
    let mut survey =
        Survey { k, exits: Map::default(), depth: Map::default(), plain: Map::default(), continued: Set::default() };
    survey.region(k.body(), 0);
    let mut e = Exits {
        from: CopyMap::new(k, Value(u32::MAX)),
        asm: Assembler::new(k.header()),
        survey,
        carried: Vec::new(),
        trip_count: Map::default(),
        guards: Map::default(),
    };
    e.rest(k.region_ops(k.body()), &RegionResults { own: Vec::new(), loops: Vec::new() })?;
    e.asm.push(OpKind::Return, &[], &[]);
    Ok(NormalForm { kernel: e.asm.finish(), trip_count: e.trip_count, guards: e.guards, ..NormalForm::empty() })
}

impl Exits<'_> {
    fn want_types(&self, wants: &RegionResults) -> Vec<Ty> {
        let payload = wants.loops.iter().flat_map(|&l| self.carried[l].iter().copied());
        wants.own.iter().copied().chain([U32]).chain(payload).collect()
    }

    /// What a region gives that is left this way with these values.
    fn gives(&mut self, wants: &RegionResults, how: u32, values: &[Value]) -> Vec<Value> {
        let mut all = Vec::new();
        for &ty in &wants.own {
            let own = all.len();
            all.push(if how == FELL { values[own] } else { self.asm.zero(ty) });
        }
        all.push(self.asm.number(how));
        for &l in &wants.loops {
            let own = how == continued(l) || how == broken(l);
            for (i, ty) in self.carried[l].clone().into_iter().enumerate() {
                all.push(if own { values[i] } else { self.asm.zero(ty) });
            }
        }
        all
    }

    /// Ops up to the end of their region, and what the region gives.
    fn rest(&mut self, ops: &[OpId], wants: &RegionResults) -> Result<Vec<Value>, (OpId, String)> {
        let old = self.from.old;
        for (i, &op) in ops.iter().enumerate() {
            let kind = old.kind(op);
            self.asm.stands_for(old, op);
            match kind {
                OpKind::Yield => {
                    let values = self.from.args(op);
                    return Ok(self.gives(wants, FELL, &values));
                }
                OpKind::Continue(r) | OpKind::Break(r) => {
                    let depth = self.survey.depth.get(&r).copied().unwrap_or(0);
                    let how = if let OpKind::Break(_) = kind { broken(depth) } else { continued(depth) };
                    let values = self.from.args(op);
                    return Ok(self.gives(wants, how, &values));
                }
                OpKind::Return | OpKind::Unreachable => return Ok(self.gives(wants, RETURNED, &[])),
                _ if kind.is_structure() => {
                    let exits = self.survey.exits.get(&op).cloned().unwrap_or_default();
                    let left = match kind {
                        OpKind::Loop if !self.survey.continued.contains(&old.regions(op)[0]) => {
                            self.once(op, &exits)?
                        }
                        OpKind::Loop => {
                            self.unbounded(op, &exits)?;
                            continue;
                        }
                        _ => self.structure(op, &exits)?,
                    };
                    let Some(how) = left.first().copied() else { continue };
                    return self.guarded(&ops[i + 1..], wants, &exits, how, &left[1..]);
                }
                _ => self.copy(op),
            }
        }
        Ok(self.gives(wants, RETURNED, &[]))
    }

    /// What stands after an op that may have been left, run where it was not.
    fn guarded(
        &mut self,
        ops: &[OpId],
        wants: &RegionResults,
        exits: &ExitSet,
        how: Value,
        payload: &[Value],
    ) -> Result<Vec<Value>, (OpId, String)> {
        let types = self.want_types(wants);
        let fell = self.asm.number(FELL);
        let here = self.asm.compare(Compare::Eq, how, fell);
        self.asm.open(&[]);
        let values = self.rest(ops, wants)?;
        self.asm.push(OpKind::Yield, &values, &[]);
        let then = self.asm.close();
        self.asm.open(&[]);
        let mut values: Vec<Value> = wants.own.iter().map(|&t| self.asm.zero(t)).collect();
        values.push(how);
        for &l in &wants.loops {
            let before: usize = exits.loops.iter().take_while(|&&x| x != l).map(|&x| self.carried[x].len()).sum();
            let taken = exits.loops.contains(&l);
            for (i, ty) in self.carried[l].clone().into_iter().enumerate() {
                values.push(if taken { payload[before + i] } else { self.asm.zero(ty) });
            }
        }
        self.asm.push(OpKind::Yield, &values, &[]);
        let other = self.asm.close();
        let op = self.asm.push_structure(OpKind::If, &[here], &types, &[then, other]);
        Ok(self.asm.kernel.results(op).collect())
    }

    /// An `if`, `switch` or `for`. How it was left and what the exits take along; nothing, if it can only be left by its end.
    fn structure(&mut self, op: OpId, exits: &ExitSet) -> Result<Vec<Value>, (OpId, String)> {
        let old = self.from.old;
        if let OpKind::For(step) = old.kind(op) {
            return self.counted(op, step, exits);
        }
        let args = self.from.args(op);
        let own = self.from.types(old.results(op));
        let wants = RegionResults { own, loops: exits.loops.clone() };
        let mut regions = Vec::new();
        for &r in old.regions(op) {
            self.asm.open(&[]);
            let mut values = self.rest(old.region_ops(r), &wants)?;
            if !exits.any() {
                values.truncate(wants.own.len());
            }
            self.asm.push(OpKind::Yield, &values, &[]);
            regions.push(self.asm.close());
        }
        let mut types = self.want_types(&wants);
        if !exits.any() {
            types.truncate(wants.own.len());
        }
        let kind = self.asm.kind_of(self.from.old, op, &self.from.targets);
        self.asm.stands_for(old, op);
        let new = self.asm.push_structure(kind, &args, &types, &regions);
        let results: Vec<Value> = self.asm.kernel.results(new).collect();
        self.from.bind(old.results(op), results.iter().copied());
        Ok(results[wants.own.len()..].to_vec())
    }

    fn counted(&mut self, op: OpId, step: u32, exits: &ExitSet) -> Result<Vec<Value>, (OpId, String)> {
        let old = self.from.old;
        let r = old.regions(op)[0];
        let depth = self.carried.len();
        let carried = self.from.types(old.results(op));
        let n = carried.len();
        let plain = self.survey.plain.get(&op).copied().unwrap_or(false);
        let mut args = self.from.args(op);
        // After the carried values: whether it runs, how many iterations it took, how it was left and what that takes along.
        let mut types = carried.clone();
        if !plain {
            types.extend([BOOL, U32]);
            args.extend([self.asm.constant(Scalar::Bool, 1), self.asm.number(0)]);
            if exits.any() {
                types.push(U32);
                types.extend(exits.loops.iter().flat_map(|&l| self.carried[l].iter().copied()));
                for &ty in &types[n + 2..] {
                    args.push(self.asm.zero(ty));
                }
            }
        }
        let inner: Vec<Ty> = std::iter::once(self.asm.kernel.ty(args[0])).chain(types.iter().copied()).collect();
        let region = self.asm.open(&inner);
        let values: Vec<Value> = self.asm.kernel.region_args(region).collect();
        self.from.bind(old.region_args(r), values.iter().copied());
        let guard = (!plain).then(|| {
            self.asm.open(&[]);
            self.asm.push(OpKind::Yield, &[], &[]);
            let on = self.asm.close();
            self.asm.open(&[]);
            self.asm.push(OpKind::Break(region), &values[1..], &[]);
            let off = self.asm.close();
            self.asm.push_structure(OpKind::If, &[values[n + 1]], &[], &[on, off])
        });
        self.carried.push(carried);
        let mut loops = exits.loops.clone();
        loops.push(depth);
        let given = self.rest(old.region_ops(r), &RegionResults { own: Vec::new(), loops: loops.clone() })?;
        self.carried.pop();
        let (how, payload) = (given[0], &given[1..]);
        self.asm.stands_for(old, op);
        let own = payload.len() - n;
        let mut next = payload[own..].to_vec();
        if !plain {
            let (on, off) = (self.asm.number(continued(depth)), self.asm.number(broken(depth)));
            let (on, off) = (self.asm.compare(Compare::Eq, how, on), self.asm.compare(Compare::Eq, how, off));
            let one = self.asm.number(1);
            next.extend([on, self.asm.plus(values[n + 2], one)]);
            if exits.any() {
                let inside = self.asm.binary(BinaryOp::Or, on, off);
                let fell = self.asm.number(FELL);
                next.push(self.asm.select(inside, fell, how));
                next.extend_from_slice(&payload[..own]);
            }
        }
        self.asm.push(OpKind::Continue(region), &next, &[]);
        self.asm.close();
        let new = self.asm.push_structure(OpKind::For(step), &args, &types, &[region]);
        let results: Vec<Value> = self.asm.kernel.results(new).collect();
        self.from.bind(old.results(op), results.iter().copied());
        if let Some(guard) = guard {
            self.trip_count.insert(new, n + 1);
            self.guards.insert(guard, n);
        }
        Ok(if exits.any() { results[n + 2..].to_vec() } else { Vec::new() })
    }

    /// A loop that runs once: what stands in it, and its breaks as values.
    fn once(&mut self, op: OpId, exits: &ExitSet) -> Result<Vec<Value>, (OpId, String)> {
        let old = self.from.old;
        let r = old.regions(op)[0];
        let depth = self.carried.len();
        let args = self.from.args(op);
        self.from.bind(old.region_args(r), args.into_iter());
        let results = self.from.types(old.results(op));
        let n = results.len();
        self.carried.push(results);
        let mut loops = exits.loops.clone();
        loops.push(depth);
        let given = self.rest(old.region_ops(r), &RegionResults { own: Vec::new(), loops })?;
        self.carried.pop();
        let (how, payload) = (given[0], &given[1..]);
        let own = payload.len() - n;
        self.from.bind(old.results(op), payload[own..].iter().copied());
        if !exits.any() {
            return Ok(Vec::new());
        }
        let (off, fell) = (self.asm.number(broken(depth)), self.asm.number(FELL));
        let left = self.asm.compare(Compare::Eq, how, off);
        let how = self.asm.select(left, fell, how);
        Ok(std::iter::once(how).chain(payload[..own].iter().copied()).collect())
    }

    fn unbounded(&mut self, op: OpId, exits: &ExitSet) -> Result<(), (OpId, String)> {
        if exits.any() {
            let why = "it has no bound and is left by `return`, or to a loop around it: state a bound with `while_bounded`, or \
                       a `for` that breaks";
            return Err((op, why.to_owned()));
        }
        self.verbatim(op);
        Ok(())
    }

    fn copy(&mut self, op: OpId) {
        let (args, kind, types) = (
            self.from.args(op),
            self.asm.kind_of(self.from.old, op, &self.from.targets),
            self.from.types(self.from.old.results(op)),
        );
        let new = self.asm.push(kind, &args, &types);
        self.from.bind(self.from.old.results(op), self.asm.kernel.results(new));
    }

    fn verbatim(&mut self, op: OpId) {
        let old = self.from.old;
        let args = self.from.args(op);
        let mut regions = Vec::new();
        for &r in old.regions(op) {
            let types = self.from.types(old.region_args(r));
            let new = self.asm.open(&types);
            self.from.targets[r.index()] = new;
            self.from.bind(old.region_args(r), self.asm.kernel.region_args(new));
            for &inner in old.region_ops(r) {
                self.asm.stands_for(old, inner);
                if old.kind(inner).is_structure() { self.verbatim(inner) } else { self.copy(inner) }
            }
            regions.push(self.asm.close());
        }
        let (kind, types) = (self.asm.kind_of(self.from.old, op, &self.from.targets), self.from.types(old.results(op)));
        self.asm.stands_for(old, op);
        let new = self.asm.push_structure(kind, &args, &types, &regions);
        self.from.bind(old.results(op), self.asm.kernel.results(new));
    }
}
