//! The last look at words before they are shipped, in every build: each id below the bound is defined once and used after its definition, in its
//! own function; blocks begin and end; operands have the types that their instruction takes. It knows the instructions that
//! this compiler writes, and refuses all others. One walk, linear in the words.
//!
//! It is no validator: that a definition dominates its uses is checked as far as the order of the words tells, and decorations and
//! capabilities are not looked at. The tests ask `spirv-val` for these.

use rspirv::spirv::{MAGIC_NUMBER, Op as S};

/// Where an id is defined, and the type of its value.
#[derive(Clone, Copy, Default)]
struct Def {
    /// The place of its instruction; 0 where there is none yet.
    at: u32,
    /// The type; 0 of types and labels.
    ty: u32,
    /// The function it belongs to; 0 if all may use it.
    function: u32,
}

/// What scalars are.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Class {
    Bool,
    Int,
    Float,
}

/// A use that is looked at when everything is defined.
enum DeferredUse {
    Any(u32),
    Label(u32),
    Value { id: u32, ty: u32 },
}

struct Check<'a> {
    words: &'a [u32],
    defs: Vec<Def>,
    /// The place of the instruction that is looked at.
    at: usize,
    function: u32,
    in_function: bool,
    in_block: bool,
    later: Vec<(usize, u32, DeferredUse)>,
}

type Checked<T = ()> = Result<T, String>;

/// Whether these words are a module that may be shipped; the error says what is wrong and at which word.
pub(crate) fn check(words: &[u32]) -> Result<(), String> {
    let &[MAGIC_NUMBER, _, _, bound, _, ..] = words else { return Err("they do not begin as a module".to_owned()) };
    // An id takes more than one word to define.
    if bound == 0 || bound as usize > words.len() || bound > crate::ID_LIMIT {
        return Err(format!("the bound {bound} does not fit {} words", words.len()));
    }
    let mut c = Check {
        words,
        defs: vec![Def::default(); bound as usize],
        at: 5,
        function: 0,
        in_function: false,
        in_block: false,
        later: Vec::new(),
    };
    while c.at < words.len() {
        let length = (words[c.at] >> 16) as usize;
        let op = S::from_u32(words[c.at] & 0xFFFF);
        let (Some(op), Some(operands)) = (op, words.get(c.at + 1..c.at + length)) else {
            return Err(format!("word {}: there is no such instruction", c.at));
        };
        c.instruction(op, operands).map_err(|e| format!("word {}: {op:?}: {e}", c.at))?;
        c.at += length;
    }
    if c.in_function {
        return Err("the last function does not end".to_owned());
    }
    for (at, function, use_) in std::mem::take(&mut c.later) {
        c.function = function;
        c.look(use_).map_err(|e| format!("word {at}: {e}"))?;
    }
    match c.defs.iter().skip(1).position(|d| d.at == 0) {
        Some(i) => Err(format!("id {} is below the bound and not defined", i + 1)),
        None => Ok(()),
    }
}

fn need(ok: bool, problem: &str) -> Checked {
    if ok { Ok(()) } else { Err(problem.to_owned()) }
}

