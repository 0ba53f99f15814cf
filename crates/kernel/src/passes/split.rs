//! Variables of arrays and structs become variables of their members, so that a loop carries what it changes of an array and not the
//! array. What reads or writes one member does so alone; what uses the whole puts it together or takes it apart. Before SSA
//! construction. Cost: linear for each level of nesting, plus the members of what is used as a whole.

use super::rewrite::{Rewrite, Rule};
use crate::hash::Map;
use crate::ir::{Kernel, Members, OpId, OpKind, RegionId, Scalar, Shape, Ty, Value, VarId};

/// Arrays of arrays are taken apart to this depth.
const LEVELS: usize = 8;

/// The value of a variable, read at some time.
#[derive(Clone, Copy)]
struct Read {
    var: VarId,
    time: u32,
}

/// One member replaced, in a value that was read.
#[derive(Clone, Copy)]
struct Change {
    from: Value,
    member: u32,
    to: Value,
    /// Whether the variable becomes this at once, so that only the member need change.
    only_member: bool,
}

struct Uses<'a> {
    k: &'a Kernel,
    composite: Vec<bool>,
    count: Vec<u32>,
    reads: Map<Value, Read>,
    changes: Map<Value, Change>,
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

    /// Whether the variable still has the value that was read.
    fn is_current(&self, read: Read) -> bool {
        self.assigned[read.var.index()] < read.time && self.joined < read.time
    }

    fn region(&mut self, r: RegionId) {
        let k = self.k;
        for &op in k.region_ops(r) {
            self.time += 1;
            let (kind, args) = (k.kind(op), k.args(op));
            for (i, a) in args.iter().enumerate() {
                if let Some(&read) = self.reads.get(a) {
                    let member = matches!(kind, OpKind::Extract(_)) || (matches!(kind, OpKind::Insert(_)) && i == 0);
                    self.whole[a.index()] |= !(member && self.is_current(read));
                }
                if let Some(&change) = self.changes.get(a) {
                    let read = self.reads[&change.from];
                    let once = self.count[a.index()] == 1 && self.is_current(read);
                    let only_member = kind == OpKind::Set(read.var) && once;
                    self.changes.insert(*a, Change { only_member, ..change });
                }
            }
            match kind {
                OpKind::Get(var) if self.composite[var.index()] => {
                    self.reads.insert(k.result(op), Read { var, time: self.time });
                }
                OpKind::Insert(member) if self.reads.contains_key(&args[0]) => {
                    let change = Change { from: args[0], member, to: args[1], only_member: false };
                    self.changes.insert(k.result(op), change);
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

struct Split {
    /// The variables of the members, for each variable that is split.
    members: Map<VarId, Vec<VarId>>,
    reads: Map<Value, Read>,
    changes: Map<Value, Change>,
    whole: Vec<bool>,
}

impl Rule for Split {
    fn op(&mut self, rw: &mut Rewrite<'_>, op: OpId) {
        let (kind, args) = (rw.old.kind(op), rw.old.args(op));
        let vars = match kind {
            OpKind::Var(v) | OpKind::Set(v) | OpKind::Get(v) => self.members.get(&v),
            OpKind::Extract(_) if !self.whole[args[0].index()] => {
                self.reads.get(&args[0]).and_then(|r| self.members.get(&r.var))
            }
            _ => None,
        };
        let only_member = |v: Value| self.changes.get(&v).copied().filter(|c| c.only_member);
        match (kind, vars) {
            (OpKind::Var(_), Some(vars)) => give(rw, vars, OpKind::Var, args[0]),
            (OpKind::Set(_), Some(vars)) => match only_member(args[0]) {
                Some(change) => {
                    let x = rw.get(change.to);
                    rw.asm.push(OpKind::Set(vars[change.member as usize]), &[x], &[]);
                }
                None => give(rw, vars, OpKind::Set, args[0]),
            },
            (OpKind::Get(_), Some(vars)) => {
                let result = rw.old.result(op);
                if self.whole[result.index()] {
                    let values: Vec<Value> = vars.iter().map(|&v| read(rw, v)).collect();
                    let whole = rw.asm.value(OpKind::Make, &values, rw.old.ty(result));
                    rw.replace(op, whole);
                }
            }
            (OpKind::Extract(i), Some(vars)) => {
                let v = read(rw, vars[i as usize]);
                rw.replace(op, v);
            }
            (OpKind::Insert(_), _) if only_member(rw.old.result(op)).is_some() => {}
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
fn give(rw: &mut Rewrite<'_>, vars: &[VarId], kind: fn(VarId) -> OpKind, old: Value) {
    let v = rw.get(old);
    let made = match rw.asm.made_by(v) {
        Some((OpKind::Make, members)) => Some(members.to_vec()),
        _ => None,
    };
    for (i, &var) in vars.iter().enumerate() {
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
pub(crate) fn finds(k: &Kernel) -> bool {
    k.vars.iter().any(|&ty| is_composite(k, ty))
}

/// One level.
fn level(k: &Kernel) -> Kernel {
    let mut uses = Uses {
        k,
        composite: k.vars.iter().map(|&ty| is_composite(k, ty)).collect(),
        count: vec![0; k.value_count()],
        reads: Map::default(),
        changes: Map::default(),
        whole: vec![false; k.value_count()],
        time: 0,
        assigned: vec![0; k.vars.len()],
        joined: 0,
    };
    uses.count(k.body());
    uses.region(k.body());
    for change in uses.changes.values().filter(|c| !c.only_member) {
        uses.whole[change.from.index()] = true;
    }
    let mut rw = Rewrite::new(k, k.header());
    let mut members = Map::default();
    for v in (0..k.vars.len()).filter(|&v| uses.composite[v]) {
        let (ty, vars) = (k.vars[v], &mut rw.asm.kernel.vars);
        let first = vars.len() as u32;
        vars.extend((0..k.members(ty)).filter_map(|i| k.member(ty, i)));
        members.insert(VarId(v as u32), (first..vars.len() as u32).map(VarId).collect());
        // What stands for it no more is a variable of nothing.
        vars[v] = Ty::scalar(Scalar::Bool);
    }
    let mut split = Split { members, reads: uses.reads, changes: uses.changes, whole: uses.whole };
    rw.region(&mut split, k.body());
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
