//! Two modules that are the same but for some instructions: which these are. A change of one instruction leaves all others where they were, an
//! optimiser leaves few of them; so this is told apart by form, without running anything.

use impasto_kernel::hash::Map;
use impasto_kernel::ir::{Kernel, OpId, OpKind, RegionId, Value};

use crate::import::foreign::{Constant, Foreign, Word};
use crate::run::{ModuleProgram, is_constant};

/// An instruction of each module, in the same place, that differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DifferingPair {
    pub(super) ops: [OpId; 2],
}

/// Two programs whose instructions are the same but for some.
#[derive(Default)]
pub(super) struct AlignedPrograms {
    pub(super) differing: Vec<DifferingPair>,
    /// All instructions that stand in the same place.
    pub(super) all: Vec<(OpId, OpId)>,
}

/// Which instructions of two programs stand in the same place, and which of these differ; nothing if there is no such correspondence.
pub(super) fn aligned(a: &ModuleProgram, b: &ModuleProgram) -> Option<AlignedPrograms> {
    let mut walk = Alignment {
        a,
        b,
        tables: (Foreign::of(&a.kernel)?, Foreign::of(&b.kernel)?),
        values: Map::default(),
        regions: Map::default(),
        pairs: Vec::new(),
    };
    walk.region(a.kernel.body(), b.kernel.body())?;
    // What an instruction is given may be computed later, by an iteration before.
    let differs = |&(p, q): &(OpId, OpId)| !walk.same(p, q);
    let differing = walk.pairs.iter().filter(|p| differs(p)).map(|&(p, q)| DifferingPair { ops: [p, q] }).collect();
    Some(AlignedPrograms { differing, all: walk.pairs })
}

struct Alignment<'a> {
    a: &'a ModuleProgram,
    b: &'a ModuleProgram,
    tables: (&'a Foreign, &'a Foreign),
    /// The value of the second that stands where one of the first does.
    values: Map<Value, Value>,
    regions: Map<RegionId, RegionId>,
    pairs: Vec<(OpId, OpId)>,
}

/// The ops of a region but for constants, which stand wherever they are first used.
fn instructions(k: &Kernel, r: RegionId) -> Vec<OpId> {
    k.region_ops(r).iter().copied().filter(|&op| !is_constant(k.kind(op))).collect()
}

impl Alignment<'_> {
    fn region(&mut self, r: RegionId, s: RegionId) -> Option<()> {
        let (k, l) = (&self.a.kernel, &self.b.kernel);
        let (ops, others) = (instructions(k, r), instructions(l, s));
        if ops.len() != others.len() || k.region_args(r).len() != l.region_args(s).len() {
            return None;
        }
        self.regions.insert(r, s);
        self.values.extend(k.region_args(r).zip(l.region_args(s)));
        for (p, q) in ops.into_iter().zip(others) {
            if k.results(p).len() != l.results(q).len() || k.regions(p).len() != l.regions(q).len() {
                return None;
            }
            self.values.extend(k.results(p).zip(l.results(q)));
            self.pairs.push((p, q));
            for (&r, &s) in k.regions(p).iter().zip(l.regions(q)) {
                self.region(r, s)?;
            }
        }
        Some(())
    }

    /// Whether two instructions do the same with the same.
    fn same(&self, p: OpId, q: OpId) -> bool {
        let (k, l) = (&self.a.kernel, &self.b.kernel);
        let (args, others) = (k.args(p), l.args(q));
        let number = |k: &Kernel, v: Value| (k.scalar_of(k.ty(v)), k.scalars(k.ty(v)));
        let typed = |(v, w): (Value, Value)| number(k, v) == number(l, w);
        args.len() == others.len()
            && self.same_kind(k.kind(p), l.kind(q))
            && args.iter().zip(others).all(|(&v, &w)| self.same_value(v, w) && typed((v, w)))
            && k.results(p).zip(l.results(q)).all(typed)
    }

    fn same_kind(&self, x: OpKind, y: OpKind) -> bool {
        match (x, y) {
            (OpKind::Foreign(n, e), OpKind::Foreign(m, f)) => {
                let (Some(i), Some(j)) =
                    (self.tables.0.instructions.get(n as usize), self.tables.1.instructions.get(m as usize))
                else {
                    return false;
                };
                let same = |(x, y): (&Word, &Word)| match (x, y) {
                    (Word::Id(_), Word::Id(_)) => true,
                    _ => x == y,
                };
                e == f
                    && i.opcode == j.opcode
                    && i.words.len() == j.words.len()
                    && i.words.iter().zip(&j.words).all(same)
            }
            (OpKind::Continue(r), OpKind::Continue(s)) | (OpKind::Break(r), OpKind::Break(s)) => {
                self.regions.get(&r) == Some(&s)
            }
            (OpKind::Switch(t), OpKind::Switch(u)) => self.a.kernel.switch_cases(t) == self.b.kernel.switch_cases(u),
            _ => x == y,
        }
    }

    fn same_value(&self, v: Value, w: Value) -> bool {
        if let Some(&to) = self.values.get(&v) {
            return to == w;
        }
        match (self.a.constants.get(&v), self.b.constants.get(&w)) {
            (Some(&OpKind::Const(c)), Some(&OpKind::Const(d))) => {
                self.a.kernel.const_bits(c) == self.b.kernel.const_bits(d)
            }
            (Some(&OpKind::ForeignConst(c)), Some(&OpKind::ForeignConst(d))) => {
                match (self.tables.0.constant(c), self.tables.1.constant(d)) {
                    (Some(Constant::Outside(x)), Some(Constant::Outside(y))) => self.same_outside(x, y, 0),
                    (x, y) => x == y,
                }
            }
            (Some(OpKind::Undef), Some(OpKind::Undef)) => true,
            _ => false,
        }
    }

    /// Whether two ids outside of functions are the same variable or constant.
    fn same_outside(&self, x: u32, y: u32, level: u32) -> bool {
        use rspirv::spirv::{Decoration as D, Op as S};
        let (s, t) = (&self.a.source, &self.b.source);
        let (Some((op, w)), Some((other, u))) = (s.made(x), t.made(y)) else { return false };
        if op != other || w.len() != u.len() || level > 16 {
            return false;
        }
        match op {
            S::Variable => {
                let place = [D::DescriptorSet, D::Binding, D::BuiltIn];
                let placed = place.iter().any(|&d| s.decoration(x, d).is_some());
                w[2] == u[2]
                    && place.iter().all(|&d| s.decoration(x, d) == t.decoration(y, d))
                    // Others have nothing to be told apart by but their ids.
                    && (placed || x == y || w[2] == rspirv::spirv::StorageClass::PushConstant as u32)
            }
            S::ConstantComposite | S::SpecConstantComposite => {
                w[2..].iter().zip(&u[2..]).all(|(&x, &y)| self.same_outside(x, y, level + 1))
            }
            S::SpecConstantOp => {
                w[2] == u[2] && w[3..].iter().zip(&u[3..]).all(|(&x, &y)| x == y || self.same_outside(x, y, level + 1))
            }
            _ => w[2..] == u[2..] && s.decoration(x, D::SpecId) == t.decoration(y, D::SpecId),
        }
    }
}
