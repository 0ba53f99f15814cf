//! Sparse conditional constant propagation over regions: what is constant on every path that can run becomes a constant, also
//! around loops. The branches that this decides are taken out by folding.
//!
//! Every value begins as unknown and falls at most twice, to a constant and to varying; an op is looked at again only when an operand falls,
//! a region only when it is reached. Cost: linear in ops and operands.

use super::rewrite::{Rewrite, Rule};
use crate::eval;
use crate::ir::{Effect, Kernel, OpId, OpKind, RegionId, Scalar, Value};

#[derive(Clone, Copy, PartialEq)]
enum Fact {
    Unknown,
    Const(u64),
    Varying,
}

struct Facts<'a> {
    k: &'a Kernel,
    facts: Vec<Fact>,
    /// For each value, where its users begin in the list of users.
    first_user: Vec<u32>,
    users: Vec<OpId>,
    home: Vec<RegionId>,
    owner: Vec<Option<OpId>>,
    /// Ops of each region that were reached.
    reached: Vec<usize>,
    ran: Vec<bool>,
    goes_on: Vec<bool>,
    ops: Vec<OpId>,
    regions: Vec<RegionId>,
}

impl<'a> Facts<'a> {
    fn new(k: &'a Kernel) -> Facts<'a> {
        let mut f = Facts {
            k,
            facts: vec![Fact::Unknown; k.value_count()],
            first_user: vec![0; k.value_count() + 1],
            users: Vec::new(),
            home: vec![k.body(); k.op_count()],
            owner: vec![None; k.region_count()],
            reached: vec![0; k.region_count()],
            ran: vec![false; k.op_count()],
            goes_on: vec![false; k.op_count()],
            ops: Vec::new(),
            regions: vec![k.body()],
        };
        let mut all = Vec::new();
        let mut open = vec![k.body()];
        while let Some(r) = open.pop() {
            for &op in k.region_ops(r) {
                f.home[op.index()] = r;
                all.push(op);
                for &inner in k.regions(op) {
                    f.owner[inner.index()] = Some(op);
                    open.push(inner);
                }
            }
        }
        for &op in &all {
            k.args(op).iter().for_each(|v| f.first_user[v.index() + 1] += 1);
        }
        (1..f.first_user.len()).for_each(|i| f.first_user[i] += f.first_user[i - 1]);
        let mut next = f.first_user.clone();
        f.users = vec![OpId(0); *next.last().unwrap_or(&0) as usize];
        for &op in &all {
            for v in k.args(op) {
                f.users[next[v.index()] as usize] = op;
                next[v.index()] += 1;
            }
        }
        f
    }

    fn solve(&mut self) {
        loop {
            if let Some(op) = self.ops.pop() {
                self.visit(op);
            } else if let Some(r) = self.regions.pop() {
                self.advance(r);
            } else {
                return;
            }
        }
    }

    fn advance(&mut self, r: RegionId) {
        let ops = self.k.region_ops(r);
        let at = self.reached[r.index()];
        // What was reached last may be an op that did not go on until now.
        if at > 0 && !self.passes(ops[at - 1]) {
            return;
        }
        for &op in &ops[at..] {
            self.reached[r.index()] += 1;
            self.ran[op.index()] = true;
            self.visit(op);
            if !self.passes(op) {
                return;
            }
        }
    }

    fn passes(&self, op: OpId) -> bool {
        !self.k.kind(op).is_structure() || self.goes_on[op.index()]
    }

    fn go_on(&mut self, op: OpId) {
        if !std::mem::replace(&mut self.goes_on[op.index()], true) {
            self.regions.push(self.home[op.index()]);
        }
    }

    fn enter(&mut self, r: RegionId) {
        if self.reached[r.index()] == 0 {
            self.regions.push(r);
        }
    }

    fn meet(&mut self, v: Value, with: Fact) {
        let old = self.facts[v.index()];
        let new = match (old, with) {
            (Fact::Unknown, x) | (x, Fact::Unknown) => x,
            (Fact::Const(a), Fact::Const(b)) if a == b => old,
            _ => Fact::Varying,
        };
        if new != old {
            self.facts[v.index()] = new;
            let (a, b) = (self.first_user[v.index()] as usize, self.first_user[v.index() + 1] as usize);
            // Those that were not reached yet will see it when they are.
            self.ops.extend(self.users[a..b].iter().filter(|op| self.ran[op.index()]));
        }
    }

    fn meet_all(&mut self, to: impl Iterator<Item = Value>, from: &[Value]) {
        for (v, &a) in to.zip(from) {
            self.meet(v, self.facts[a.index()]);
        }
    }

    fn visit(&mut self, op: OpId) {
        let k = self.k;
        let args = k.args(op);
        match k.kind(op) {
            OpKind::If => match self.facts[args[0].index()] {
                Fact::Unknown => {}
                Fact::Const(c) => self.enter(k.regions(op)[usize::from(c == 0)]),
                Fact::Varying => k.regions(op).iter().for_each(|&r| self.enter(r)),
            },
            OpKind::Switch(table) => match self.facts[args[0].index()] {
                Fact::Unknown => {}
                Fact::Const(c) => {
                    let arm = k.switch_cases(table).iter().find(|x| x.0 == c).map(|x| x.1 as usize);
                    self.enter(k.regions(op)[arm.unwrap_or(k.regions(op).len() - 1)]);
                }
                Fact::Varying => k.regions(op).iter().for_each(|&r| self.enter(r)),
            },
            OpKind::Loop => {
                let r = k.regions(op)[0];
                self.meet_all(k.region_args(r), args);
                self.enter(r);
            }
            OpKind::For(_) => {
                let r = k.regions(op)[0];
                k.region_args(r).take(1).for_each(|i| self.meet(i, Fact::Varying));
                self.meet_all(k.region_args(r).skip(1), &args[2..]);
                self.meet_all(k.results(op), &args[2..]);
                self.enter(r);
                self.go_on(op);
            }
            OpKind::Yield => {
                if let Some(p) = self.owner[self.home[op.index()].index()] {
                    self.meet_all(k.results(p), args);
                    self.go_on(p);
                }
            }
            OpKind::Break(r) => {
                if let Some(p) = self.owner[r.index()] {
                    self.meet_all(k.results(p), args);
                    self.go_on(p);
                }
            }
            OpKind::Continue(r) => {
                if let Some(p) = self.owner[r.index()] {
                    let counts = matches!(k.kind(p), OpKind::For(_));
                    self.meet_all(k.region_args(r).skip(counts.into()), args);
                    if counts {
                        self.meet_all(k.results(p), args);
                    }
                }
            }
            kind => {
                let fact = self.evaluate(op, kind);
                for v in k.results(op) {
                    self.meet(v, fact);
                }
            }
        }
    }

    fn evaluate(&self, op: OpId, kind: OpKind) -> Fact {
        let k = self.k;
        let args = k.args(op);
        let fact = |i: usize| self.facts[args[i].index()];
        let scalar = |v: Value| k.ty(v).as_scalar();
        if kind.effect() != Effect::Pure {
            return Fact::Varying;
        }
        if let OpKind::Const(c) = kind {
            return Fact::Const(k.const_bits(c));
        }
        if let OpKind::Select = kind {
            match fact(0) {
                Fact::Const(c) if scalar(args[0]).is_some() => return fact(if c != 0 { 1 } else { 2 }),
                Fact::Unknown => return Fact::Unknown,
                _ => {}
            }
        }
        if args.iter().any(|a| self.facts[a.index()] == Fact::Unknown) {
            return Fact::Unknown;
        }
        let c = |i: usize| match fact(i) {
            Fact::Const(c) => Some(c),
            _ => None,
        };
        let computed = || -> Option<u64> {
            let (from, to): (Scalar, Scalar) = (scalar(*args.first()?)?, scalar(k.result(op))?);
            eval::op(kind, from, to, c)
        };
        computed().map_or(Fact::Varying, Fact::Const)
    }
}

struct Sccp<'a>(Facts<'a>);

