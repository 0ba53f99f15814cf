//! How much a device can hold.

use serde::{Deserialize, Serialize};

/// How many bytes a device can hold, in all and at once.
///
/// A plan is checked against these numbers before anything is allocated.
///
/// ```
/// use impasto_graph::{Limits, host};
///
/// // The CPU is bounded only by the memory that this process may use.
/// let limits = match host::memory() {
///     Some(memory) => Limits { memory: memory.limit, ..Limits::UNLIMITED },
///     None => Limits::UNLIMITED,
/// };
/// assert!(limits.memory > 0);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// All bytes that may be allocated together.
    pub memory: u64,
    /// The largest single allocation.
    pub max_allocation: u64,
    /// The largest part of an allocation that one kernel argument can reach.
    pub max_binding: u64,
}

impl Limits {
    /// No limit at all.
    pub const UNLIMITED: Limits = Limits { memory: u64::MAX, max_allocation: u64::MAX, max_binding: u64::MAX };
}
