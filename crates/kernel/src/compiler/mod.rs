//! The one way from kernels to words: verified, optimised, counted, written, checked; all kernels of a module, or an error and nothing.

mod cache;
mod dump;
mod messages;

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;

use crate::error::KernelError;
use crate::ir::Kernel;
use crate::passes::{EXITS, FLOAT_ATOMICS, GIVEN, optimise_seen};
use crate::spirv::{self, Entry, ID_LIMIT, Module};
use crate::target::Target;
use crate::verify::verify;
use cache::{Cache, Name};
use dump::Dump;
pub use messages::Messages;

/// The variable that names a folder for dumps.
const DUMP: &str = "IMPASTO_DUMP_KERNELS";

/// Compiles kernels for a device.
///
/// ```
/// use impasto_kernel::{Builder, Compiler, Target};
/// let kernel = |name: &str, factor: f32| Builder::kernel(name, [64, 1, 1], |k| {
///     let x = k.buffer_mut::<f32>("x");
///     let i = k.global_id(0);
///     x.store(i, x.load(i) * factor);
/// });
/// let module = Compiler::new(Target::LEAST).compile(&[kernel("double", 2.0)?, kernel("half", 0.5)?])?;
/// let names: Vec<&str> = module.entries.iter().map(|e| e.name.as_str()).collect();
/// assert_eq!(names, ["double", "half"]);
/// # Ok::<(), impasto_kernel::KernelError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Compiler {
    target: Target,
    optimise: bool,
    dump: Option<PathBuf>,
    cache: Option<Cache>,
    messages: Arc<Messages>,
}

impl Compiler {
    /// A compiler for this device. It optimises, keeps nothing, and dumps only where `IMPASTO_DUMP_KERNELS` names a folder.
    pub fn new(target: Target) -> Compiler {
        let dump = std::env::var_os(DUMP).filter(|folder| !folder.is_empty()).map(PathBuf::from);
        Compiler { target, optimise: true, dump, cache: None, messages: Arc::default() }
    }

    /// Ships words as the kernels were written. This is for who looks for a fault of the passes, and a message says it.
    #[must_use]
    pub fn unoptimised(self) -> Compiler {
        Compiler { optimise: false, ..self }
    }

    /// Writes each stage of each compilation into a folder of its own in this one, and exactly the words that are shipped.
    #[must_use]
    pub fn dump_to(self, folder: impl Into<PathBuf>) -> Compiler {
        Compiler { dump: Some(folder.into()), ..self }
    }

    /// Keeps words in this folder, and takes them from there. A dump is always of a new compilation.
    #[must_use]
    pub fn cache_in(self, folder: impl Into<PathBuf>) -> Compiler {
        Compiler { cache: Some(Cache::at(folder.into())), ..self }
    }

    /// Where messages go: compilers may share them.
    #[must_use]
    pub fn messages_to(self, messages: Arc<Messages>) -> Compiler {
        Compiler { messages, ..self }
    }

    /// What there was to say.
    pub fn messages(&self) -> &Messages {
        &self.messages
    }

    /// A module with an entry point for each kernel: all of them, or an error that names the one at fault.
    pub fn compile(&self, kernels: &[Kernel]) -> Result<Module, KernelError> {
        let mut dump = Dump::begin(self.dump.as_deref(), kernels, &self.messages);
        let made = self.make(kernels, &mut dump);
        dump.end(&made);
        made
    }

    fn make(&self, kernels: &[Kernel], dump: &mut Dump<'_>) -> Result<Module, KernelError> {
        go_together(kernels)?;
        spirv::refuse_early(kernels, self.optimise, ID_LIMIT)?;
        if !self.optimise {
            for k in kernels {
                verify(k)?;
                self.messages.say(format!("kernel '{}' is shipped unoptimised, as was asked for", k.name));
            }
        }
        let kept = self.cache.as_ref().map(|cache| (cache, Name::of(kernels, &self.target, self.optimise)));
        let found = kept.as_ref().filter(|_| !dump.is_on()).and_then(|(cache, name)| cache.get(*name));
        if let Some(words) = found.filter(|words| spirv::check(words).is_ok()) {
            return Ok(Module { bound: words[3], words, entries: kernels.iter().map(Entry::of).collect() });
        }
        let mut made = Vec::new();
        for k in kernels {
            dump.stage("built", k);
            let plain = GIVEN.apply(k)?;
            let k = plain.as_ref().unwrap_or(k);
            let last = if self.optimise { optimise_seen(k, &mut |pass, k| dump.stage(pass, k))? } else { k.clone() };
            let last = FLOAT_ATOMICS.apply(&last)?.unwrap_or(last);
            let last = EXITS.apply(&last)?.unwrap_or(last);
            dump.stage(EXITS.name, &last);
            made.push(last);
        }
        let module = spirv::emit(&made, &self.target, ID_LIMIT)?;
        if let Some((cache, name)) = kept {
            cache.put(name, &module.words, &self.messages);
        }
        Ok(module)
    }
}

/// Each kernel of a module has a name of its own.
fn go_together(kernels: &[Kernel]) -> Result<(), KernelError> {
    let mut names = HashSet::new();
    let refuse = |kernel: &str, problem: &str| {
        Err(KernelError::Module { kernel: kernel.to_owned(), problem: problem.to_owned() })
    };
    if kernels.is_empty() {
        return refuse("", "a module has at least one kernel, and none was given");
    }
    match kernels.iter().find(|k| !names.insert(&k.name)) {
        Some(k) => {
            refuse(&k.name, "two kernels of the module have this name, and entry points are found by it: rename one")
        }
        None => Ok(()),
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
