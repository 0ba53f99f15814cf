//! What can be wrong with a graph or a plan.

use std::fmt;

use crate::tensor::TensorType;

/// One operand of an op, as an error shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operand {
    /// The role of the operand: `x`, `w`, `bias`, ...
    pub role: String,
    /// Its type.
    pub ty: TensorType,
}

/// A list of operands with their shapes, for messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operands(pub Vec<Operand>);

impl fmt::Display for Operands {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, o) in self.0.iter().enumerate() {
            write!(f, "{}{} {}", if i == 0 { "" } else { ", " }, o.role, o.ty)?;
        }
        Ok(())
    }
}

/// A graph that cannot be built.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum GraphError {
    /// Operands that do not fit the op or each other.
    #[error("{label}: {op}({operands}): {problem}")]
    Shape {
        /// Where in the model the op stands.
        label: String,
        /// The op's name.
        op: &'static str,
        /// Its operands with their shapes.
        operands: Operands,
        /// What does not fit.
        problem: String,
    },
    /// An operand that no earlier op defines.
    #[error("%{value} is not defined before it is used by {op}")]
    Undefined {
        /// The unknown value.
        value: u32,
        /// The op that uses it.
        op: &'static str,
    },
    /// The same name twice.
    #[error("the {kind} '{name}' stands twice in the graph, as {first} and as {second}; each name is one tensor")]
    Duplicate {
        /// Input, parameter or output.
        kind: &'static str,
        /// The name.
        name: String,
        /// The type of the first.
        first: TensorType,
        /// The type of the second.
        second: TensorType,
    },
    /// A host tensor whose elements do not fill its shape.
    #[error("{ty} has {} elements, {given} were given", ty.elements())]
    WrongLength {
        /// The type asked for.
        ty: TensorType,
        /// The number of elements given.
        given: usize,
    },
    /// A part that a host tensor does not have.
    #[error("{ty} has no {range:?} of axis {axis}")]
    NoPart {
        /// The tensor.
        ty: TensorType,
        /// The axis.
        axis: usize,
        /// What was asked for.
        range: std::ops::Range<usize>,
    },
    /// Text that is no graph.
    #[error("line {line}, column {column}: {problem}")]
    Syntax {
        /// Line, from 1.
        line: usize,
        /// Column, from 1.
        column: usize,
        /// What is wrong there.
        problem: String,
    },
}

/// A plan that is refused before anything is allocated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// The backend has no kernel for an op.
    #[error("{label}: {op} is not supported here: {reason}")]
    Unsupported {
        /// Where in the model the op stands.
        label: String,
        /// The op's name.
        op: &'static str,
        /// Why.
        reason: String,
    },
    /// One tensor is larger than what a kernel may bind.
    #[error(
        "{label}: {op} needs one buffer of {need} bytes, a kernel may bind {limit}; split the work or choose another device"
    )]
    Binding {
        /// Where in the model the op stands.
        label: String,
        /// The op's name.
        op: &'static str,
        /// Bytes of the tensor.
        need: u64,
        /// The limit.
        limit: u64,
    },
    /// One tensor is larger than a single allocation may be.
    #[error(
        "{label}: {op} needs one buffer of {need} bytes, a single allocation may have {limit}; split the work or choose another device"
    )]
    Allocation {
        /// Where in the model the op stands.
        label: String,
        /// The op's name.
        op: &'static str,
        /// Bytes of the tensor.
        need: u64,
        /// The limit.
        limit: u64,
    },
    /// Everything together is larger than the memory.
    #[error(
        "{label}: {op} is where most is live: {need} bytes ({weights} of weights, {arena} of activations and scratch), the limit is {limit}; split the work or choose another device"
    )]
    Memory {
        /// Where in the model the largest moment is.
        label: String,
        /// The op at that moment.
        op: &'static str,
        /// Bytes in all.
        need: u64,
        /// Of these, weights.
        weights: u64,
        /// Of these, the arena.
        arena: u64,
        /// The limit.
        limit: u64,
    },
    /// The plan is not true: a fault of the planner, found by its verification. Nothing else is tried.
    #[error("the planner made a wrong plan, which is a fault of this program, please report it: {problem}")]
    Fault {
        /// What is wrong.
        problem: String,
    },
}

impl PlanError {
    /// Whether the planner is at fault, so that no other device, split or size is an answer.
    pub fn is_fault(&self) -> bool {
        matches!(self, PlanError::Fault { .. })
    }
}
