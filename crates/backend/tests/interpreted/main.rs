//! The CUDA backend on a driver that interprets kernels: every op by random graphs, matrix units by products around their sizes, bands, streaming, and the
//! cache of machine code. All of it is small, since an interpreter is slow; the tests of every op at every size are `tests/cuda`, for a card. What a user
//! would lose: a wrong picture on an NVIDIA card, and no error.

mod cache;
mod common;
mod graphs;
#[path = "../ops/operands.rs"]
mod operands;
mod products;
