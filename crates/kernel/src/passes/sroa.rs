//! Scalar replacement of aggregates: variables of arrays and structs become variables of their members, so that a loop carries the members that
//! it changes and not the whole array. What reads or writes one member does so alone; what uses the whole puts it together or takes it
//! apart. Before SSA construction. Cost: linear for each level of nesting, plus the members of what is used as a whole.

use std::ops::Range;

use super::rewrite::{Rewrite, Rule};
use crate::ir::{Kernel, Members, OpId, OpKind, RegionId, Scalar, Shape, Ty, Value, VarId};

/// Arrays of arrays are taken apart to this depth.
const LEVELS: usize = 8;

/// What a value is, of those that matter here.
#[derive(Clone, Copy)]
enum ValueKind {
    Other,
    /// A variable of a composite, read at some time.
    Read(VarId, u32),
    /// The `insert` of one member into such a value.
    Change(OpId),
    /// The same, and the variable becomes this at once, so that only the member need change.
    OnlyMember(OpId),
}

struct Uses<'a> {
    k: &'a Kernel,
    composite: Vec<bool>,
    /// By value: its uses, what it is, and whether a read is needed as a whole.
    count: Vec<u32>,
    is: Vec<ValueKind>,
    whole: Vec<bool>,
    time: u32,
    /// When each variable was last assigned, and when control last branched or joined.
    assigned: Vec<u32>,
    joined: u32,
}

impl Uses<'_> {
    fn count(&mut self, r: RegionId) {
        for &op in self.k.region_ops(r) {
            self.k.args(op).iter().for_each(|a| self.count[a.index()] += 1);
            self.k.regions(op).iter().for_each(|&r| self.count(r));
        }
    }

    /// The variable, if it still has the value that was read.
    fn current(&self, v: Value) -> Option<VarId> {
        match self.is[v.index()] {
            ValueKind::Read(var, time) if self.assigned[var.index()] < time && self.joined < time => Some(var),
            _ => None,
        }
    }

    fn region(&mut self, r: RegionId) {
        let k = self.k;
        for &op in k.region_ops(r) {
            self.time += 1;
            let (kind, args) = (k.kind(op), k.args(op));
            for (i, a) in args.iter().enumerate() {
                match self.is[a.index()] {
                    ValueKind::Other => {}
                    ValueKind::Read(..) => {
                        let member =
                            matches!(kind, OpKind::Extract(_)) || (matches!(kind, OpKind::Insert(_)) && i == 0);
                        self.whole[a.index()] |= !(member && self.current(*a).is_some());
                    }
                    ValueKind::Change(insert) | ValueKind::OnlyMember(insert) => {
                        let set = |var| kind == OpKind::Set(var) && self.count[a.index()] == 1;
                        let only_member = self.current(k.args(insert)[0]).is_some_and(set);
                        self.is[a.index()] =
                            if only_member { ValueKind::OnlyMember(insert) } else { ValueKind::Change(insert) };
                    }
                }
            }
            match kind {
                OpKind::Get(var) if self.composite[var.index()] => {
                    self.is[k.result(op).index()] = ValueKind::Read(var, self.time);
                }
                OpKind::Insert(_) if matches!(self.is[args[0].index()], ValueKind::Read(..)) => {
                    self.is[k.result(op).index()] = ValueKind::Change(op);
                }
                OpKind::Set(var) => self.assigned[var.index()] = self.time,
                _ => {}
            }
            for &r in k.regions(op) {
                self.time += 1;
                self.joined = self.time;
                self.region(r);
            }
            if kind.is_structure() {
                self.time += 1;
                self.joined = self.time;
            }
        }
    }
}

struct Sroa {
    /// By variable that is split: the variables of its members.
    members: Vec<Option<Range<u32>>>,
    is: Vec<ValueKind>,
    whole: Vec<bool>,
}