impl Check<'_> {
    fn def(&self, id: u32) -> Checked<Def> {
        match self.defs.get(id as usize) {
            Some(d) if d.at != 0 && (d.function == 0 || d.function == self.function) => Ok(*d),
            Some(d) if d.at != 0 => Err(format!("id {id} belongs to another function")),
            Some(_) => Err(format!("id {id} is used and not defined before")),
            None => Err(format!("id {id} is not below the bound")),
        }
    }

    fn define(&mut self, id: u32, ty: u32) -> Checked {
        let function = if self.in_function { self.function } else { 0 };
        let def = Def { at: self.at as u32, ty, function };
        match self.defs.get_mut(id as usize) {
            Some(d) if d.at == 0 && id != 0 => *d = def,
            Some(_) => return Err(format!("id {id} is defined twice")),
            None => return Err(format!("id {id} is not below the bound")),
        }
        Ok(())
    }

    /// The instruction that defines an id, and its operands.
    fn made(&self, id: u32) -> Checked<(S, &[u32])> {
        let at = self.def(id)?.at as usize;
        let (length, op) = ((self.words[at] >> 16) as usize, S::from_u32(self.words[at] & 0xFFFF));
        Ok((op.unwrap_or(S::Nop), &self.words[at + 1..at + length]))
    }

    /// The type of a value.
    fn ty(&self, id: u32) -> Checked<u32> {
        match self.def(id)?.ty {
            0 => Err(format!("id {id} is no value")),
            ty => Ok(ty),
        }
    }

    fn is(&self, id: u32, ty: u32) -> Checked {
        let have = self.ty(id)?;
        if have == ty { Ok(()) } else { Err(format!("id {id} has the type {have}, not {ty}")) }
    }

    /// The components of a scalar or vector: what they are, their bits, and how many.
    fn lanes(&self, ty: u32) -> Checked<(Class, u32, u32)> {
        match self.made(ty)? {
            (S::TypeBool, _) => Ok((Class::Bool, 1, 1)),
            (S::TypeInt, &[_, bits, _]) => Ok((Class::Int, bits, 1)),
            (S::TypeFloat, &[_, bits, ..]) => Ok((Class::Float, bits, 1)),
            // Arithmetic on a matrix is that of its elements.
            (S::TypeCooperativeMatrixKHR, &[_, of, ..]) => self.lanes(of),
            (S::TypeVector, &[_, of, n]) => self.lanes(of).map(|(class, bits, _)| (class, bits, n)),
            _ => Err(format!("the type {ty} is no scalar or vector")),
        }
    }

    fn is_class(&self, ty: u32, class: Class) -> Checked {
        let found = self.lanes(ty)?.0;
        if found == class { Ok(()) } else { Err(format!("the type {ty} is {found:?}, not {class:?}")) }
    }

    /// What a pointer points to, and the class of storage.
    fn pointee(&self, ty: u32) -> Checked<(u32, u32)> {
        match self.made(ty)? {
            (S::TypePointer, &[_, class, to]) => Ok((class, to)),
            _ => Err(format!("the type {ty} is no pointer")),
        }
    }

    /// The type of a member.
    fn member(&self, ty: u32, i: u32) -> Checked<u32> {
        let found = match self.made(ty)? {
            (S::TypeStruct, members) => members.get(i as usize + 1).copied(),
            (S::TypeVector, &[_, of, n]) => (i < n).then_some(of),
            (S::TypeArray, &[_, of, n]) => self.constant(n).filter(|&n| i < n).map(|_| of),
            (S::TypeRuntimeArray, &[_, of]) => Some(of),
            _ => None,
        };
        found.ok_or_else(|| format!("the type {ty} has no member {i}"))
    }

    /// The number that a constant is.
    fn constant(&self, id: u32) -> Option<u32> {
        match self.made(id) {
            Ok((S::Constant, &[_, _, n])) => Some(n),
            _ => None,
        }
    }

    fn look(&self, use_: DeferredUse) -> Checked {
        match use_ {
            DeferredUse::Any(id) => {
                self.defs.get(id as usize).filter(|d| d.at != 0).map(drop).ok_or(format!("there is no id {id}"))
            }
            DeferredUse::Label(id) => need(matches!(self.made(id)?, (S::Label, _)), "a branch leads to no block"),
            DeferredUse::Value { id, ty } => self.is(id, ty),
        }
    }

    fn later(&mut self, use_: DeferredUse) {
        self.later.push((self.at, self.function, use_));
    }

    /// All operands have the type of the result, which is of this class.
    fn same(&mut self, class: Class, ty: u32, args: &[u32]) -> Checked {
        self.is_class(ty, class)?;
        args.iter().try_for_each(|&a| self.is(a, ty))
    }

    /// A bool for each component of two operands of one type.
    fn compares(&self, class: Class, ty: u32, args: &[u32]) -> Checked {
        let &[a, b] = args else { return Err("it takes two operands".to_owned()) };
        let of = self.ty(a)?;
        self.is(b, of)?;
        self.is_class(of, class)?;
        let (found, _, n) = self.lanes(ty)?;
        need(found == Class::Bool && n == self.lanes(of)?.2, "the result is no bool for each component")
    }

    /// As many components, from one class to another; `widths` says which numbers of bits go together.
    fn converts(&self, from: Class, to: Class, widths: fn(u32, u32) -> bool, ty: u32, args: &[u32]) -> Checked {
        let &[a] = args else { return Err("it takes one operand".to_owned()) };
        let (x, y) = (self.lanes(self.ty(a)?)?, self.lanes(ty)?);
        need(x.0 == from && y.0 == to && x.2 == y.2 && widths(x.1, y.1), "the types do not convert so")
    }

    fn instruction(&mut self, op: S, w: &[u32]) -> Checked {
        let structural = matches!(op, S::Function | S::FunctionEnd | S::Label);
        need(!self.in_function || self.in_block || structural, "it stands outside of a block")?;
        match (op, w) {
            (S::Capability | S::Extension | S::MemoryModel, _) => Ok(()),
            (S::EntryPoint, &[_, main, ..]) | (S::ExecutionMode, &[main, ..]) => {
                self.later(DeferredUse::Any(main));
                Ok(())
            }
            (S::Decorate | S::MemberDecorate, &[id, ..]) => {
                self.later(DeferredUse::Any(id));
                Ok(())
            }
            (S::ExtInstImport | S::TypeVoid | S::TypeBool | S::TypeInt | S::TypeFloat, &[id, ..]) => self.define(id, 0),
            (S::TypeVector, &[id, of, n]) => {
                need((2..=4).contains(&n) && self.lanes(of)?.2 == 1, "it has two to four scalars")?;
                self.define(id, 0)
            }
            (S::TypePointer, &[id, _, to]) => {
                self.def(to)?;
                self.define(id, 0)
            }
            (
                S::TypeArray | S::TypeRuntimeArray | S::TypeStruct | S::TypeFunction | S::TypeCooperativeMatrixKHR,
                &[id, ref of @ ..],
            ) => {
                of.iter().try_for_each(|&id| self.def(id).map(drop))?;
                self.define(id, 0)
            }
            (S::Function, &[void, id, _, ty]) => {
                need(!self.in_function, "the function before does not end")?;
                need(self.made(ty)?.0 == S::TypeFunction && self.made(void)?.0 == S::TypeVoid, "it is no function")?;
                self.define(id, ty)?;
                self.function += 1;
                self.in_function = true;
                Ok(())
            }
            (S::FunctionEnd, []) => {
                need(self.in_function && !self.in_block, "a block does not end")?;
                self.in_function = false;
                Ok(())
            }
            (S::Label, &[id]) => {
                need(self.in_function && !self.in_block, "the block before does not end")?;
                self.in_block = true;
                self.define(id, 0)
            }
            (S::SelectionMerge, &[merge, _]) => {
                self.later(DeferredUse::Label(merge));
                Ok(())
            }
            (S::LoopMerge, &[merge, next, _]) => {
                self.later(DeferredUse::Label(merge));
                self.later(DeferredUse::Label(next));
                Ok(())
            }
            (S::Return | S::Unreachable | S::Branch | S::BranchConditional | S::Switch, _) => self.terminator(op, w),
            (S::Store, &[to, value, ..]) => self.is(value, self.pointee(self.ty(to)?)?.1),
            (S::ControlBarrier, ids) => ids.iter().try_for_each(|&id| self.ty(id).map(drop)),
            (S::CooperativeMatrixStoreKHR, &[to, value, ref rest @ ..]) => {
                self.pointee(self.ty(to)?)?;
                self.ty(value)?;
                rest.iter().take(2).try_for_each(|&id| self.ty(id).map(drop))
            }
            (_, &[ty, id, ref args @ ..]) => {
                self.def(ty)?;
                self.value(op, ty, args)?;
                self.define(id, ty)
            }
            _ => Err("it has other operands".to_owned()),
        }
    }

    fn terminator(&mut self, op: S, w: &[u32]) -> Checked {
        need(self.in_block, "it stands outside of a block")?;
        self.in_block = false;
        match (op, w) {
            (S::Return | S::Unreachable, []) => {}
            (S::Branch, &[to]) => self.later(DeferredUse::Label(to)),
            (S::BranchConditional, &[c, yes, no]) => {
                need(self.lanes(self.ty(c)?)? == (Class::Bool, 1, 1), "the condition is no bool")?;
                self.later(DeferredUse::Label(yes));
                self.later(DeferredUse::Label(no));
            }
            (S::Switch, &[selector, default, ref cases @ ..]) => {
                let (class, bits, n) = self.lanes(self.ty(selector)?)?;
                need(
                    (class, bits, n) == (Class::Int, 32, 1) && cases.len().is_multiple_of(2),
                    "it has no word to look at",
                )?;
                self.later(DeferredUse::Label(default));
                cases.chunks_exact(2).for_each(|case| self.later(DeferredUse::Label(case[1])));
            }
            _ => return Err("it has other operands".to_owned()),
        }
        Ok(())
    }

    /// An instruction that gives a value of this type.
    fn value(&mut self, op: S, ty: u32, args: &[u32]) -> Checked {
        use Class::{Bool, Float, Int};
        match (op, args) {
            (S::Constant, bits) => {
                let (_, width, n) = self.lanes(ty)?;
                need(n == 1 && bits.len() as u32 == width.div_ceil(32), "the number does not fit its type")
            }
            (S::ConstantTrue | S::ConstantFalse, []) => self.is_class(ty, Bool),
            (S::ConstantNull, []) => Ok(()),
            (S::Variable, &[class, ref first @ ..]) => {
                let (of, to) = self.pointee(ty)?;
                need(of == class, "it lies elsewhere than its type says")?;
                first.iter().try_for_each(|&id| self.is(id, to))
            }
            (S::CompositeConstruct, &[x]) if self.made(ty)?.0 == S::TypeCooperativeMatrixKHR => {
                need(self.lanes(self.ty(x)?)? == self.lanes(ty)?, "it is no element of the matrix")
            }
            (S::MatrixTimesScalar, &[m, x]) => {
                self.is(m, ty)?;
                need(self.lanes(self.ty(x)?)? == self.lanes(ty)?, "it is no element of the matrix")
            }
            (S::ConstantComposite | S::CompositeConstruct, parts) => {
                for (i, &part) in (0..).zip(parts) {
                    self.is(part, self.member(ty, i)?)?;
                }
                need(self.member(ty, parts.len() as u32).is_err(), "members are missing")
            }
            (S::CompositeExtract, &[from, ref path @ ..]) => {
                let found = path.iter().try_fold(self.ty(from)?, |t, &i| self.member(t, i))?;
                need(found == ty, "that member has another type")
            }
            (S::CompositeInsert, &[part, into, ref path @ ..]) => {
                self.is(into, ty)?;
                let found = path.iter().try_fold(ty, |t, &i| self.member(t, i))?;
                self.is(part, found)
            }
            (S::AccessChain, &[base, ref path @ ..]) => {
                let (class, mut to) = self.pointee(self.ty(base)?)?;
                for &i in path {
                    self.is_class(self.ty(i)?, Int)?;
                    to = self.member(
                        to,
                        if self.made(to)?.0 == S::TypeStruct { self.constant(i).unwrap_or(u32::MAX) } else { 0 },
                    )?;
                }
                need(self.pointee(ty)? == (class, to), "it points to something else")
            }
            (S::Load, &[from, ..]) => need(self.pointee(self.ty(from)?)?.1 == ty, "the pointer is to another type"),
            (S::ArrayLength, &[from, i]) => {
                let of = self.member(self.pointee(self.ty(from)?)?.1, i)?;
                need(self.made(of)?.0 == S::TypeRuntimeArray, "the array has a fixed length")?;
                self.is_class(ty, Int)
            }
            (S::Phi, from) => {
                need(from.len().is_multiple_of(2) && !from.is_empty(), "a value has no block")?;
                for one in from.chunks_exact(2) {
                    self.later(DeferredUse::Value { id: one[0], ty });
                    self.later(DeferredUse::Label(one[1]));
                }
                Ok(())
            }
            (S::Select, &[c, a, b]) => {
                self.is(a, ty)?;
                self.is(b, ty)?;
                let (class, _, n) = self.lanes(self.ty(c)?)?;
                need(class == Bool && n == self.lanes(ty)?.2, "the condition is no bool for each component")
            }
            (S::ExtInst, &[set, _, ref args @ ..]) => {
                need(self.made(set)?.0 == S::ExtInstImport, "that is no set of instructions")?;
                self.same(Float, ty, args)
            }
            (S::FAdd | S::FSub | S::FMul | S::FDiv, [_, _]) | (S::FNegate, [_]) => self.same(Float, ty, args),
            (
                S::IAdd
                | S::ISub
                | S::IMul
                | S::SDiv
                | S::UDiv
                | S::UMod
                | S::BitwiseAnd
                | S::BitwiseOr
                | S::BitwiseXor
                | S::ShiftLeftLogical
                | S::ShiftRightLogical
                | S::ShiftRightArithmetic,
                [_, _],
            )
            | (S::SNegate | S::Not | S::BitCount | S::BitReverse, [_]) => self.same(Int, ty, args),
            (S::LogicalAnd | S::LogicalOr | S::LogicalEqual | S::LogicalNotEqual, [_, _]) | (S::LogicalNot, [_]) => {
                self.same(Bool, ty, args)
            }
            (
                S::IEqual
                | S::INotEqual
                | S::SLessThan
                | S::ULessThan
                | S::SLessThanEqual
                | S::ULessThanEqual
                | S::SGreaterThan
                | S::UGreaterThan
                | S::SGreaterThanEqual
                | S::UGreaterThanEqual,
                _,
            ) => self.compares(Int, ty, args),
            (
                S::FOrdEqual
                | S::FUnordNotEqual
                | S::FOrdLessThan
                | S::FOrdLessThanEqual
                | S::FOrdGreaterThan
                | S::FOrdGreaterThanEqual,
                _,
            ) => self.compares(Float, ty, args),
            (S::ConvertFToS | S::ConvertFToU, _) => self.converts(Float, Int, |_, _| true, ty, args),
            (S::ConvertSToF | S::ConvertUToF, _) => self.converts(Int, Float, |_, _| true, ty, args),
            (S::SConvert | S::UConvert, _) => self.converts(Int, Int, |a, b| a != b, ty, args),
            (S::FConvert, _) => self.converts(Float, Float, |a, b| a != b, ty, args),
            (S::Bitcast, &[a]) => {
                let (x, y) = (self.lanes(self.ty(a)?)?, self.lanes(ty)?);
                let bits = |t: (Class, u32, u32)| u64::from(t.1) * u64::from(t.2);
                need(x.0 != Bool && y.0 != Bool && bits(x) == bits(y), "the sizes differ")
            }
            (S::AtomicCompareExchange, &[at, scope, equal, unequal, new, expected]) => {
                self.same(Int, ty, &[new, expected])?;
                [scope, equal, unequal].iter().try_for_each(|&id| self.ty(id).map(drop))?;
                need(self.pointee(self.ty(at)?)?.1 == ty, "the pointer is to another type")
            }
            (
                S::AtomicIAdd
                | S::AtomicSMin
                | S::AtomicUMin
                | S::AtomicSMax
                | S::AtomicUMax
                | S::AtomicAnd
                | S::AtomicOr
                | S::AtomicXor
                | S::AtomicExchange,
                &[at, scope, order, value],
            ) => {
                self.same(Int, ty, &[value])?;
                [scope, order].iter().try_for_each(|&id| self.ty(id).map(drop))?;
                need(self.pointee(self.ty(at)?)?.1 == ty, "the pointer is to another type")
            }
            (S::GroupNonUniformAll | S::GroupNonUniformAny, &[scope, x]) => {
                self.ty(scope)?;
                self.same(Bool, ty, &[x])
            }
            (S::GroupNonUniformBroadcastFirst, &[scope, x]) => {
                self.ty(scope)?;
                self.is(x, ty)
            }
            (S::GroupNonUniformShuffleXor, &[scope, x, mask]) => {
                self.ty(scope)?;
                self.is_class(self.ty(mask)?, Int)?;
                self.is(x, ty)
            }
            (S::GroupNonUniformFAdd | S::GroupNonUniformFMin | S::GroupNonUniformFMax, &[scope, _, x]) => {
                self.ty(scope)?;
                self.same(Float, ty, &[x])
            }
            (
                S::GroupNonUniformIAdd
                | S::GroupNonUniformSMin
                | S::GroupNonUniformUMin
                | S::GroupNonUniformSMax
                | S::GroupNonUniformUMax,
                &[scope, _, x],
            ) => {
                self.ty(scope)?;
                self.same(Int, ty, &[x])
            }
            (S::CooperativeMatrixLoadKHR, &[from, ref rest @ ..]) => {
                self.pointee(self.ty(from)?)?;
                rest.iter().take(2).try_for_each(|&id| self.ty(id).map(drop))
            }
            (S::CooperativeMatrixMulAddKHR, &[a, b, c, ..]) => {
                self.ty(a)?;
                self.ty(b)?;
                self.is(c, ty)
            }
            (S::CooperativeMatrixLengthKHR, &[of]) => self.def(of).map(drop),
            _ => Err("this compiler does not write it so".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests;
