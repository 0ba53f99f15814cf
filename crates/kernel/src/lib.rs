//! A GPU kernel, from source to words: a typed builder, structured SSA, exact passes, and SPIR-V whose ids cannot run out.
//!
//! # The language
//!
//! A kernel is a Rust function, or what looks like one: [`kernel`](macro@kernel) rewrites its syntax into calls, and rustc checks the types of those.
//!
//! ```
//! use impasto_kernel::prelude::*;
//! #[kernel]
//! fn saxpy(n: u32, a: f32, x: &[f32], y: &mut [f32]) {
//!     let i = global_id(0);
//!     if i < n {
//!         y[i] = a * x[i] + y[i];
//!     }
//! }
//! let kernel: Kernel = saxpy()?;
//! # Ok::<(), KernelError>(())
//! ```
//!
//! There are two times. What Rust knows while the function runs that writes the kernel (literals, constants, `#[comptime]` parameters) is plain
//! Rust, with its own types; what the kernel computes when it runs is a [`Val`]. Operators, branches and calls take both and tell them apart
//! by type ([`lang`]), so a tile size, an unrolled loop, or a branch on a feature is ordinary Rust, and nothing of it is left
//! in the kernel. Programs that write kernels use the [`Builder`] itself, which is what the macro calls.
//!
//! # The representation
//!
//! A kernel is a tree of *regions*. A region is a list of ops, the last of which is a terminator; an op has operands, results, and, if it is
//! control flow, regions of its own. There are no blocks and no branches: what is reachable from where can be read off the tree, and
//! a value may be used by everything behind it in its region, and inside.
//!
//! - `if` and `switch` run one of their regions; its `yield` gives the results.
//! - `loop` runs its region with the carried values as arguments. `continue` begins the next turn with others, `break` ends the loop with its
//!   results; both may stand at any depth and name any loop around them.
//! - `for` is a loop whose number of turns is known when it begins.
//! - `return` ends the invocation, at any depth.
//!
//! ```
//! use impasto_kernel::{Data, Kernel, Launch, execute};
//! // The greatest common divisor, as passes see it: nothing is assigned twice.
//! let kernel: Kernel = "kernel gcd(1, 1, 1) {
//!   buffer x: u32 write
//!   %0 = const 0 : u32
//!   %1 = const 1 : u32
//!   %2 = load x[%0] : u32
//!   %3 = load x[%1] : u32
//!   %4 = loop @0 (%5: u32 = %2, %6: u32 = %3) : u32 {
//!     %7 = eq %6, %0 : bool
//!     if %7 {
//!       break @0 %5
//!     } else {
//!       yield
//!     }
//!     %8 = rem %5, %6 : u32
//!     continue @0 %6, %8
//!   }
//!   store x[%0], %4
//!   return
//! }".parse()?;
//! let mut launch = Launch::new([1, 1, 1], vec![Data::from(&[48u32, 36][..])]);
//! execute(&kernel, &mut launch)?;
//! assert_eq!(launch.buffers[0].to_u32().unwrap()[0], 12);
//! # Ok::<(), impasto_kernel::KernelError>(())
//! ```
//!
//! **Variables** exist after building (`var`, `get`, `set`) and vanish in SSA construction. Arrays that are indexed by computed numbers are
//! memory (`private`), since registers of a GPU have no addresses.
//!
//! **Memory** is buffers, workgroup arrays and private arrays, read and written by explicit ops with an index. Two buffers never overlap.
//! An index out of bounds is a mistake of the program: the executor names it, a device does what its robust access does.
//!
//! **Every operation is total.** What other languages leave undefined has a value here (`x / 0 = x`, shifts modulo the width,
//! saturating conversions; see the op table) and is lowered so. **Arithmetic is exact to the source**: nothing is contracted or reassociated.
//!
//! **Effects** stay in order. Barriers and subgroup operations never move across control flow.
//!
//! A kernel is flat tables of numbers, about fifty bytes an op, written once: a pass reads one kernel and writes the next, and hoisting an op
//! is writing it into a region further out. Everything is linear or n log n.
//!
//! # The way through
//!
//! `#[kernel]`, [`Builder`] or text, [`verify`], [`optimise`]; [`execute`] runs a kernel at any stage. [`Kernel::grad`] and [`Kernel::jvp`]
//! give derivatives, which are kernels again; `src/grad/mod.rs` opens with how.

pub mod blowup;
mod builder;
mod error;
mod eval;
mod exec;
mod grad;
mod hash;
mod ir;
mod passes;
pub mod prelude;
mod spirv;
mod text;
mod verify;

pub use builder::lang;
pub use builder::{
    Arms, Array, Buf, BufMut, Builder, Equal, Float, Int, IntoVal, Lit, Logic, Loop, Num, Shared32, Type, Val, Var,
    Vec2, Vec3, Vec4, Vector,
};
pub use error::{Contributors, KernelError};
pub use exec::{Data, Launch, execute};
pub use grad::{Chain, Cost, Derivatives, Grad, Jvp, KeptLoop, Report, Role};
pub use impasto_kernel_macro::{KernelStruct, kernel, kernel_fn};
pub use ir::{
    Access, Atomic, Binary, Builtin, Compare, Effect, Kernel, Memory, MemoryId, Op, OpId, OpKind, Region, RegionId,
    Scalar, ScalarParam, Shape, Space, Subgroup, Ty, Unary, Value, VarId,
};
pub use passes::{PASSES, Pass, construct, optimise, specialise};
pub use spirv::{ID_LIMIT, Module, Target, compile, compile_for, compile_unoptimised, emit, emit_for, param_offsets};
pub use verify::{MAX_DEPTH, verify};
