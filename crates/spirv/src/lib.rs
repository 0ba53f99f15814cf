//! Kernels as SPIR-V for Vulkan: written within its limits, checked, and read back.
//!
//! [`SpirV`] is the emitter that a [`Compiler`] takes; [`compile`] and [`compiler_for`] are the short ways. A module is bytes, and [`Words`] are what
//! they mean here.
//!
//! ```
//! use impasto_kernel::{Builder, Target};
//! use impasto_spirv::Words;
//! let kernel = |name: &str, factor: f32| Builder::kernel(name, [64, 1, 1], |k| {
//!     let x = k.buffer_mut::<f32>("x");
//!     let i = k.global_id(0);
//!     x.store(i, x.load(i) * factor);
//! });
//! // For an open device it is `compiler_for`; `Target::LEAST` has neither 64-bit integers nor what tapes of derivatives need.
//! let module = impasto_spirv::compiler(Target::ANY).compile(&[kernel("double", 2.0)?, kernel("half", 0.5)?])?;
//! let names: Vec<&str> = module.entries.iter().map(|e| e.name.as_str()).collect();
//! assert_eq!(names, ["double", "half"]);
//! assert_eq!(module.words()[..4], [0x0723_0203, 0x0001_0300, 0, module.bound()]);
//! # Ok::<(), impasto_kernel::KernelError>(())
//! ```
//!
//! [`optimise_words`] reads a module of someone else, optimises it by the same passes and writes it again; [`execute_words`] runs one on the reference
//! executor, and [`Diff`] compares two by what they do.

mod check;
mod diff;
mod emit;
mod import;
mod module;
mod run;
mod target;

use impasto_kernel::passes::{FLOAT_ATOMICS, MULTI_LEVEL_EXITS, Pass};
use impasto_kernel::{CompiledModule, Compiler, Emitter, Entry, Kernel, KernelError, ModuleKind, Target};
use impasto_vulkan::{Interface, VulkanFeatures};

pub use diff::{
    Comparison, Diff, DiffError, DiffOptions, DiffVerdict, Difference, DifferingInstructions, ROUNDING, Reach,
};
pub use emit::ID_LIMIT;
pub use import::{
    BlockLayout, BoundBuffer, Environment, ImportError, LastArray, ModuleEntry, ModuleInterface, ModuleOptions,
    OptimisedModule, PassedThrough, ScalarFormat, count_instructions, optimise_words, optimise_words_seen, reflect,
};
pub use module::Words;
pub use run::{ModuleLaunch, execute_words, rebind};
pub use target::target;

/// Emits SPIR-V 1.3 for Vulkan 1.1 and later.
#[derive(Clone, Copy, Debug)]
pub struct SpirV {
    /// The version of Vulkan that the device has, major and minor.
    pub vulkan: (u32, u32),
}

impl Default for SpirV {
    /// For a device of any version.
    fn default() -> SpirV {
        SpirV { vulkan: (u32::MAX, 0) }
    }
}

impl Emitter for SpirV {
    fn kind(&self) -> ModuleKind {
        ModuleKind::SpirV
    }

    fn version(&self) -> &'static str {
        env!("IMPASTO_SOURCES")
    }

    fn lowerings(&self) -> &[Pass] {
        &[FLOAT_ATOMICS, MULTI_LEVEL_EXITS]
    }

    fn emit(&self, kernels: &[Kernel], target: &Target) -> Result<Vec<u8>, KernelError> {
        if let (Some(k), true) = (kernels.first(), self.vulkan < target::LOWEST) {
            let (needs, have) = (target::LOWEST, self.vulkan);
            return Err(KernelError::OldDriver { kernel: k.name.clone(), api: "Vulkan", needs, have });
        }
        let words = emit::emit(kernels, target, ID_LIMIT)?;
        Ok(words.iter().flat_map(|w| w.to_le_bytes()).collect())
    }

    fn check(&self, bytes: &[u8]) -> Result<(), String> {
        if !bytes.len().is_multiple_of(4) {
            return Err(format!("{} bytes are no whole words", bytes.len()));
        }
        check::check(&module::from_bytes(bytes))
    }
}

/// A compiler to SPIR-V for this target.
pub fn compiler(target: Target) -> Compiler {
    Compiler::new(SpirV::default(), target)
}

/// A compiler to SPIR-V for an open Vulkan device.
pub fn compiler_for(device: &VulkanFeatures) -> Compiler {
    Compiler::new(SpirV { vulkan: device.version }, target(device))
}

/// Optimises a kernel and writes its words, for a device that has whatever it needs.
///
/// ```
/// use impasto_kernel::Builder;
/// let kernel = Builder::kernel("twice", [64, 1, 1], |k| {
///     let x = k.buffer_mut::<f32>("x");
///     let i = k.global_id(0);
///     x.store(i, x.load(i) * 2.0f32);
/// })?;
/// assert_eq!(impasto_spirv::compile(&kernel)?.entries[0].name, "twice");
/// # Ok::<(), impasto_kernel::KernelError>(())
/// ```
pub fn compile(kernel: &Kernel) -> Result<CompiledModule, KernelError> {
    compile_for(kernel, Target::ANY)
}

/// [`compile`] for a device.
///
/// ```
/// use impasto_kernel::{Builder, Feature, Target};
/// use impasto_spirv::compile_for;
/// let kernel = Builder::kernel("wide", [1, 1, 1], |k| {
///     let x = k.buffer_mut::<i64>("x");
///     x.store(0, x.load(0) + 1i64);
/// })?;
/// let error = compile_for(&kernel, Target::LEAST).unwrap_err().to_string();
/// assert!(error.contains("kernel 'wide': `%1 = load x[%0] : i64` needs 64-bit integers (shaderInt64)"), "{error}");
/// assert!(compile_for(&kernel, Target::LEAST.with(Feature::I64)).is_ok());
/// # Ok::<(), impasto_kernel::KernelError>(())
/// ```
pub fn compile_for(kernel: &Kernel, target: Target) -> Result<CompiledModule, KernelError> {
    compiler(target).compile(std::slice::from_ref(kernel))
}

/// Writes the words of a kernel as it was written: what other optimisers are measured on.
pub fn compile_unoptimised(kernel: &Kernel) -> Result<CompiledModule, KernelError> {
    compiler(Target::ANY).unoptimised().compile(std::slice::from_ref(kernel))
}

/// What a Vulkan pipeline of an entry point is made with.
pub fn interface(entry: &Entry) -> Interface<'_> {
    let &Entry { ref name, buffers, constants, .. } = entry;
    Interface { entry: name, buffers, constants, subgroup: None, uniforms: &[], unoptimised: false }
}
