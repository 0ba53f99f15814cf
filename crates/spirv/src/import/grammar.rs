//! Which words of an instruction are ids, for every instruction of SPIR-V: what must be known to keep one that nothing else is known of.

use std::sync::OnceLock;

use rspirv::grammar::{INSTRUCTION_TABLE, Instruction, OperandKind as K, OperandQuantifier as Q};
use rspirv::spirv::{self, Op as S};

/// What a word of an instruction is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// The id of the type of the result.
    Type,
    /// The id of the result.
    Result,
    /// An id that is used.
    Use,
    /// A number, or a part of a text.
    Literal,
}

fn table() -> &'static [Option<&'static Instruction<'static>>] {
    static TABLE: OnceLock<Vec<Option<&'static Instruction<'static>>>> = OnceLock::new();
    TABLE.get_or_init(|| {
        let mut all = vec![None; 8192];
        for i in INSTRUCTION_TABLE.iter() {
            if let Some(slot) = all.get_mut(i.opcode as usize) {
                *slot = Some(i);
            }
        }
        all
    })
}

fn entry(opcode: u32) -> Option<&'static Instruction<'static>> {
    table().get(opcode as usize).copied().flatten()
}

/// The name of an instruction.
pub(crate) fn name(opcode: u32) -> String {
    entry(opcode).map_or_else(|| format!("instruction {opcode}"), |i| format!("Op{}", i.opname))
}

/// Whether an instruction has a result.
pub(crate) fn has_result(opcode: u32) -> bool {
    entry(opcode).is_some_and(|i| i.operands.iter().take(2).any(|o| o.kind == K::IdResult))
}

/// Whether an instruction has a result with a type.
pub(crate) fn has_type(opcode: u32) -> bool {
    entry(opcode).is_some_and(|i| i.operands.first().is_some_and(|o| o.kind == K::IdResultType))
}

/// Whether an instruction makes a type.
pub(crate) fn is_type(opcode: u32) -> bool {
    entry(opcode).is_some_and(|i| i.opname.starts_with("Type") && i.opcode != S::TypeForwardPointer)
}

/// The part of a module before its functions that an instruction stands in, in the order of the parts; nothing, if it stands in functions. Lines,
/// constants without a value and instructions of extended sets may stand in both.
pub(crate) fn part(op: S) -> Option<u8> {
    let name = entry(op as u32).map_or("", |i| i.opname);
    Some(match op {
        S::Capability => 0,
        S::Extension => 1,
        S::ExtInstImport => 2,
        S::MemoryModel => 3,
        S::EntryPoint => 4,
        S::ExecutionMode | S::ExecutionModeId => 5,
        S::String | S::Source | S::SourceExtension | S::SourceContinued => 6,
        S::Name | S::MemberName | S::ModuleProcessed => 6,
        S::Decorate | S::DecorateId | S::DecorateString | S::MemberDecorate | S::MemberDecorateString => 7,
        S::DecorationGroup | S::GroupDecorate | S::GroupMemberDecorate => 7,
        _ if ["Type", "Constant", "SpecConstant"].iter().any(|kind| name.starts_with(kind)) => 8,
        _ => return None,
    })
}

struct Walk<'a, F> {
    words: &'a [u32],
    at: usize,
    see: F,
}

/// Calls `see` with the place and the role of each word after the first. `width` gives the words of a case of a switch on this selector.
pub(crate) fn walk(
    words: &[u32],
    width: impl Fn(u32) -> usize,
    see: impl FnMut(usize, Role),
) -> Result<(), &'static str> {
    let Some(entry) = words.first().and_then(|w| entry(w & 0xFFFF)) else {
        return Err("this instruction is not known here, so the module is refused as it is");
    };
    let mut w = Walk { words, at: 1, see };
    for operand in entry.operands {
        match operand.quantifier {
            Q::One => w.one(&operand.kind, &width)?,
            Q::ZeroOrOne => {
                if w.at < words.len() {
                    w.one(&operand.kind, &width)?;
                }
            }
            Q::ZeroOrMore => {
                while w.at < words.len() {
                    w.one(&operand.kind, &width)?;
                }
            }
        }
    }
    if w.at == words.len() { Ok(()) } else { Err("it has words too many") }
}

