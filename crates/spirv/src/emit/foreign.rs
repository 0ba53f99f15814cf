//! Ops of imported kernels as instructions: each as the one that it was or could have been, without the guards of our own language.

use rspirv::spirv::Op as S;

use super::control::Emit;
use super::ops::compare;
use super::words::{Global, Mode, Words};
use crate::import::foreign::{Constant, Word};
use impasto_kernel::hash::Map;
use impasto_kernel::ir::{BinaryOp, Kernel, OpId, OpKind, Scalar, Ty, UnaryOp, Value};

/// The module that imported kernels came from: which of its ids have which new ones, in the order in which they were asked for.
#[derive(Default)]
pub(crate) struct SourceIds {
    new: Vec<u32>,
    pub(crate) order: Vec<u32>,
    /// Types and constants that the module has, by what they are.
    known: Map<Global, u32>,
    /// Whether a bool chooses between composites.
    pub(crate) selects_composites: bool,
}

impl SourceIds {
    pub(crate) fn new(bound: u32) -> SourceIds {
        SourceIds { new: vec![0; bound as usize], ..SourceIds::default() }
    }

    /// Says which id of the module is a scalar type.
    pub(crate) fn knows_scalar(&mut self, s: Scalar, id: u32) {
        self.known.entry(Global::Scalar(s)).or_insert(id);
    }

    /// Says which id of the module is a constant.
    pub(crate) fn knows_constant(&mut self, s: Scalar, bits: u64, id: u32) {
        self.known.entry(Global::Const(s, bits)).or_insert(id);
    }

    pub(super) fn known(&self, key: &Global) -> Option<u32> {
        self.known.get(key).copied()
    }
}

/// What was written of imported kernels.
pub(crate) struct ForeignWriter {
    words: Words,
}

impl ForeignWriter {
    /// The functions of these kernels.
    pub(crate) fn of<'a>(kernels: impl Iterator<Item = &'a Kernel>, outer: SourceIds) -> ForeignWriter {
        let mut words = Words::new(Mode::Write);
        words.outer = Some(outer);
        for k in kernels {
            words = Emit::run(k, words);
        }
        ForeignWriter { words }
    }

    /// The new id of one of the module.
    pub(crate) fn outside(&mut self, old: u32) -> u32 {
        self.words.outside(old)
    }

    /// The new id of one of the module, if it has one.
    pub(crate) fn has(&self, old: u32) -> Option<u32> {
        self.words.outer.as_ref().and_then(|o| o.new.get(old as usize).copied()).filter(|&id| id != 0)
    }

    /// The ids of the module that were asked for, from this one on.
    pub(crate) fn asked(&self, from: usize) -> &[u32] {
        self.words.outer.as_ref().map_or(&[], |o| &o.order[from..])
    }

    /// A new id.
    pub(crate) fn id(&mut self) -> u32 {
        self.words.id("kept")
    }

    pub(crate) fn bound(&self) -> u64 {
        self.words.ids
    }

    /// Types and constants that the module does not have.
    pub(crate) fn globals(&self) -> &[u32] {
        &self.words.parts.globals
    }

    pub(crate) fn decorations(&self) -> &[u32] {
        &self.words.parts.decorations
    }

    pub(crate) fn functions(&self) -> &[u32] {
        &self.words.parts.functions
    }
}

impl Words {
    /// The new id of what stands outside of functions in the module.
    pub(super) fn outside(&mut self, old: u32) -> u32 {
        let known = self.outer.as_ref().and_then(|o| o.new.get(old as usize).copied()).unwrap_or(0);
        if known != 0 {
            return known;
        }
        let id = self.id("module");
        if let Some(o) = &mut self.outer {
            if let Some(new) = o.new.get_mut(old as usize) {
                *new = id;
            }
            o.order.push(old);
        }
        id
    }
}

