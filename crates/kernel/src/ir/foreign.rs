//! What a kernel has of the module that it was imported from: instructions that the op table does not know, and types by their ids there.

use std::collections::HashMap;

use super::kernel::MemoryId;
use super::types::Ty;

/// What an instruction of a module does besides giving its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Does {
    /// Nothing: it may be repeated, removed, moved.
    Nothing,
    /// Nothing, but it is defined for some operands only: it may be removed, and not run where it would not have.
    Partial,
    /// It reads memory.
    Reads(MemoryId),
    /// It writes memory.
    Writes(MemoryId),
    /// It works with other invocations, and stays where it is.
    Together,
    /// Whatever there is.
    Anything,
}

/// One word of an instruction, behind its type and its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Word {
    /// A number that stands in the instruction.
    Literal(u32),
    /// The next operand of the op.
    Operand,
    /// A type, a function or a set of instructions, by its id in the module.
    Id(u32),
}

/// An instruction of a module without its operands.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Instruction {
    /// The number of its kind in SPIR-V.
    pub opcode: u16,
    /// What stands behind its type and its result.
    pub words: Vec<Word>,
    /// The decorations of its result.
    pub decorations: Vec<Vec<u32>>,
    /// The type of its result by its id, where that is `void`; 0 of all others.
    pub void: u32,
}

/// An array of one invocation that stays memory, as a variable of the function.
#[derive(Clone, Copy, Debug)]
pub struct Local {
    /// The id of its pointer type in the module.
    pub pointer: u32,
}

/// What the ops of an imported kernel refer to.
#[derive(Clone, Debug, Default)]
pub struct Foreign {
    pub(crate) instructions: Vec<Instruction>,
    numbers: HashMap<Instruction, u32>,
    pub(crate) locals: Vec<Local>,
    /// The id in the module of each type, by its number; 0 where there is none.
    pub(crate) types: Vec<u32>,
    /// The operands of `OpFunction`: what it returns, its id, its control, its type.
    pub(crate) function: [u32; 4],
}

impl Foreign {
    /// The number of an instruction; equal ones have one number.
    pub(crate) fn number(&mut self, instruction: Instruction) -> u32 {
        if let Some(&n) = self.numbers.get(&instruction) {
            return n;
        }
        let n = self.instructions.len() as u32;
        self.numbers.insert(instruction.clone(), n);
        self.instructions.push(instruction);
        n
    }

    /// The id of a type in the module.
    pub(crate) fn type_id(&self, ty: Ty) -> Option<u32> {
        self.types.get(ty.number()).copied().filter(|&id| id != 0)
    }

    pub(crate) fn set_type(&mut self, ty: Ty, id: u32) {
        if self.types.len() <= ty.number() {
            self.types.resize(ty.number() + 1, 0);
        }
        self.types[ty.number()] = id;
    }
}
