//! Dead code elimination: ops without effect whose results nobody needs, and results of regions and carried values that only keep each other
//! alive. Loops that do nothing are taken out, too: a kernel is expected to end. Cost: linear.

use crate::hash::Map;

use super::rewrite::{Rewrite, Rule};
use crate::ir::{Effect, Kernel, OpId, OpKind, RegionId, Space, Ty, Value};

#[derive(Clone, Copy)]
enum Def {
    Result(OpId, u32),
    Argument(OpId, u32),
}

#[derive(Default)]
struct Exits {
    breaks: Vec<OpId>,
    continues: Vec<OpId>,
}

enum WorkItem {
    Op(OpId),
    Value(Value),
}

struct Liveness<'a> {
    k: &'a Kernel,
    defs: Vec<Def>,
    exits: Map<RegionId, Exits>,
    /// Ops that do something, or hold one that does.
    acts: Vec<bool>,
    broken: Vec<bool>,
    loaded: Vec<bool>,
    ops: Vec<bool>,
    values: Vec<bool>,
    work: Vec<WorkItem>,
}

impl Liveness<'_> {
    /// Notes definitions and effects; gives whether the region acts, and the outermost loop that it leaves.
    fn survey(&mut self, r: RegionId, loops: &mut Vec<RegionId>) -> (bool, usize) {
        let k = self.k;
        let (mut acts, mut outermost) = (false, usize::MAX);
        for &op in k.region_ops(r) {
            for (i, v) in k.results(op).enumerate() {
                self.defs[v.index()] = Def::Result(op, i as u32);
            }
            let kind = k.kind(op);
            let mut own = match kind.effect() {
                Effect::Writes(m) => {
                    let own = matches!(k.memory(m).space, Space::Private(_) | Space::Pointed { shared: false });
                    let unread = own && !self.loaded[m.index()];
                    !(unread && matches!(kind, OpKind::Store(_)))
                }
                Effect::Together => kind.is_barrier(),
                Effect::Anything => true,
                _ => kind == OpKind::Return,
            };
            if let OpKind::Break(t) | OpKind::Continue(t) = kind {
                let depth = loops.iter().position(|&l| l == t).unwrap_or(0);
                outermost = outermost.min(depth);
                let exits = self.exits.entry(t).or_default();
                if let OpKind::Break(_) = kind { exits.breaks.push(op) } else { exits.continues.push(op) }
            }
            let depth = loops.len();
            for &inner in k.regions(op) {
                for (i, v) in k.region_args(inner).enumerate() {
                    self.defs[v.index()] = Def::Argument(op, i as u32);
                }
                let repeats = matches!(kind, OpKind::Loop | OpKind::For(_));
                if repeats {
                    loops.push(inner);
                }
                let (a, o) = self.survey(inner, loops);
                loops.truncate(depth);
                // Leaving a loop that stands around this op is something that the op does.
                own |= a || o < depth;
                outermost = outermost.min(o);
            }
            own |= kind.is_structure() && !k.falls_through(op, &self.broken);
            self.acts[op.index()] = own;
            acts |= own;
        }
        (acts, outermost)
    }

    fn region(&mut self, r: RegionId) {
        for &op in self.k.region_ops(r) {
            if self.acts[op.index()] || self.k.kind(op).is_terminator() {
                self.need_op(op);
            }
        }
    }

    fn solve(&mut self) {
        self.region(self.k.body());
        while let Some(work) = self.work.pop() {
            match work {
                WorkItem::Op(op) => self.inputs(op),
                WorkItem::Value(v) => self.sources(v),
            }
        }
    }

    fn need(&mut self, v: Value) {
        if !std::mem::replace(&mut self.values[v.index()], true) {
            self.work.push(WorkItem::Value(v));
        }
    }

    fn need_op(&mut self, op: OpId) {
        if !std::mem::replace(&mut self.ops[op.index()], true) {
            self.work.push(WorkItem::Op(op));
        }
    }

    /// What a needed op needs.
    fn inputs(&mut self, op: OpId) {
        let k = self.k;
        let args = k.args(op);
        match k.kind(op) {
            OpKind::Loop => {}
            OpKind::For(_) => args[..2].iter().for_each(|&v| self.need(v)),
            kind if kind.is_terminator() => {}
            _ => args.iter().for_each(|&v| self.need(v)),
        }
        k.regions(op).iter().for_each(|&r| self.region(r));
    }

    /// What a needed value comes from.
    fn sources(&mut self, v: Value) {
        let k = self.k;
        let (op, i, result) = match self.defs[v.index()] {
            Def::Result(op, i) => (op, i as usize, true),
            Def::Argument(op, i) => (op, i as usize, false),
        };
        self.need_op(op);
        match k.kind(op) {
            OpKind::If | OpKind::Switch(_) => {
                for &r in k.regions(op) {
                    if let Some(t) = k.terminator(r).filter(|&t| k.kind(t) == OpKind::Yield) {
                        self.need(k.args(t)[i]);
                    }
                }
            }
            OpKind::Loop => {
                let exits = self.exits.remove(&k.regions(op)[0]).unwrap_or_default();
                let from = if result { &exits.breaks } else { &exits.continues };
                from.iter().for_each(|&t| self.need(k.args(t)[i]));
                if !result {
                    self.need(k.args(op)[i]);
                }
                self.exits.insert(k.regions(op)[0], exits);
            }
            OpKind::For(_) if !result && i == 0 => {}
            OpKind::For(_) => {
                // A carried value of a `for` and its result are one thing.
                let j = if result { i } else { i - 1 };
                let r = k.regions(op)[0];
                let exits = self.exits.remove(&r).unwrap_or_default();
                exits.breaks.iter().chain(&exits.continues).for_each(|&t| self.need(k.args(t)[j]));
                self.exits.insert(r, exits);
                self.need(k.args(op)[j + 2]);
                k.results(op).nth(j).into_iter().chain(k.region_args(r).nth(j + 1)).for_each(|v| self.need(v));
            }
            _ => {}
        }
    }
}