/// The instruction that an op is, on operands of this scalar with results of that one.
pub(crate) fn opcode(kind: OpKind, s: Scalar, to: Scalar) -> Option<S> {
    let pick = |float: S, signed: S, unsigned: S| match s {
        _ if s.is_float() => float,
        _ if s.is_signed() => signed,
        _ => unsigned,
    };
    let (bool_, float) = (s == Scalar::Bool, s.is_float());
    Some(match kind {
        OpKind::Unary(UnaryOp::Neg) => pick(S::FNegate, S::SNegate, S::SNegate),
        OpKind::Unary(UnaryOp::Not) if bool_ => S::LogicalNot,
        OpKind::Unary(UnaryOp::Not) => S::Not,
        OpKind::Unary(UnaryOp::CountOnes) => S::BitCount,
        OpKind::Unary(UnaryOp::ReverseBits) => S::BitReverse,
        OpKind::Binary(f) => match f {
            BinaryOp::And if bool_ => S::LogicalAnd,
            BinaryOp::Or if bool_ => S::LogicalOr,
            BinaryOp::Xor if bool_ => S::LogicalNotEqual,
            BinaryOp::Add => pick(S::FAdd, S::IAdd, S::IAdd),
            BinaryOp::Sub => pick(S::FSub, S::ISub, S::ISub),
            BinaryOp::Mul => pick(S::FMul, S::IMul, S::IMul),
            BinaryOp::Div => pick(S::FDiv, S::SDiv, S::UDiv),
            BinaryOp::Rem if float => return None,
            BinaryOp::Rem => pick(S::FRem, S::SRem, S::UMod),
            BinaryOp::And => S::BitwiseAnd,
            BinaryOp::Or => S::BitwiseOr,
            BinaryOp::Xor => S::BitwiseXor,
            BinaryOp::Shl => S::ShiftLeftLogical,
            BinaryOp::Shr => pick(S::ShiftRightLogical, S::ShiftRightArithmetic, S::ShiftRightLogical),
            BinaryOp::Min | BinaryOp::Max | BinaryOp::Pow => return None,
        },
        OpKind::Compare(c) => compare(c, s),
        OpKind::Select => S::Select,
        OpKind::Convert => match (float, to.is_float()) {
            _ if bool_ || to == Scalar::Bool => return None,
            (true, true) => S::FConvert,
            (true, false) if to.is_signed() => S::ConvertFToS,
            (true, false) => S::ConvertFToU,
            (false, true) => pick(S::ConvertUToF, S::ConvertSToF, S::ConvertUToF),
            (false, false) if s.bits() == to.bits() => S::Bitcast,
            (false, false) => pick(S::UConvert, S::SConvert, S::UConvert),
        },
        OpKind::Bitcast if !bool_ && to != Scalar::Bool => S::Bitcast,
        _ => return None,
    })
}

/// What emission must know of an imported kernel before it begins.
#[derive(Default)]
pub(super) struct ForeignSurvey {
    defs: Vec<Option<OpId>>,
    /// Members that nobody needs by themselves.
    skipped: Vec<bool>,
    /// Values that are constants of the module.
    constant: Vec<bool>,
    pub(super) locals: Vec<u32>,
}

impl ForeignSurvey {
    pub(super) fn of(k: &Kernel) -> ForeignSurvey {
        let mut defs = vec![None; k.value_count()];
        let mut all = Vec::new();
        let mut open = vec![k.body()];
        while let Some(r) = open.pop() {
            for &op in k.region_ops(r) {
                all.push(op);
                k.results(op).for_each(|v| defs[v.index()] = Some(op));
                open.extend_from_slice(k.regions(op));
            }
        }
        let mut a = ForeignSurvey {
            defs,
            skipped: vec![false; k.value_count()],
            constant: vec![false; k.value_count()],
            locals: Vec::new(),
        };
        let mut needed = vec![false; k.value_count()];
        for &op in &all {
            match k.kind(op) {
                OpKind::Extract(_) => {
                    let from = k.args(op)[0];
                    // The member of a member is taken from the whole.
                    if !matches!(a.made_by(k, from), Some((OpKind::Extract(_), _))) {
                        needed[from.index()] = true;
                    }
                }
                OpKind::Make => {
                    let pieces = a.pieces(k, op);
                    match pieces {
                        Some(_) => {}
                        None => k.args(op).iter().for_each(|v| needed[v.index()] = true),
                    }
                }
                _ => k.args(op).iter().for_each(|v| needed[v.index()] = true),
            }
        }
        for &op in &all {
            if let OpKind::Extract(_) = k.kind(op) {
                let v = k.result(op).index();
                a.skipped[v] = !needed[v];
            }
        }
        a
    }

