//! A tensor computation as plain data, and the exact plan of its memory.
//!
//! The way of the data:
//!
//! 1. Model code builds a [`Graph`]: static shapes, channels-last images, one [`Op`] table. Shapes are checked as ops
//!    are added; an error names the op, its operands and their shapes.
//! 2. A backend states its [`Capabilities`]: which ops it has, what scratch memory each needs, its [`Limits`].
//! 3. [`Plan::new`] chooses the order of execution, lets results take the place of operands that nobody needs any
//!    more, and lays everything out in one arena. It allocates nothing on a device, so a plan can be made for a device
//!    that is not here. What does not fit is a typed refusal.
//!
//! Views cost nothing: a reshape, and a slice or permutation that keeps the order in memory, is another name for the
//! same bytes.
//!
//! ```
//! use impasto_graph::{Anything, DType, Epilogue, Graph, Plan, Storage};
//! let mut g = Graph::new();
//! let x = g.input("x", [4, 64], DType::F32)?;
//! let w = g.param("w", [64, 64], Storage::Dense(DType::F32))?;
//! let y = g.linear(x, w, Epilogue::new().residual(x))?;
//! g.output("y", y)?;
//! let plan = Plan::new(&g, &Anything)?;
//! assert_eq!(plan.arena_bytes(), 2 * 4 * 64 * 4);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod bands;
mod dtype;
mod error;
mod graph;
pub mod host;
mod infer;
mod limits;
mod low_rank;
mod meter;
mod op;
mod plan;
mod tensor;
mod text;

pub use bands::{Banded, Cut, Cuts, Cutting, Level};
pub use dtype::{DType, Storage};
pub use error::{GraphError, Operand, Operands, PlanError};
pub use graph::{Epilogue, Graph, Node, Output, Scores, Value, Window};
pub use limits::Limits;
pub use low_rank::AdapterFactor;
pub use meter::Meter;
pub use op::{Binary, Fused, HIDDEN, Op, Pairs, Unary};
pub use plan::{
    Anything, Capabilities, Location, May, Plan, Segment, Span, Step, Stream, StreamedWeight, Used, Weight,
};
pub use tensor::{Data, HostTensor, TensorType};
