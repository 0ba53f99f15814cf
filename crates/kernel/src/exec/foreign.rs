//! How foreign ops get their meaning on the executor.

use super::{Executor, Launch, Mask, Stop};
use crate::ir::OpId;

/// Runs the foreign ops of an imported kernel, and its loads and stores, which go through pointers of the importer's own.
pub trait ForeignExecutor {
    /// Begins a workgroup with so many invocations: nothing is left of the last one. The error names what cannot be run.
    fn begin_workgroup(&mut self, lanes: usize) -> Result<(), String>;

    /// Runs one op for all active invocations.
    fn run(&mut self, machine: &mut Executor<'_>, op: OpId, active: Mask, launch: &Launch) -> Result<(), Stop>;

    /// The ops that [`observe`](ForeignExecutor::observe) is called for, by their index; none beyond the end.
    fn watched(&self) -> Vec<bool> {
        Vec::new()
    }

    /// Sees a watched op for all active invocations: after it ran, or before, if it has regions or ends one.
    fn observe(&mut self, _machine: &Executor<'_>, _op: OpId, _active: Mask) {}
}
