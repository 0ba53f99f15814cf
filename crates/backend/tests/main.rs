//! The CPU backend, and the reference that judges every backend.

mod bands;
mod common;
mod ops;
mod plans;
mod reference;

#[cfg(unix)]
#[global_allocator]
static GUARD: common::guard::Guard = common::guard::Guard;
