//! The one way from kernels to words.

use crate::error::KernelError;
use crate::ir::Kernel;
use crate::passes::optimise;
use crate::spirv::{self, ID_LIMIT, Module};
use crate::target::Target;
use crate::verify::verify;

/// Compiles kernels for a device.
#[derive(Debug)]
pub struct Compiler {
    target: Target,
    optimise: bool,
}

impl Compiler {
    /// A compiler for this device, which optimises.
    pub fn new(target: Target) -> Compiler {
        Compiler { target, optimise: true }
    }

    /// Ships words as the kernels were written, on explicit request.
    #[must_use]
    pub fn unoptimised(mut self) -> Compiler {
        self.optimise = false;
        self
    }

    /// A module with an entry point for each kernel: all of them, or an error.
    pub fn compile(&self, kernels: &[Kernel]) -> Result<Module, KernelError> {
        spirv::refuse_early(kernels, ID_LIMIT)?;
        let mut made = Vec::new();
        for k in kernels {
            made.push(if self.optimise { optimise(k)? } else { verify(k).map(|()| k.clone())? });
        }
        spirv::emit(&made, &self.target, ID_LIMIT)
    }
}

/// Optimises a kernel and writes its words, for a device that has whatever it needs.
///
/// ```
/// use impasto_kernel::{Builder, compile};
/// let kernel = Builder::kernel("twice", [64, 1, 1], |k| {
///     let x = k.buffer_mut::<f32>("x");
///     let i = k.global_id(0);
///     x.store(i, x.load(i) * 2.0f32);
/// })?;
/// let module = compile(&kernel)?;
/// assert_eq!(module.words[..4], [0x0723_0203, 0x0001_0300, 0, module.bound]);
/// assert_eq!(module.entries[0].name, "twice");
/// # Ok::<(), impasto_kernel::KernelError>(())
/// ```
pub fn compile(kernel: &Kernel) -> Result<Module, KernelError> {
    compile_for(kernel, Target::ANY)
}

/// [`compile`] for a device.
pub fn compile_for(kernel: &Kernel, target: Target) -> Result<Module, KernelError> {
    Compiler::new(target).compile(std::slice::from_ref(kernel))
}

/// Writes the words of a kernel as it was written: what other optimisers are measured on.
pub fn compile_unoptimised(kernel: &Kernel) -> Result<Module, KernelError> {
    Compiler::new(Target::ANY).unoptimised().compile(std::slice::from_ref(kernel))
}
