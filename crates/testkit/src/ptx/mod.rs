//! What several tests use: the assembler, an interpreter, and kernels for both.
pub mod cases;
pub mod files;
pub mod interpreter;
pub mod ptxas;

pub use ptxas::{assemble, targets};