impl Rule for Sroa {
    fn op(&mut self, rw: &mut Rewrite<'_>, op: OpId) {
        let (kind, args) = (rw.old.kind(op), rw.old.args(op));
        let vars = match kind {
            OpKind::Var(v) | OpKind::Set(v) | OpKind::Get(v) => self.members[v.index()].clone(),
            OpKind::Extract(_) if !self.whole[args[0].index()] => match self.is[args[0].index()] {
                ValueKind::Read(v, _) => self.members[v.index()].clone(),
                _ => None,
            },
            _ => None,
        };
        match (kind, vars) {
            (OpKind::Var(_), Some(vars)) => give(rw, vars, OpKind::Var, args[0]),
            (OpKind::Set(_), Some(vars)) => match self.is[args[0].index()] {
                ValueKind::OnlyMember(insert) => {
                    let OpKind::Insert(member) = rw.old.kind(insert) else { return };
                    let x = rw.get(rw.old.args(insert)[1]);
                    rw.asm.push(OpKind::Set(VarId(vars.start + member)), &[x], &[]);
                }
                _ => give(rw, vars, OpKind::Set, args[0]),
            },
            (OpKind::Get(_), Some(vars)) => {
                let result = rw.old.result(op);
                if self.whole[result.index()] {
                    let values: Vec<Value> = vars.map(|v| read(rw, VarId(v))).collect();
                    let whole = rw.asm.value(OpKind::Make, &values, rw.old.ty(result));
                    rw.replace(op, whole);
                }
            }
            (OpKind::Extract(i), Some(vars)) => {
                let v = read(rw, VarId(vars.start + i));
                rw.replace(op, v);
            }
            (OpKind::Insert(_), _) if matches!(self.is[rw.old.result(op).index()], ValueKind::OnlyMember(_)) => {}
            _ => rw.copy(self, op),
        }
    }
}

/// The value of a variable now.
fn read(rw: &mut Rewrite<'_>, var: VarId) -> Value {
    let ty = rw.asm.kernel.vars[var.index()];
    rw.asm.value(OpKind::Get(var), &[], ty)
}

/// Gives each variable its member of a value.
fn give(rw: &mut Rewrite<'_>, vars: Range<u32>, kind: fn(VarId) -> OpKind, old: Value) {
    let v = rw.get(old);
    let made = match rw.asm.made_by(v) {
        Some((OpKind::Make, members)) => Some(members.to_vec()),
        _ => None,
    };
    for (i, var) in vars.map(VarId).enumerate() {
        let x = match &made {
            Some(members) => members[i],
            None => {
                let ty = rw.asm.kernel.vars[var.index()];
                rw.asm.value(OpKind::Extract(i as u32), &[v], ty)
            }
        };
        rw.asm.push(kind(var), &[x], &[]);
    }
}

fn is_composite(k: &Kernel, ty: Ty) -> bool {
    matches!(k.shape(ty), Shape::Array(..) | Shape::Struct(_) | Shape::Foreign(_, Members::Each(_) | Members::Same(..)))
}

/// Whether there is something to split.
fn finds(k: &Kernel) -> bool {
    k.vars.iter().any(|&ty| is_composite(k, ty))
}

/// One level.
fn level(k: &Kernel) -> Kernel {
    let mut uses = Uses {
        k,
        composite: k.vars.iter().map(|&ty| is_composite(k, ty)).collect(),
        count: vec![0; k.value_count()],
        is: vec![ValueKind::Other; k.value_count()],
        whole: vec![false; k.value_count()],
        time: 0,
        assigned: vec![0; k.vars.len()],
        joined: 0,
    };
    uses.count(k.body());
    uses.region(k.body());
    for is in &uses.is {
        if let ValueKind::Change(insert) = *is {
            uses.whole[k.args(insert)[0].index()] = true;
        }
    }
    let mut rw = Rewrite::new(k, k.header());
    let mut members = vec![None; k.vars.len()];
    for v in (0..k.vars.len()).filter(|&v| uses.composite[v]) {
        let (ty, vars) = (k.vars[v], &mut rw.asm.kernel.vars);
        let first = vars.len() as u32;
        vars.extend((0..k.members(ty)).filter_map(|i| k.member(ty, i)));
        members[v] = Some(first..vars.len() as u32);
        // What stands for it no more is a variable of nothing.
        vars[v] = Ty::scalar(Scalar::Bool);
    }
    let mut rule = Sroa { members, is: uses.is, whole: uses.whole };
    rw.region(&mut rule, k.body());
    rw.asm.finish()
}

/// Splits what is left, level by level.
pub(super) fn run(k: &Kernel) -> Option<Kernel> {
    let mut now = None;
    for _ in 0..LEVELS {
        let last = now.as_ref().unwrap_or(k);
        if !finds(last) {
            break;
        }
        now = Some(level(last));
    }
    now
}
