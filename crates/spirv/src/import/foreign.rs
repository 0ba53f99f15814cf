//! The table of the foreign ops of an imported kernel: instructions that the op table does not have, and types by their ids in the module.

use std::any::Any;
use std::collections::HashMap;
use std::sync::Arc;

use impasto_kernel::ir::{ForeignTable, Kernel, OpId, Scalar, Ty};

use super::grammar;

/// One word of an instruction, after its type and its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Word {
    /// A number that stands in the instruction.
    Literal(u32),
    /// The next operand of the op.
    Operand,
    /// A type, a function or a set of instructions, by its id in the module.
    Id(u32),
}

/// An instruction of a module without its operands.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Instruction {
    /// The number of its kind in SPIR-V.
    pub opcode: u16,
    /// What stands after its type and its result.
    pub words: Vec<Word>,
    /// The decorations of its result.
    pub decorations: Vec<Vec<u32>>,
    /// The type of its result by its id, where that is `void`; 0 of all others.
    pub void: u32,
}

/// A value that is a constant wherever the kernel runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Constant {
    /// What stands in the module outside of functions, by its id there: a variable, or a constant that is no plain number.
    Outside(u32),
    /// The address of an array of one invocation that stays memory: its number among the locals.
    Local(u32),
}

/// What the ops of an imported kernel refer to.
#[derive(Clone, Debug, Default)]
pub(crate) struct Foreign {
    pub(crate) instructions: Vec<Instruction>,
    numbers: HashMap<Instruction, u32>,
    /// Arrays of one invocation, as variables of the function: the id of the pointer type of each.
    pub(crate) locals: Vec<u32>,
    constants: Vec<Constant>,
    constant_numbers: HashMap<Constant, u32>,
    /// The id in the module of each type, by its number; 0 where there is none.
    pub(crate) types: Vec<u32>,
    /// Whether the module may compute with 16-bit floats, and not only load, convert and store them.
    pub(crate) computes_f16: bool,
    /// The loop controls that loops of the module have, each with its parameters. The number of a loop's op names one, from 1.
    pub(crate) loop_controls: Vec<Vec<u32>>,
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

    /// The number of a constant; equal ones have one number.
    pub(crate) fn constant_number(&mut self, constant: Constant) -> u32 {
        *self.constant_numbers.entry(constant).or_insert_with(|| {
            self.constants.push(constant);
            self.constants.len() as u32 - 1
        })
    }

    /// The constant with this number.
    pub(crate) fn constant(&self, number: u32) -> Option<Constant> {
        self.constants.get(number as usize).copied()
    }

    /// The table of an imported kernel.
    pub(crate) fn of(kernel: &Kernel) -> Option<&Foreign> {
        let table: &dyn Any = &**kernel.foreign()?;
        table.downcast_ref()
    }

    /// The table of an imported kernel, shared.
    pub(crate) fn shared(kernel: &Kernel) -> Option<Arc<Foreign>> {
        let table: Arc<dyn Any + Send + Sync> = kernel.foreign()?.clone();
        table.downcast().ok()
    }

    /// The number of a loop control with its parameters, from 1; 0 if it says nothing.
    pub(crate) fn loop_control_number(&mut self, control: &[u32]) -> u32 {
        if control.first().is_none_or(|&mask| mask == 0) {
            return 0;
        }
        let known = self.loop_controls.iter().position(|c| c == control);
        let at = known.unwrap_or_else(|| {
            self.loop_controls.push(control.to_vec());
            self.loop_controls.len() - 1
        });
        at as u32 + 1
    }

    /// The loop control of a loop of this kernel.
    pub(crate) fn loop_control(&self, kernel: &Kernel, op: OpId) -> &[u32] {
        let at = (kernel.place_number(op) as usize).checked_sub(1);
        at.and_then(|i| self.loop_controls.get(i)).map_or(&[0], Vec::as_slice)
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

impl ForeignTable for Foreign {
    fn op_text(&self, number: u32) -> String {
        grammar::name(self.instructions.get(number as usize).map_or(0, |i| i.opcode.into())).to_string()
    }

    fn const_text(&self, number: u32) -> String {
        match self.constant(number) {
            Some(Constant::Outside(id)) => format!("outside {id}"),
            Some(Constant::Local(n)) => format!("local {n}"),
            None => "outside".to_owned(),
        }
    }

    fn is_storage_only(&self, scalar: Scalar) -> bool {
        scalar == Scalar::F16 && !self.computes_f16
    }
}
