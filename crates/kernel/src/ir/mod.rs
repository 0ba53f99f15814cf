//! The intermediate representation as data: types, the op table, and kernels as arenas.

mod assemble;
mod foreign;
mod kernel;
mod layout;
mod op;
mod shorthand;
mod sources;
mod types;

pub use assemble::Assembler;
pub use foreign::ForeignTable;
pub use kernel::{Access, Kernel, Memory, MemoryId, Op, OpId, Region, RegionId, ScalarParam, Space, Value, VarId};
pub use layout::Layout;
pub(crate) use layout::MAX_SCALARS;
pub use op::{Atomic, Binary, Builtin, Compare, Effect, MatrixLayout, OpKind, Subgroup, Unary};
pub(crate) use sources::Sources;
pub use types::{Matrix, MatrixShape, MatrixUse, Members, Scalar, Shape, Ty};
