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
pub use kernel::{
    Access, Kernel, MemoryDecl, MemoryId, OpId, OpRecord, Region, RegionId, ScalarParam, Space, Value, VarId,
};
pub use layout::DataLayout;
pub(crate) use layout::MAX_SCALARS;
pub use op::{Atomic, BinaryOp, Builtin, Compare, Effect, MatrixLayout, OpKind, Subgroup, UnaryOp, WarpgroupProduct};
pub(crate) use sources::Sources;
pub use types::{Matrix, MatrixShape, MatrixUse, Members, Scalar, Shape, Ty};