    fn made_by<'k>(&self, k: &'k Kernel, v: Value) -> Option<(OpKind, &'k [Value])> {
        self.defs[v.index()].map(|op| (k.kind(op), k.args(op)))
    }

    /// The composite that a value is a member of, and which.
    fn member_of(&self, k: &Kernel, v: Value) -> Option<(Value, u32)> {
        match self.made_by(k, v)? {
            (OpKind::Extract(i), from) => Some((from[0], i)),
            _ => None,
        }
    }

    /// The one or two vectors, and the components of them, that a vector is made of.
    fn pieces(&self, k: &Kernel, op: OpId) -> Option<(Value, Value, Vec<u32>)> {
        let ty = k.ty(k.result(op));
        let (_, n) = ty.lanes()?;
        let mut sources: Vec<Value> = Vec::new();
        let mut picks = Vec::new();
        for &v in k.args(op) {
            let (from, i) = self.member_of(k, v)?;
            k.ty(from).lanes().filter(|l| l.1 > 1)?;
            // A member of a member has no vector of its own.
            if matches!(self.made_by(k, from), Some((OpKind::Extract(_), _))) {
                return None;
            }
            let at = match sources.iter().position(|&s| s == from) {
                Some(at) => at,
                None if sources.len() < 2 => {
                    sources.push(from);
                    sources.len() - 1
                }
                None => return None,
            };
            picks.push((at, i));
        }
        let first = *sources.first()?;
        let second = sources.get(1).copied().unwrap_or(first);
        let before = k.ty(first).lanes()?.1;
        let picks: Vec<u32> = picks.into_iter().map(|(at, i)| if at == 0 { i } else { before + i }).collect();
        (n > 1).then_some((first, second, picks))
    }
}

