//! A GPU kernel, written and optimised: a typed builder, structured SSA, exact passes, a reference executor.
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
//! a value may be used by everything after it in its region, and inside.
//!
//! - `if` and `switch` run one of their regions; its `yield` gives the results.
//! - `loop` runs its region with the carried values as arguments. `continue` begins the next iteration with others, `break` ends the loop with its
//!   results; both may stand at any depth and name any loop around them.
//! - `for` is a loop whose number of iterations is known when it begins.
//! - `return` ends the invocation, at any depth.
//!
//! ```
//! use impasto_kernel::{BufferData, Kernel, Launch, execute};
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
//! let mut launch = Launch::new([1, 1, 1], vec![BufferData::from(&[48u32, 36][..])]);
//! execute(&kernel, &mut launch)?;
//! assert_eq!(launch.buffers[0].to_u32().unwrap()[0], 12);
//! # Ok::<(), impasto_kernel::KernelError>(())
//! ```
//!
//! **Variables** exist after building (`var`, `get`, `set`) and vanish in SSA construction. Arrays that are indexed by computed numbers are
//! memory (`private`), since registers of a GPU have no addresses.
//!
//! **Memory** is buffers, workgroup arrays and private arrays, read and written by explicit ops with an index. Two buffers never overlap.
//! Elements may have any type; in buffers they lie by the rules of std430, which [`Kernel::layout`] tells to hosts: a vector of 3 takes the
//! place of 4. `bf16` is a format of storage: 16 bits that convert from and to f32, by whole-number arithmetic that every device has.
//! An index out of bounds is a mistake of the program: the executor names it, a device does what its robust access does.
//!
//! **Every operation is total.** What other languages leave undefined has a value here (`x / 0 = x`, shifts modulo the width,
//! saturating conversions; see the op table) and is lowered so. **Arithmetic is exact to the source**: nothing is contracted or reassociated.
//!
//! **Effects** stay in order. Barriers and subgroup operations never move across control flow.
//!
//! **Matrices** are values that the invocations of a subgroup hold together (`matrix_load`, `matrix_mul_add`, `matrix_store`): what matrix units
//! of devices compute. All invocations of a subgroup do the same matrix ops, or none; the verifier refuses what a lane decides about, and
//! the executor stops where only running tells. A device without a matrix of that shape is an error of the compiler, and
//! [`lower_matrices`] makes a kernel for it that gives the same bits.
//!
//! A kernel is flat tables of numbers, about fifty bytes an op, written once: a pass reads one kernel and writes the next, and hoisting an op
//! is writing it into a region further out. Everything is linear or n log n.
//!
//! # The way through
//!
//! `#[kernel]`, [`Builder`] or text, [`verify`], [`optimise`], a module; [`execute`] runs a kernel at any stage. The one way to a module is the
//! [`Compiler`]: it takes the kernels, an [`Emitter`] for the format and the [`Target`] that a device is, and gives a [`CompiledModule`] or an error that
//! names the kernel at fault, never less than all of them. It can dump every stage and cache modules between runs.
//!
//! The crate `ptx` has the emitter for CUDA. The crate `spirv` has the one for Vulkan, and reads modules of others; their instructions that the op table lacks stand in it as foreign
//! ops ([`ir::ForeignTable`]). The crate `autodiff` gives derivatives, which are kernels again.

pub mod blowup;
mod builder;
mod compiler;
mod error;
pub mod eval;
pub mod exec;
mod gradient;
pub mod hash;
pub mod ir;
mod params;
pub mod passes;
pub mod prelude;
mod target;
pub mod text;
mod uniform;
mod verify;

pub use builder::lang;
pub use builder::{
    Accumulator, Arms, Array, Buf, BufMut, Builder, Elements, Equal, Factor, Float, Int, IntoVal, LeftTile, Lit, Logic,
    Loop, MatrixA, MatrixB, MatrixOf, MatrixType, Num, Role, RoleA, RoleAccumulator, RoleB, Shared32, StoredBuf,
    StoredBufMut, Type, Val, Var, Vec2, Vec3, Vec4, Vector,
};
pub use compiler::{CodeCache, CompiledModule, Compiler, Emitter, Entry, MAX_OPS, Messages, ModuleKind};
pub use error::{Contributors, KernelError};
pub use exec::{BufferData, Launch, execute};
pub use gradient::{GradientBuffer, gradient_buffers};
pub use hash::digest;
pub use impasto_kernel_macro::{KernelStruct, kernel, kernel_fn};
pub use ir::{
    Access, Atomic, BinaryOp, Builtin, Compare, DataLayout, Effect, Kernel, Matrix, MatrixLayout, MatrixShape,
    MatrixUse, Members, MemoryDecl, MemoryId, OpId, OpKind, OpRecord, Region, RegionId, Scalar, ScalarParam, Shape,
    Space, Subgroup, Ty, UnaryOp, Value, VarId, WarpgroupProduct,
};
pub use params::{param_bytes, param_offsets, param_size, shared_offsets};
pub use passes::{PASSES, Pass, construct, lower_matrices, optimise, optimise_seen, specialise};
pub use target::{Feature, Target, TargetLimits};
pub use uniform::divergent_regions;
pub use verify::{MAX_DEPTH, verify};