impl<F: FnMut(usize, Role)> Walk<'_, F> {
    fn take(&mut self, role: Role) -> Result<u32, &'static str> {
        let word = *self.words.get(self.at).ok_or("it has words too few")?;
        (self.see)(self.at, role);
        self.at += 1;
        Ok(word)
    }

    fn rest(&mut self, role: Role) -> Result<(), &'static str> {
        while self.at < self.words.len() {
            self.take(role)?;
        }
        Ok(())
    }

    fn one(&mut self, kind: &K, width: &impl Fn(u32) -> usize) -> Result<(), &'static str> {
        match kind {
            K::IdResultType => self.take(Role::Type).map(drop),
            K::IdResult => self.take(Role::Result).map(drop),
            K::IdRef | K::IdScope | K::IdMemorySemantics => self.take(Role::Use).map(drop),
            K::LiteralString => loop {
                if self.take(Role::Literal)?.to_le_bytes().contains(&0) {
                    return Ok(());
                }
            },
            K::LiteralContextDependentNumber | K::LiteralFloat => {
                self.take(Role::Literal)?;
                self.rest(Role::Literal)
            }
            K::PairLiteralIntegerIdRef => {
                for _ in 0..width(self.words.get(1).copied().unwrap_or(0)) {
                    self.take(Role::Literal)?;
                }
                self.take(Role::Use).map(drop)
            }
            K::PairIdRefLiteralInteger => {
                self.take(Role::Use)?;
                self.take(Role::Literal).map(drop)
            }
            K::PairIdRefIdRef => {
                self.take(Role::Use)?;
                self.take(Role::Use).map(drop)
            }
            K::LiteralSpecConstantOpInteger => {
                // The operands of the instruction that it computes with.
                let inner = self.take(Role::Literal)?;
                let ids = match S::from_u32(inner) {
                    Some(S::CompositeExtract) => 1,
                    Some(S::CompositeInsert | S::VectorShuffle) => 2,
                    Some(_) => usize::MAX,
                    None => return Err("it computes with an instruction that there is not"),
                };
                let mut n = 0;
                while self.at < self.words.len() {
                    self.take(if n < ids { Role::Use } else { Role::Literal })?;
                    n += 1;
                }
                Ok(())
            }
            K::MemoryAccess => {
                let mask = self.take(Role::Literal)?;
                let m = spirv::MemoryAccess::from_bits_retain(mask);
                if m.contains(spirv::MemoryAccess::ALIGNED) {
                    self.take(Role::Literal)?;
                }
                for bit in [
                    spirv::MemoryAccess::MAKE_POINTER_AVAILABLE,
                    spirv::MemoryAccess::MAKE_POINTER_VISIBLE,
                    spirv::MemoryAccess::ALIAS_SCOPE_INTEL_MASK,
                    spirv::MemoryAccess::NO_ALIAS_INTEL_MASK,
                ] {
                    if m.contains(bit) {
                        self.take(Role::Use)?;
                    }
                }
                Ok(())
            }
            K::ImageOperands => {
                let mask = self.take(Role::Literal)?;
                let m = spirv::ImageOperands::from_bits_retain(mask);
                // Gradients take two; the bits that say how texels are seen or extended take none.
                use spirv::ImageOperands as I;
                let none = I::NON_PRIVATE_TEXEL | I::VOLATILE_TEXEL | I::SIGN_EXTEND | I::ZERO_EXTEND | I::NONTEMPORAL;
                let ids = (m & !none).bits().count_ones() + u32::from(m.contains(I::GRAD));
                (0..ids).try_for_each(|_| self.take(Role::Use).map(drop))
            }
            K::LoopControl => {
                self.take(Role::Literal)?;
                self.rest(Role::Literal)
            }
            K::Decoration => {
                self.take(Role::Literal)?;
                let ids = matches!(S::from_u32(self.words[0] & 0xFFFF), Some(S::DecorateId));
                self.rest(if ids { Role::Use } else { Role::Literal })
            }
            K::ExecutionMode => {
                self.take(Role::Literal)?;
                let ids = matches!(S::from_u32(self.words[0] & 0xFFFF), Some(S::ExecutionModeId));
                self.rest(if ids { Role::Use } else { Role::Literal })
            }
            // What these ask for is after their mask, and they come last.
            K::TensorAddressingOperands | K::TensorOperands => {
                self.take(Role::Literal)?;
                self.rest(Role::Use)
            }
            _ => self.take(Role::Literal).map(drop),
        }
    }
}
