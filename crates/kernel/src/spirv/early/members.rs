//! Variables of arrays and structs, member by member, as they will be once they are taken apart: each scalar, vector or matrix in one is a *leaf*
//! with a place among the variables, so branches and loops join it alone. What is read of a variable is a value of all its leaves at that
//! time; a leaf of it is known as long as the variable keeps it.

use std::ops::Range;

use super::look::{Def, Look, NONE};
use crate::ir::{Kernel, OpId, OpKind, Shape, Ty, Value, VarId};
use crate::passes::SPLIT_LEVELS;

/// Leaves of a type that is looked at.
const MOST_LEAVES: u32 = 1 << 12;
/// Leaves of all variables.
const MOST_PLACES: usize = 1 << 24;
/// Ops that are followed from a value back to one of its leaves.
const MOST_STEPS: usize = 64;
/// When a variable was read that a loop reads which has not been walked yet.
const WITHIN: u32 = u32::MAX;

/// Where the leaves of a composite stand.
#[derive(Clone, Debug, Default)]
struct Apart {
    leaves: u32,
    /// Where each member begins, and the end.
    begins: Vec<u32>,
    depth: usize,
}

/// What is known of composites.
#[derive(Default)]
pub(super) struct Members {
    /// By type in the kernel's table; no leaves where it is none that is looked at.
    types: Vec<Apart>,
    /// By variable: its first leaf, and how many there are; none if it is not taken apart.
    places: Vec<(u32, u32)>,
    /// By leaf: its variable, and when it was assigned last; by variable: when some leaf was.
    owner: Vec<u32>,
    changed: Vec<u32>,
    any_changed: Vec<u32>,
    /// By value: when a variable was read.
    times: Vec<u32>,
    time: u32,
    /// Leaves that may still be assigned because a whole is.
    patience: usize,
    given: Vec<(VarId, u32)>,
}

impl Members {
    /// Finds what can be taken apart; the types of the leaves go behind those of the variables.
    pub(super) fn of(k: &Kernel, vars: &mut Vec<Ty>) -> Members {
        let mut m = Members { patience: 8 * k.op_count(), ..Members::default() };
        if !k.vars.iter().any(|ty| ty.table_index().is_some()) {
            return m;
        }
        for i in 0..k.shape_count() {
            let apart = m.apart(k, Ty::from_table(i));
            m.types.push(apart);
        }
        m.places = vec![(0, 0); k.vars.len()];
        m.any_changed = vec![0; k.vars.len()];
        m.times = vec![0; k.value_count()];
        for (v, &ty) in k.vars.iter().enumerate() {
            let leaves = m.leaves(ty);
            if leaves > 0 && vars.len() + leaves as usize <= MOST_PLACES {
                m.places[v] = (vars.len() as u32, leaves);
                m.add_leaves(k, ty, vars);
                m.owner.resize(vars.len() - k.vars.len(), v as u32);
            }
        }
        m.changed = vec![0; m.owner.len()];
        m
    }

    fn apart(&self, k: &Kernel, ty: Ty) -> Apart {
        let members = match k.shape(ty) {
            Shape::Array(t, n) if n <= MOST_LEAVES => vec![t; n as usize],
            Shape::Struct(members) => members,
            _ => return Apart::default(),
        };
        let mut apart = Apart { leaves: 0, begins: Vec::new(), depth: 1 };
        for t in members {
            apart.begins.push(apart.leaves);
            let inner = t.table_index().and_then(|i| self.types.get(i));
            let leaves = match inner {
                Some(inner) if k.matrix(t).is_none() => inner.leaves,
                _ => 1,
            };
            apart.leaves += leaves;
            apart.depth = apart.depth.max(1 + inner.map_or(0, |i| i.depth));
            if leaves == 0 || apart.leaves > MOST_LEAVES || apart.depth > SPLIT_LEVELS {
                return Apart::default();
            }
        }
        apart.begins.push(apart.leaves);
        apart
    }

