//! What several tests use: the assembler, an interpreter, and kernels for both.
#![allow(dead_code, unused_imports, reason = "each test uses a part of this")]

pub mod cases;
pub mod files;
pub mod interpreter;
pub mod ptxas;

pub use ptxas::{assemble, targets};