impl Emit<'_> {
    /// Arrays of the invocation, as variables of the function; only those that are used.
    pub(super) fn local_variables(&mut self) {
        let k = self.k;
        let Some(foreign) = self.foreign else { return };
        let mut used = vec![false; foreign.locals.len()];
        let mut open = vec![k.body()];
        while let Some(r) = open.pop() {
            for &op in k.region_ops(r) {
                open.extend_from_slice(k.regions(op));
                if let OpKind::ForeignConst(n) = k.kind(op)
                    && let Some(Constant::Local(n)) = foreign.constant(n)
                {
                    used[n as usize] = true;
                }
            }
        }
        for (&pointer, used) in foreign.locals.iter().zip(used) {
            let mut id = 0;
            if used {
                let pointer = self.w.outside(pointer);
                id = self.w.id("locals");
                self.w.push(S::Variable, &[pointer, id, rspirv::spirv::StorageClass::Function as u32]);
            }
            self.ahead.locals.push(id);
        }
    }

    /// An op without regions of an imported kernel; the id of its result.
    pub(super) fn foreign(&mut self, op: OpId, args: &[u32], ty: Ty) -> u32 {
        let k = self.k;
        let kind = k.kind(op);
        let by = kind.name();
        let result = k.results(op).next();
        let lanes = |ty: Ty| ty.lanes().map_or(Scalar::U32, |l| l.0);
        match kind {
            OpKind::Const(c) => {
                if let Some(v) = result {
                    self.ahead.constant[v.index()] = true;
                }
                self.w.constant(lanes(ty), k.const_bits(c))
            }
            OpKind::Undef => {
                let t = self.w.ty(k, ty);
                self.w.once(Global::Undef(t), "constants", |w, id| w.global(S::Undef, &[t, id]))
            }
            OpKind::ForeignConst(n) => match self.foreign.and_then(|f| f.constant(n)) {
                Some(Constant::Outside(old)) => self.w.outside(old),
                Some(Constant::Local(n)) => self.ahead.locals.get(n as usize).copied().unwrap_or(0),
                None => 0,
            },
            OpKind::Select => self.choose(by, ty, k.ty(k.args(op)[0]), args),
            OpKind::Unary(_) | OpKind::Binary(_) | OpKind::Compare(_) | OpKind::Convert | OpKind::Bitcast => {
                let s = lanes(k.ty(k.args(op)[0]));
                match opcode(kind, s, lanes(ty)) {
                    Some(code) => self.make(by, code, ty, args),
                    None => 0,
                }
            }
            OpKind::Make => self.composite(op, args, ty),
            OpKind::Extract(_) => {
                let v = k.result(op);
                if self.ahead.skipped[v.index()] {
                    return 0;
                }
                let mut path = Vec::new();
                let mut whole = v;
                while let Some((from, i)) = self.ahead.member_of(k, whole) {
                    path.push(i);
                    whole = from;
                }
                path.push(self.value(whole));
                path.reverse();
                self.make(by, S::CompositeExtract, ty, &path)
            }
            OpKind::Insert(i) => self.make(by, S::CompositeInsert, ty, &[args[1], args[0], i]),
            OpKind::Load(_) => self.make(by, S::Load, ty, args),
            OpKind::Store(_) => {
                self.w.push(S::Store, args);
                0
            }
            OpKind::Foreign(n, _) => self.instruction(n, args, result.map(|_| ty)),
            _ => 0,
        }
    }

    fn instruction(&mut self, n: u32, args: &[u32], ty: Option<Ty>) -> u32 {
        let k = self.k;
        let Some(i) = self.foreign.and_then(|f| f.instructions.get(n as usize)) else { return 0 };
        let mut words = Vec::with_capacity(i.words.len() + 2);
        let mut id = 0;
        if let Some(ty) = ty {
            let t = if i.void != 0 { self.w.outside(i.void) } else { self.w.ty(k, ty) };
            id = self.w.id("foreign");
            words.extend([t, id]);
        }
        let mut args = args.iter();
        for word in &i.words {
            words.push(match *word {
                Word::Literal(n) => n,
                Word::Id(old) => self.w.outside(old),
                Word::Operand => args.next().copied().unwrap_or(0),
            });
        }
        if let Some(code) = S::from_u32(i.opcode.into()) {
            self.w.push(code, &words);
        }
        for d in &i.decorations {
            self.w.decorate(id, d);
        }
        id
    }

    /// Before version 1.4 a bool for each component chooses.
    fn choose(&mut self, by: &'static str, ty: Ty, condition: Ty, args: &[u32]) -> u32 {
        let mut c = args[0];
        let whole = self.w.outer.as_ref().is_some_and(|o| o.selects_composites);
        let bools = ty.lanes().and_then(|(_, n)| Ty::vector(Scalar::Bool, n).map(|bools| (bools, n)));
        if let (Some((bools, n)), false, true) = (bools, whole, condition == Ty::scalar(Scalar::Bool)) {
            c = self.make(by, S::CompositeConstruct, bools, &vec![c; n as usize]);
        }
        self.make(by, S::Select, ty, &[c, args[1], args[2]])
    }

    fn composite(&mut self, op: OpId, args: &[u32], ty: Ty) -> u32 {
        let k = self.k;
        if k.args(op).iter().all(|v| self.ahead.constant[v.index()]) {
            self.ahead.constant[k.result(op).index()] = true;
            let t = self.w.ty(k, ty);
            let key = Global::Composite(t, args.to_vec());
            return self
                .w
                .once(key, "constants", |w, id| w.global(S::ConstantComposite, &[&[t, id][..], args].concat()));
        }
        if let Some((a, b, picks)) = self.ahead.pieces(k, op) {
            let operands = [&[self.value(a), self.value(b)][..], &picks].concat();
            return self.make("make", S::VectorShuffle, ty, &operands);
        }
        self.make("make", S::CompositeConstruct, ty, args)
    }
}
