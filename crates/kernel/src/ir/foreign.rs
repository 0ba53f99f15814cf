//! The one door for ops that the table lacks: an importer attaches its own table to the kernels that it makes, and ops name entries of it by number.
//!
//! Passes look at the [`Effect`](super::Effect) of a foreign op and at nothing else. What it is called, which instruction it is and what it
//! computes is known to whoever attached the table, who finds it again by downcasting [`Kernel::foreign`](super::Kernel::foreign).

use std::any::Any;
use std::fmt;

use super::types::Scalar;

/// The table of the foreign ops, constants and types of a kernel.
pub trait ForeignTable: Any + fmt::Debug + Send + Sync {
    /// The text of [`OpKind::Foreign`](super::OpKind::Foreign) with this number, without its operands.
    fn op_text(&self, number: u32) -> String;

    /// The text of [`OpKind::ForeignConst`](super::OpKind::ForeignConst) with this number.
    fn const_text(&self, number: u32) -> String;

    /// Whether values of this scalar can only be loaded, converted and stored, so that passes make no constants and no selects of it.
    fn is_storage_only(&self, scalar: Scalar) -> bool;
}
