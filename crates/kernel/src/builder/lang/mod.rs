//! What `#[kernel]` writes: Rust syntax as calls. Users write the syntax; nothing here is needed to read it.
//!
//! Each call takes what a kernel computes (a [`Val`]) and what Rust computes while the kernel is written (a plain `u32`, `bool`, ..),
//! and tells them apart by type. So a branch on a plain `bool` is decided while the kernel is written, and one on a `Val<bool>` when it
//! runs, and the macro need not know which it has before it.
//!
//! Where a constraint could have been an associated type, it is a parameter ([`Lift<O>`](Lift), not `Lift::Output`): rustc then infers
//! literals from what they are used for, as it does in plain Rust.

mod control;
mod functions;
mod gradient;
mod values;

pub use control::{Branch, BranchCondition, Gives, GivesLiteral, Literal, Pattern, Repeat, Selector};
pub use functions::*;
pub use gradient::{DerivativeInput, DerivativeOutput, with_gradient};
pub use values::*;

use super::{Builder, Val};
use crate::ir::OpKind;

/// Kernel functions may be written into each other this deep; recursion has to end before.
const MAX_CALLS: u32 = 64;

/// A kernel function that is being written.
#[derive(Debug)]
pub struct Call<'k>(&'k Builder);

impl Drop for Call<'_> {
    fn drop(&mut self) {
        self.0.state.borrow_mut().calls -= 1;
    }
}

/// Begins to write a kernel function where it is called; nothing if what it would write can never run, or after a mistake.
pub fn enter<'k>(k: &'k Builder, name: &str) -> Option<Call<'k>> {
    let calls = k.state.borrow().calls;
    if calls >= MAX_CALLS {
        k.fail(format!(
            "calls of kernel functions nest deeper than {MAX_CALLS}, the innermost is '{name}'; a call is written in full where \
             it stands, so recursion must end by a branch that is decided while the kernel is written, or become a loop"
        ));
    }
    let mut state = k.state.borrow_mut();
    if state.problem.is_some() || state.asm.unreachable() {
        return None;
    }
    state.calls += 1;
    Some(Call(k))
}

impl Builder {
    /// Whether what is written now can never run: it stands after a `break`, `continue` or `return`.
    pub fn ended(&self) -> bool {
        self.state.borrow().asm.unreachable()
    }
}

/// A value where none can be: in what never runs.
pub trait Dead<'k> {
    /// The value.
    #[track_caller]
    fn dead(k: &'k Builder) -> Self;
}

impl<'k, T: super::Type> Dead<'k> for Val<'k, T> {
    fn dead(k: &'k Builder) -> Self {
        k.emit(OpKind::Make, &[])
    }
}

macro_rules! dead {
    ($($t:ty)*) => { $(impl Dead<'_> for $t {
        fn dead(_: &Builder) -> $t {
            <$t>::default()
        }
    })* };
}
dead!(() bool i32 u32 i64 u64 f32 half::f16 half::bf16);

/// A value where none can be.
#[track_caller]
pub fn dead<'k, D: Dead<'k>>(k: &'k Builder) -> D {
    D::dead(k)
}
