//! The walk through a kernel as it was written, with variables as the values that they have, and joins where branches and loops meet.
//!
//! A region is walked if it is surely reached and surely stays: the branches around it depend on values that stay, the loops around it are not
//! unrolled. All else is only looked through for what it may change.

use super::class::Class;
use super::members::Members;
use super::stays::Slice;
use crate::hash::Set;
use crate::ir::{Kernel, MemoryId, OpId, OpKind, RegionId, Space, Ty, Value, VarId};

/// Regions that nest deeper are not looked at.
pub(super) const MOST_DEPTH: usize = 32;
/// Ways out of a loop that are told apart.
const MOST_EXITS: usize = 8;

/// No value.
pub(super) const NONE: u32 = u32::MAX;
/// A value that is another one: the rest is its number.
const ALIAS: u32 = 1 << 31;
/// What constants come to: the rest is its place among those. Ops have lower numbers.
const FOLDED: u32 = 1 << 30;

/// Where a value comes from.
#[derive(Clone, Copy, Debug)]
pub(super) enum Def {
    Nothing,
    Op(OpId),
    Same(u32),
    /// Constants, which come to these bits.
    Constant(u64),
}

/// A value that has no op: where a branch or a loop brings several together.
#[derive(Clone, Copy)]
pub(super) struct Join {
    pub(super) of: OpId,
    pub(super) first: u32,
    n: u32,
}

/// How a region ends.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum End {
    Yields,
    Leaves,
    Unsure,
}

/// One way out of a loop, or to its next turn: the values that it brings, and the branch that it stands in.
pub(super) struct Exit {
    values: Vec<u32>,
    pub(super) branch: Option<(u32, usize)>,
    pub(super) depth: usize,
}

impl Exit {
    pub(super) fn value(&self, i: usize) -> u32 {
        self.values.get(i).copied().unwrap_or(NONE)
    }
}

/// A loop that is being walked.
pub(super) struct Frame {
    region: RegionId,
    pub(super) vars: Vec<VarId>,
    depth: usize,
    pub(super) breaks: Vec<Exit>,
    pub(super) continues: Vec<Exit>,
    /// There may be others.
    pub(super) more_breaks: bool,
}

/// What an arm assigned: the variable, the arm, the value; and which arms yield.
type Branch = (Vec<(VarId, u32, u32)>, Vec<(u32, OpId)>);

/// Lists that are empty and used again: a large kernel has millions of branches and loops.
#[derive(Default)]
pub(super) struct Spare {
    branches: Vec<Branch>,
    values: Vec<Vec<u32>>,
    exits: Vec<Vec<Exit>>,
    pub(super) vars: Vec<Vec<VarId>>,
    pub(super) regions: Vec<RegionId>,
}

pub(super) struct Look<'a> {
    pub(super) k: &'a Kernel,
    /// Of the values of the kernel, then of the joins.
    pub(super) classes: Vec<Class>,
    defs: Vec<u32>,
    /// The bits of what constants come to.
    folded: Vec<u64>,
    joins: Vec<Join>,
    pub(super) inputs: Vec<u32>,
    /// The value that each variable has now, those that are members of others behind all others, and its type.
    pub(super) vars: Vec<u32>,
    pub(super) types: Vec<Ty>,
    pub(super) members: Members,
    pub(super) undo: Vec<(VarId, u32)>,
    /// Where each variable was met last, to take it once.
    pub(super) met: Vec<u32>,
    pub(super) meetings: u32,
    pub(super) frames: Vec<Frame>,
    /// The conditions of the branches around, with the arm.
    branches: Vec<(u32, usize)>,
    pub(super) depth: usize,
    /// Regions around that stand in place of the op that they are of.
    pub(super) taken: usize,
    /// Decisions met by what is only assumed to stay: constants may make them, in the first turn of a loop.
    pub(super) doubts: usize,
    /// Whether what comes next in the region may never be reached, and whether the outermost one has ended.
    unsure: bool,
    ended: bool,
    /// Ops that may be walked again.
    pub(super) patience: usize,
    /// What surely happens: stores that others see, and the branches and loops that hold some.
    pub(super) happens: Vec<OpId>,
    /// Stores to arrays of one invocation, which count if something is read there.
    pub(super) private: Vec<(MemoryId, OpId)>,
    /// By memory: the places that were written, and those of them that no load has asked about; whether an unknown place was written.
    written: Vec<Set<u64>>,
    unasked: Vec<Vec<u64>>,
    blurred: Vec<bool>,
    pub(super) spare: Spare,
    pub(super) slice: Slice,
    /// Whether loops with constant ends are walked, the loop of each op, and the loop around each.
    pub(super) counted: bool,
    pub(super) home: Vec<u32>,
    pub(super) around: Vec<u32>,
    pub(super) inside: u32,
}

