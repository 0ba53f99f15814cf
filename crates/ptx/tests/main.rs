//! PTX of kernels: what it is, what assembles, and what it computes.

mod assemble;
mod files;
mod interpreted;
mod target;