    fn add_leaves(&self, k: &Kernel, ty: Ty, vars: &mut Vec<Ty>) {
        if self.leaves(ty) == 0 {
            return vars.push(ty);
        }
        (0..k.members(ty)).filter_map(|i| k.member(ty, i)).for_each(|t| self.add_leaves(k, t, vars));
    }

    /// How many leaves a composite has; none if it is none, or not looked at.
    fn leaves(&self, ty: Ty) -> u32 {
        self.types.get(ty.table_index().unwrap_or(usize::MAX)).map_or(0, |t| t.leaves)
    }

    /// The leaves of a member, from the first of the composite.
    fn span(&self, ty: Ty, member: u32) -> Option<(u32, u32)> {
        let begins = &self.types.get(ty.table_index()?)?.begins;
        Some((*begins.get(member as usize)?, *begins.get(member as usize + 1)?))
    }

    /// The member that a leaf is in.
    fn member(&self, ty: Ty, leaf: u32) -> Option<usize> {
        let begins = &self.types.get(ty.table_index()?)?.begins;
        begins.partition_point(|&b| b <= leaf).checked_sub(1)
    }

    /// The leaves of a variable, as variables.
    pub(super) fn places(&self, v: VarId) -> Option<Range<u32>> {
        let &(first, n) = self.places.get(v.index())?;
        (n > 0).then_some(first..first + n)
    }

    /// A leaf has another value now.
    pub(super) fn note(&mut self, leaf: usize) {
        self.changed[leaf] = self.time;
        self.any_changed[self.owner[leaf] as usize] = self.time;
    }
}

