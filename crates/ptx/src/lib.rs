//! Kernels as PTX for NVIDIA GPUs: written for a target, and checked.
//!
//! [`Ptx`] is the emitter that a [`Compiler`] takes; [`compiler`] and [`compile_for`] are the short ways. A module is text, which a driver compiles with
//! `cuModuleLoadDataEx` (it wants a zero byte after the text), or `ptxas` ahead of time.
//!
//! ```
//! use impasto_kernel::Builder;
//! use impasto_ptx::{PtxTarget, compile_for};
//! let kernel = Builder::kernel("twice", [64, 1, 1], |k| {
//!     let x = k.buffer_mut::<f32>("x");
//!     let i = k.global_id(0);
//!     x.store(i, x.load(i) * 2.0f32);
//! })?;
//! let module = compile_for(&kernel, PtxTarget::Sm80)?;
//! let text = String::from_utf8_lossy(&module.bytes);
//! assert!(text.contains(".visible .entry twice("));
//! assert!(text.contains("mul.rn.f32"));
//! # Ok::<(), impasto_kernel::KernelError>(())
//! ```
//!
//! # How a kernel is launched
//!
//! - The **entry point** has the kernel's name.
//! - Its **parameters** are, in this order: for each buffer, in the order of bindings, its address in device memory (`.u64`); if there are buffers, one
//!   block with the bytes of each as `u64` (`lengths$`), from which `len` is computed; if there are scalar parameters, one block with
//!   [`param_bytes`](impasto_kernel::param_bytes) (`scalars$`). Addresses are multiples of 32, as those of `cuMemAlloc` are.
//! - The **block** has exactly the kernel's workgroup (`.reqntid`), the grid the workgroups of the launch.
//! - **Shared memory**: [`Entry::shared`](impasto_kernel::Entry::shared) up to 48 KiB are declared by the module itself. With more, all of it is dynamic: the
//!   launch gives that many bytes, after `CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES` was set to them. [`dynamic_shared`] is that rule.
//! - A **subgroup** is a warp of 32, in the order of local indices.
//!
//! # What is exact
//!
//! The rules are those of Vulkan. Integers, comparisons, conversions and `+ - x` of floats give the bits of the executor (a NaN is any NaN): rounding is
//! named in every instruction, nothing is contracted and nothing flushed to zero. Division, roots, powers and the other functions, `fma` of
//! f16, sums over a subgroup and products of matrices are within the device's bounds. Atomic sums of floats in buffers flush subnormal numbers.
//!
//! What a target lacks is lowered (bf16 before sm_80 is rounded by integers, sums over a warp are a tree there) or refused by its name
//! (matrices of bf16 before sm_80, matrices of other shapes, foreign ops of imported modules).

mod check;
mod emit;
mod target;

use impasto_kernel::passes::Pass;
use impasto_kernel::{CompiledModule, Compiler, Emitter, Entry, Kernel, KernelError, ModuleKind, Target};

pub use target::PtxTarget;

/// Emits PTX for one generation of GPUs.
#[derive(Clone, Copy, Debug)]
pub struct Ptx {
    /// The generation.
    pub target: PtxTarget,
    /// The newest version of PTX that the driver takes, major and minor.
    pub driver: (u32, u32),
}

impl Ptx {
    /// For a driver of any version.
    pub fn new(target: PtxTarget) -> Ptx {
        Ptx { target, driver: (u32::MAX, 0) }
    }
}

impl Emitter for Ptx {
    fn kind(&self) -> ModuleKind {
        ModuleKind::Ptx
    }

    fn version(&self) -> &'static str {
        env!("IMPASTO_SOURCES")
    }

    fn lowerings(&self) -> &[Pass] {
        &[]
    }

    fn emit(&self, kernels: &[Kernel], target: &Target) -> Result<Vec<u8>, KernelError> {
        let (needs, have) = (self.target.isa(), self.driver);
        if let (Some(k), true) = (kernels.first(), have < needs) {
            return Err(KernelError::OldDriver { kernel: k.name.clone(), api: "PTX", needs, have });
        }
        emit::emit(kernels, target, self.target).map(String::into_bytes)
    }

    fn check(&self, bytes: &[u8]) -> Result<(), String> {
        let text = std::str::from_utf8(bytes).map_err(|e| format!("this is no text: {e}"))?;
        check::check(text)
    }
}

/// A compiler to PTX for this target.
pub fn compiler(target: PtxTarget) -> Compiler {
    Compiler::new(Ptx::new(target), target.target())
}

/// Optimises a kernel and writes its module.
///
/// ```
/// use impasto_kernel::Builder;
/// use impasto_ptx::{PtxTarget, compile_for};
/// let kernel = Builder::kernel("much", [1, 1, 1], |k| {
///     let x = k.shared::<f32>("x", 20_000);
///     x.store(0, 1.0);
///     k.buffer_mut::<f32>("y").store(0, x.load(0));
/// })?;
/// let error = compile_for(&kernel, PtxTarget::Sm75).unwrap_err().to_string();
/// assert!(error.contains("80000 bytes shared by a workgroup, and the device takes 65536"), "{error}");
/// assert!(compile_for(&kernel, PtxTarget::Sm80).is_ok());
/// # Ok::<(), impasto_kernel::KernelError>(())
/// ```
pub fn compile_for(kernel: &Kernel, target: PtxTarget) -> Result<CompiledModule, KernelError> {
    compiler(target).compile(std::slice::from_ref(kernel))
}

/// Bytes of dynamic shared memory that a launch of this entry point gives.
pub fn dynamic_shared(entry: &Entry) -> u64 {
    if entry.shared > emit::STATIC_SHARED { entry.shared } else { 0 }
}