impl<'a> Look<'a> {
    /// `counted`: also loops with constant ends, which stay if they are large enough.
    pub(super) fn at(k: &'a Kernel, counted: bool) -> Look<'a> {
        let memories = k.memories().len();
        let mut types = k.vars.clone();
        let members = Members::of(k, &mut types);
        Look {
            k,
            classes: vec![Class::UNSURE; k.value_count()],
            defs: vec![NONE; k.value_count()],
            joins: Vec::new(),
            inputs: Vec::new(),
            vars: vec![NONE; types.len()],
            undo: Vec::new(),
            met: vec![0; types.len()],
            types,
            members,
            meetings: 0,
            frames: Vec::new(),
            branches: Vec::new(),
            depth: 0,
            taken: 0,
            folded: Vec::new(),
            doubts: 0,
            unsure: false,
            ended: false,
            patience: 2 * k.op_count(),
            happens: Vec::new(),
            private: Vec::new(),
            written: vec![Set::default(); memories],
            unasked: vec![Vec::new(); memories],
            blurred: vec![false; memories],
            spare: Spare::default(),
            slice: Slice::default(),
            counted,
            home: Vec::new(),
            around: vec![0],
            inside: 0,
        }
    }

    /// Goes through ops of the outermost region, behind those that it was given before.
    pub(super) fn part(&mut self, ops: &[OpId]) {
        if !self.ended {
            self.ended = self.ops(ops).is_some();
        }
    }

    pub(super) fn class(&self, v: Value) -> Class {
        self.class_at(v.0)
    }

    pub(super) fn class_at(&self, v: u32) -> Class {
        self.classes.get(v as usize).copied().unwrap_or(Class::UNSURE)
    }

    pub(super) fn value_count(&self) -> usize {
        self.classes.len()
    }

    pub(super) fn def(&self, v: u32) -> Def {
        match self.defs.get(v as usize) {
            None | Some(&NONE) => Def::Nothing,
            Some(&d) if d & ALIAS != 0 => Def::Same(d & !ALIAS),
            Some(&d) if d & FOLDED != 0 => Def::Constant(self.folded[(d & !FOLDED) as usize]),
            Some(&d) => Def::Op(OpId(d)),
        }
    }

    pub(super) fn join(&self, v: u32) -> Option<Join> {
        let i = (v as usize).checked_sub(self.k.value_count())?;
        self.joins.get(i).copied()
    }

    pub(super) fn inputs(&self, join: Join) -> &[u32] {
        &self.inputs[join.first as usize..(join.first + join.n) as usize]
    }

    pub(super) fn is_unwritten(&mut self, m: MemoryId, at: Class) -> bool {
        let (written, unasked) = (&mut self.written[m.index()], &mut self.unasked[m.index()]);
        written.extend(unasked.drain(..));
        !self.blurred[m.index()] && !written.contains(&at.0)
    }

    /// The value that this one is.
    pub(super) fn root(&self, v: Value) -> u32 {
        match self.def(v.0) {
            Def::Same(other) => other,
            _ => v.0,
        }
    }

    pub(super) fn same(&mut self, v: Value, other: u32) {
        if other != NONE {
            self.defs[v.index()] = other | ALIAS;
            self.classes[v.index()] = self.class_at(other);
        } else {
            self.defs[v.index()] = NONE;
            self.classes[v.index()] = Class::UNSURE;
        }
    }

    /// The value is what this op gives.
    pub(super) fn comes_from(&mut self, v: Value, op: OpId) {
        self.defs[v.index()] = if op.0 < FOLDED { op.0 } else { NONE };
    }

    /// The value is what constants come to.
    pub(super) fn comes_to(&mut self, v: Value, bits: u64) {
        if self.folded.last() != Some(&bits) {
            self.folded.push(bits);
        }
        let at = self.folded.len() as u32 - 1;
        self.defs[v.index()] = if at < FOLDED { FOLDED | at } else { NONE };
    }

    /// A variable has this value now; what it had before.
    fn put(&mut self, v: VarId, to: u32) -> u32 {
        if let Some(leaf) = v.index().checked_sub(self.k.vars.len()) {
            self.members.note(leaf);
        }
        std::mem::replace(&mut self.vars[v.index()], to)
    }

    pub(super) fn assign(&mut self, v: VarId, to: u32) {
        let old = self.put(v, to);
        if self.depth > 0 {
            self.undo.push((v, old));
        }
    }

    /// Takes back what was assigned since then; tells each variable once, with what it was at the end.
    pub(super) fn take_back(&mut self, mark: usize, mut tell: impl FnMut(VarId, u32)) {
        self.meetings += 1;
        while self.undo.len() > mark {
            let Some((v, old)) = self.undo.pop() else { break };
            let now = self.put(v, old);
            if std::mem::replace(&mut self.met[v.index()], self.meetings) != self.meetings {
                tell(v, now);
            }
        }
    }

    pub(super) fn open_frame(&mut self, region: RegionId, vars: Vec<VarId>) {
        let mut exits = || self.spare.exits.pop().unwrap_or_default();
        let (breaks, continues) = (exits(), exits());
        self.frames.push(Frame { region, vars, depth: self.depth, breaks, continues, more_breaks: false });
    }

    /// A frame that is no longer needed; its variables.
    pub(super) fn close_frame(&mut self, frame: Frame) -> Vec<VarId> {
        for mut exits in [frame.breaks, frame.continues] {
            for mut exit in exits.drain(..) {
                exit.values.clear();
                self.spare.values.push(exit.values);
            }
            self.spare.exits.push(exits);
        }
        frame.vars
    }

    pub(super) fn new_join(&mut self, of: OpId, values: &[u32], class: Class) -> u32 {
        let (id, first) = (self.classes.len() as u32, self.inputs.len() as u32);
        self.inputs.extend_from_slice(values);
        self.joins.push(Join { of, first, n: values.len() as u32 });
        self.classes.push(class);
        id
    }

    /// Whether a value of this type has one id.
    pub(super) fn has_id(&self, ty: Ty) -> bool {
        ty.lanes().is_some() || self.k.matrix(ty).is_some()
    }

    /// One of these values, by what a branch decided or how a loop was left.
    pub(super) fn one_of(&mut self, op: OpId, values: &[u32], ty: Ty) -> u32 {
        let Some(&first) = values.first() else { return NONE };
        let class = self.class_at(first);
        if values.iter().any(|&v| !self.class_at(v).is_known()) {
            return NONE;
        }
        if values.iter().all(|&v| self.class_at(v) == class) {
            return first;
        }
        let joined = match (self.k.kind(op), values) {
            (OpKind::If, &[a, b]) => {
                let c = self.k.args(op).first().map_or(Class::UNSURE, |&c| self.class(c));
                self.choice(ty, c, self.class_at(a), self.class_at(b))
            }
            _ if self.has_id(ty) => {
                let of: Vec<Class> = values.iter().map(|&v| self.class_at(v)).collect();
                let words: Vec<u64> = [0xF2, op.0.into()].into_iter().chain(of.iter().map(|c| c.0)).collect();
                Class::made_of(&words, &of)
            }
            _ => Class::UNSURE,
        };
        if joined.is_known() { self.new_join(op, values, joined) } else { NONE }
    }

    /// Goes through a region that is surely reached.
    pub(super) fn region(&mut self, r: RegionId) -> End {
        let outside = std::mem::replace(&mut self.unsure, false);
        let end = self.ops(self.k.region_ops(r));
        self.unsure = outside;
        end.unwrap_or(End::Unsure)
    }

    /// Goes through ops of a region; how it ends, if it does.
    fn ops(&mut self, ops: &[OpId]) -> Option<End> {
        let k = self.k;
        for &op in ops {
            if self.unsure {
                self.skim(op);
                continue;
            }
            let (kind, args) = (k.kind(op), k.args(op));
            if self.inside != 0 {
                self.home[op.index()] = self.inside;
            }
            match (kind, args) {
                (OpKind::Var(v) | OpKind::Set(v), &[x, ..]) if self.give_members(v, x) => {}
                (OpKind::Var(v) | OpKind::Set(v), &[x, ..]) => self.assign(v, self.root(x)),
                (OpKind::Get(v), _) if self.read_members(op, v) => {}
                (OpKind::Get(v), _) => self.same(k.result(op), self.vars[v.index()]),
                (OpKind::Extract(i), &[x]) if self.extract(op, x, i) => {}
                (OpKind::Custom, &[x, ..]) => self.same(k.result(op), self.root(x)),
                (OpKind::Store(m) | OpKind::MatrixStore(m, _) | OpKind::Atomic(m, _), &[at, ..]) => {
                    self.write(op, kind, m, self.class(at));
                }
                (OpKind::Select, &[c, a, b]) if self.bits(c).is_some() => {
                    let chosen = if self.bits(c) == Some(0) { b } else { a };
                    self.same(k.result(op), self.root(chosen));
                }
                _ if kind.is_structure() => match self.decided(op, kind) {
                    Some(r) => match self.take(op, r) {
                        End::Leaves => return Some(End::Leaves),
                        end => self.unsure = end != End::Yields,
                    },
                    None => self.unsure = !self.structure(op, kind),
                },
                _ if kind.is_terminator() => return Some(self.end(op, kind)),
                _ if k.results(op).len() == 1 => {
                    let v = k.result(op);
                    self.comes_from(v, op);
                    self.classes[v.index()] = self.class_of(op, kind);
                }
                _ => {}
            }
        }
        None
    }

    fn write(&mut self, op: OpId, kind: OpKind, m: MemoryId, at: Class) {
        match self.k.memory(m).space {
            Space::Private(_) => self.private.push((m, op)),
            _ => self.happens.push(op),
        }
        match kind {
            OpKind::Store(_) if at.is_known() => self.unasked[m.index()].push(at.0),
            OpKind::Store(_) => self.blurred[m.index()] = true,
            OpKind::Atomic(..) if self.k.results(op).len() == 1 => {
                let v = self.k.result(op);
                self.classes[v.index()] = Class::source(&[0xB3, op.0.into()]);
                self.comes_from(v, op);
            }
            _ => {}
        }
    }

    fn end(&mut self, op: OpId, kind: OpKind) -> End {
        let (target, breaks) = match kind {
            OpKind::Yield => return End::Yields,
            OpKind::Break(t) => (t, true),
            OpKind::Continue(t) => (t, false),
            _ => return End::Leaves,
        };
        let mut values = self.spare.values.pop().unwrap_or_default();
        values.extend(self.k.args(op).iter().map(|&v| self.root(v)));
        let Some(frame) = self.frames.iter_mut().rev().find(|f| f.region == target) else { return End::Leaves };
        let to = if breaks { &mut frame.breaks } else { &mut frame.continues };
        if to.len() >= MOST_EXITS {
            frame.more_breaks |= breaks;
        } else {
            values.extend(frame.vars.iter().map(|v| self.vars[v.index()]));
            to.push(Exit { values, branch: self.branches.last().copied(), depth: self.depth - frame.depth });
        }
        End::Leaves
    }

    /// Whether what stands behind it is surely reached.
    fn structure(&mut self, op: OpId, kind: OpKind) -> bool {
        if self.depth + self.taken >= MOST_DEPTH {
            return self.skim(op);
        }
        let before = self.happens.len();
        let goes_on = match kind {
            OpKind::If | OpKind::Switch(_) => self.branch(op),
            OpKind::For(_) => self.counted_loop(op),
            _ => self.open_loop(op),
        };
        if self.happens.len() > before {
            self.happens.push(op);
        }
        goes_on
    }

    fn branch(&mut self, op: OpId) -> bool {
        let k = self.k;
        let condition = k.args(op).first().map_or(NONE, |&c| self.root(c));
        if !self.class_at(condition).stays() {
            return self.skim(op);
        }
        self.doubts += usize::from(self.class_at(condition).has(Class::ASSUMED));
        let (mut assigned, mut yields) = self.spare.branches.pop().unwrap_or_default();
        let mut unsure = false;
        for (arm, &r) in k.regions(op).iter().enumerate() {
            let mark = self.undo.len();
            self.depth += 1;
            self.branches.push((condition, arm));
            let end = self.region(r);
            self.branches.pop();
            let before = assigned.len();
            self.take_back(mark, |v, x| assigned.push((v, arm as u32, x)));
            self.depth -= 1;
            if end == End::Leaves {
                assigned.truncate(before);
                continue;
            }
            unsure |= end == End::Unsure;
            if let (End::Yields, Some(t)) = (end, k.terminator(r)) {
                yields.push((arm as u32, t));
            }
        }
        assigned.sort_unstable_by_key(|&(v, arm, _)| (v, arm));
        let mut values = self.spare.values.pop().unwrap_or_default();
        for group in assigned.chunk_by(|a, b| a.0 == b.0) {
            let v = group[0].0;
            let now = self.vars[v.index()];
            let mut here = group.iter().peekable();
            values.clear();
            for &(arm, _) in &yields {
                let own = here.next_if(|&&(_, a, _)| a == arm).map(|x| x.2);
                values.push(own.unwrap_or(now));
            }
            let to = if unsure { NONE } else { self.one_of(op, &values, self.types[v.index()]) };
            self.assign(v, to);
        }
        for (i, result) in k.results(op).enumerate() {
            values.clear();
            values.extend(yields.iter().map(|&(_, t)| k.args(t).get(i).map_or(NONE, |&v| self.root(v))));
            let to = if unsure { NONE } else { self.one_of(op, &values, k.ty(result)) };
            self.same(result, to);
        }
        let goes_on = !yields.is_empty();
        assigned.clear();
        yields.clear();
        values.clear();
        self.spare.branches.push((assigned, yields));
        self.spare.values.push(values);
        goes_on
    }

    /// An op that may run or not, or whose fate is unknown: what it may assign and write is unsure. Whether control surely goes on behind it.
    pub(super) fn skim(&mut self, op: OpId) -> bool {
        let k = self.k;
        let mut inner: Vec<RegionId> = Vec::new();
        let mut goes_on = self.skim_op(op, &mut inner);
        let mut open = k.regions(op).to_vec();
        while let Some(r) = open.pop() {
            for &op in k.region_ops(r) {
                goes_on &= self.skim_op(op, &mut inner);
                open.extend_from_slice(k.regions(op));
            }
        }
        if k.kind(op).is_structure() {
            k.results(op).for_each(|v| self.same(v, NONE));
        }
        goes_on
    }

    fn skim_op(&mut self, op: OpId, inner: &mut Vec<RegionId>) -> bool {
        let k = self.k;
        match k.kind(op) {
            OpKind::Var(v) | OpKind::Set(v) if self.lose_members(v) => {}
            OpKind::Var(v) | OpKind::Set(v) => self.assign(v, NONE),
            OpKind::Store(m) => self.blurred[m.index()] = true,
            OpKind::Return | OpKind::Unreachable => return false,
            OpKind::Loop => {
                inner.extend_from_slice(k.regions(op));
                return false;
            }
            OpKind::For(_) => inner.extend_from_slice(k.regions(op)),
            kind @ (OpKind::Break(t) | OpKind::Continue(t)) if !inner.contains(&t) => {
                if let Some(frame) = self.frames.iter_mut().rev().find(|f| f.region == t) {
                    frame.more_breaks |= matches!(kind, OpKind::Break(_));
                }
                return false;
            }
            _ => {}
        }
        true
    }
}