impl Look<'_> {
    /// A variable that is taken apart was read. Whether it is one.
    pub(super) fn read_members(&mut self, op: OpId, v: VarId) -> bool {
        if self.members.places(v).is_none() {
            return false;
        }
        let result = self.k.result(op);
        self.members.time += 1;
        self.members.times[result.index()] = self.members.time;
        self.comes_from(result, op);
        true
    }

    /// One member of a composite that may be known. Whether it is one.
    pub(super) fn extract(&mut self, op: OpId, x: Value, member: u32) -> bool {
        let Some((first, end)) = self.members.span(self.k.ty(x), member) else { return false };
        let result = self.k.result(op);
        if end - first == 1 && self.members.leaves(self.k.ty(result)) == 0 {
            let leaf = self.leaf(x, first);
            self.same(result, leaf);
        } else {
            self.comes_from(result, op);
        }
        true
    }

    /// The value of a leaf of a value.
    fn leaf(&self, v: Value, leaf: u32) -> u32 {
        let (k, m) = (self.k, &self.members);
        let (mut v, mut leaf) = (v, leaf);
        for _ in 0..MOST_STEPS {
            if m.leaves(k.ty(v)) == 0 {
                return self.root(v);
            }
            v = Value(self.root(v));
            let Def::Op(op) = self.def(v.0) else { return NONE };
            let (ty, args) = (k.ty(v), k.args(op));
            match (k.kind(op), args) {
                (OpKind::Get(var), _) => {
                    let Some(places) = m.places(var) else { return NONE };
                    let at = (places.start + leaf) as usize;
                    let kept = m.changed[at - k.vars.len()] < m.times[v.index()];
                    return if kept { self.vars[at] } else { NONE };
                }
                (OpKind::Insert(member), &[whole, part]) => match m.span(ty, member) {
                    Some((first, end)) if (first..end).contains(&leaf) => (v, leaf) = (part, leaf - first),
                    _ => v = whole,
                },
                (OpKind::Make, _) => {
                    let Some(member) = m.member(ty, leaf) else { return NONE };
                    let (Some(&part), Some((first, _))) = (args.get(member), m.span(ty, member as u32)) else {
                        return NONE;
                    };
                    (v, leaf) = (part, leaf - first);
                }
                (OpKind::Extract(member), &[whole]) => match m.span(k.ty(whole), member) {
                    Some((first, _)) => (v, leaf) = (whole, leaf + first),
                    None => return NONE,
                },
                _ => return NONE,
            }
        }
        NONE
    }

    /// The places of the leaves that a variable gets with a value, each with the leaf: not those that it has already, where that is seen. `kept` is
    /// whether it still has what was read of it then. Nothing, if it is not taken apart.
    fn given(&mut self, var: VarId, value: Value, kept: impl Fn(u32) -> bool) -> Option<Vec<(VarId, u32)>> {
        let places = self.members.places(var).filter(|_| self.k.ty(value) == self.types[var.index()])?;
        let mut given = std::mem::take(&mut self.members.given);
        let (k, m) = (self.k, &self.members);
        let mut add = |leaves: Range<u32>| given.extend(leaves.map(|leaf| (VarId(places.start + leaf), leaf)));
        let mut v = value;
        let mut seen = false;
        for _ in 0..MOST_STEPS {
            v = Value(self.root(v));
            let Def::Op(op) = self.def(v.0) else { break };
            match (k.kind(op), k.args(op)) {
                (OpKind::Insert(member), &[whole, _]) => {
                    let Some((first, end)) = m.span(k.ty(v), member) else { break };
                    add(first..end);
                    v = whole;
                }
                (OpKind::Get(of), _) => {
                    seen = of == var && kept(m.times[v.index()]);
                    break;
                }
                _ => break,
            }
        }
        if !seen {
            given.clear();
            self.afford(var, places.len())?;
            given.extend(places.clone().map(|place| (VarId(place), place - places.start)));
        }
        Some(given)
    }

    /// A variable becomes a composite. Whether it is taken apart.
    pub(super) fn give_members(&mut self, var: VarId, value: Value) -> bool {
        let last = self.members.any_changed.get(var.index()).copied().unwrap_or(0);
        let Some(mut given) = self.given(var, value, |time| last < time) else { return false };
        // All are found before the first one changes.
        given.iter_mut().for_each(|(_, leaf)| *leaf = self.leaf(value, *leaf));
        given.drain(..).for_each(|(v, to)| self.assign(v, to));
        self.members.given = given;
        true
    }

    /// A variable becomes something unknown. Whether it is taken apart.
    pub(super) fn lose_members(&mut self, var: VarId) -> bool {
        let Some(places) = self.members.places(var) else { return false };
        if self.afford(var, places.len()).is_none() {
            return false;
        }
        places.for_each(|v| self.assign(VarId(v), NONE));
        true
    }

    /// Takes the time for so many leaves; if there is none left, the variable is no longer looked at.
    fn afford(&mut self, var: VarId, leaves: usize) -> Option<()> {
        let left = self.members.patience.checked_sub(leaves);
        match left {
            Some(left) => self.members.patience = left,
            None => self.members.places[var.index()] = (0, 0),
        }
        left.map(|_| ())
    }

    /// Notes what an op is, in a loop that is not walked yet, so that it is seen what the loop changes of a composite.
    pub(super) fn foresee(&mut self, op: OpId, kind: OpKind) {
        let k = self.k;
        match kind {
            OpKind::Get(v) if self.members.places(v).is_some() => {
                self.members.times[k.result(op).index()] = WITHIN;
                self.comes_from(k.result(op), op);
            }
            OpKind::Insert(_) if self.members.leaves(k.ty(k.result(op))) > 0 => self.comes_from(k.result(op), op),
            _ => {}
        }
    }

    /// The places that a loop changes by assigning a variable. Nothing, if it is not taken apart.
    pub(super) fn foresee_set(&mut self, var: VarId, value: Value) -> Option<Vec<(VarId, u32)>> {
        // What was read before the loop may be older than what the variable has when it begins.
        self.given(var, value, |time| time == WITHIN)
    }

    /// A list of places that is no longer needed.
    pub(super) fn foreseen(&mut self, mut places: Vec<(VarId, u32)>) {
        places.clear();
        self.members.given = places;
    }
}