struct Dce<'a> {
    needs: Liveness<'a>,
    /// The op of each region, to find what a terminator gives its values to.
    owner: Map<RegionId, OpId>,
    around: Vec<OpId>,
}

impl Dce<'_> {
    /// The values, of those given to these, that are needed.
    fn keep(&self, rw: &Rewrite<'_>, given: &[Value], to: impl Iterator<Item = Value>) -> Vec<Value> {
        let needed = |(&v, t): (&Value, Value)| self.needs.values[t.index()].then(|| rw.get(v));
        given.iter().zip(to).filter_map(needed).collect()
    }

    fn structure(&mut self, rw: &mut Rewrite<'_>, op: OpId) {
        let old = rw.old;
        let kind = old.kind(op);
        let fixed = match kind {
            OpKind::If | OpKind::Switch(_) => 1,
            OpKind::For(_) => 2,
            _ => 0,
        };
        let mut args: Vec<Value> = old.args(op)[..fixed].iter().map(|&v| rw.get(v)).collect();
        let index = usize::from(matches!(kind, OpKind::For(_)));
        if let OpKind::Loop | OpKind::For(_) = kind {
            let inner = old.region_args(old.regions(op)[0]).skip(index);
            args.extend(self.keep(rw, &old.args(op)[fixed..], inner));
        }
        let needed = |v: &Value| self.needs.values[v.index()];
        let results: Vec<Value> = old.results(op).filter(needed).collect();
        let types: Vec<Ty> = results.iter().map(|&v| old.ty(v)).collect();
        self.around.push(op);
        let mut regions = Vec::new();
        for &r in old.regions(op) {
            let is_kept = |&(i, v): &(usize, Value)| i < index || self.needs.values[v.index()];
            let inner: Vec<Value> = old.region_args(r).enumerate().filter(is_kept).map(|(_, v)| v).collect();
            let inner_types: Vec<Ty> = inner.iter().map(|&v| old.ty(v)).collect();
            let new = rw.asm.open(&inner_types);
            inner.iter().zip(rw.asm.kernel.region_args(new)).for_each(|(&a, b)| rw.set(a, b));
            rw.set_target(r, new);
            self.owner.insert(r, op);
            rw.region(self, r);
            regions.push(rw.asm.close());
        }
        self.around.pop();
        let kind = rw.kind(op);
        rw.asm.stands_for(old, op);
        let new = rw.asm.push_structure(kind, &args, &types, &regions);
        results.iter().zip(rw.asm.kernel.results(new)).for_each(|(&a, b)| rw.set(a, b));
        if !rw.asm.falls_through(new) {
            rw.asm.push(OpKind::Unreachable, &[], &[]);
        }
    }
}

impl Rule for Dce<'_> {
    fn op(&mut self, rw: &mut Rewrite<'_>, op: OpId) {
        let old = rw.old;
        if !self.needs.ops[op.index()] {
            return;
        }
        let given = old.args(op);
        let args = match old.kind(op) {
            kind if kind.is_structure() => return self.structure(rw, op),
            OpKind::Yield => self.around.last().map(|&p| self.keep(rw, given, old.results(p))),
            OpKind::Break(r) => self.owner.get(&r).map(|&p| self.keep(rw, given, old.results(p))),
            OpKind::Continue(r) => self.owner.get(&r).map(|&p| {
                let index = usize::from(matches!(old.kind(p), OpKind::For(_)));
                self.keep(rw, given, old.region_args(r).skip(index))
            }),
            _ => return rw.copy(self, op),
        };
        let kind = rw.kind(op);
        rw.asm.push(kind, &args.unwrap_or_default(), &[]);
    }
}

pub(super) fn run(k: &Kernel) -> Option<Kernel> {
    let mut loaded = vec![false; k.memories().len()];
    let mut open = vec![k.body()];
    while let Some(r) = open.pop() {
        for &op in k.region_ops(r) {
            open.extend_from_slice(k.regions(op));
            if let Effect::Reads(m) = k.kind(op).effect() {
                loaded[m.index()] = true;
            }
        }
    }
    let mut needs = Liveness {
        k,
        defs: vec![Def::Result(OpId(0), 0); k.value_count()],
        exits: Map::default(),
        acts: vec![false; k.op_count()],
        broken: k.broken(),
        loaded,
        ops: vec![false; k.op_count()],
        values: vec![false; k.value_count()],
        work: Vec::new(),
    };
    needs.survey(k.body(), &mut Vec::new());
    needs.solve();
    Some(Rewrite::run(k, &mut Dce { needs, owner: Map::default(), around: Vec::new() }))
}