impl Sccp<'_> {
    /// The scalar and the bits of a value that is constant, and that can be written as a constant.
    fn constant(&self, v: Value) -> Option<(Scalar, u64)> {
        let Fact::Const(bits) = self.0.facts[v.index()] else { return None };
        let scalar = self.0.k.ty(v).as_scalar().filter(|&s| self.0.k.computes(s))?;
        Some((scalar, bits))
    }

    /// A constant in place of a value that is one.
    fn settle(&self, rw: &mut Rewrite<'_>, v: Value) {
        if let Some((s, bits)) = self.constant(v) {
            let new = rw.asm.constant(s, bits);
            rw.set(v, new);
        }
    }
}

impl Rule for Sccp<'_> {
    fn op(&mut self, rw: &mut Rewrite<'_>, op: OpId) {
        let old = rw.old;
        let kind = old.kind(op);
        let pure = kind.effect() == Effect::Pure;
        if pure && !matches!(kind, OpKind::Const(_)) && self.constant(old.result(op)).is_some() {
            return self.settle(rw, old.result(op));
        }
        rw.copy(self, op);
        if kind.is_structure() && !rw.asm.ended() {
            old.results(op).for_each(|v| self.settle(rw, v));
        }
    }

    fn enter(&mut self, rw: &mut Rewrite<'_>, _: OpId, r: RegionId) {
        rw.old.region_args(r).for_each(|v| self.settle(rw, v));
    }
}

pub(super) fn run(k: &Kernel) -> Option<Kernel> {
    let mut facts = Facts::new(k);
    facts.solve();
    // Constants that were written as such are no news.
    let known = facts.facts.iter().filter(|f| matches!(f, Fact::Const(_))).count();
    let written = k.kinds().zip(&facts.ran).filter(|&(kind, &ran)| ran && matches!(kind, OpKind::Const(_))).count();
    (known > written).then(|| Rewrite::run(k, &mut Sccp(facts)))
}
