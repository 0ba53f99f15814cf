//! The one way from kernels to a module: verified, optimised, lowered, emitted, checked; all kernels of a module, or an error and nothing.

mod cache;
mod dump;
mod emitter;
mod messages;

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;

use crate::error::KernelError;
use crate::ir::Kernel;
use crate::passes::{STRIP_GRADIENTS, VERIFY_EACH, run_pipeline};
use crate::target::Target;
use crate::verify::verify;
pub use cache::CodeCache;
use cache::module_key;
use dump::Dump;
pub use emitter::{CompiledModule, Emitter, Entry, ModuleKind};
pub use messages::Messages;

/// The variable that names a folder for dumps.
const DUMP: &str = "IMPASTO_DUMP_KERNELS";

/// The most ops that the kernels of a module may have before they are optimised, so that passes stay within a few gigabytes of memory. What the
/// output format takes is counted exactly when it is written.
pub const MAX_OPS: usize = 1 << 26;

/// Compiles kernels for a device, in the format of an [`Emitter`].
#[derive(Clone, Debug)]
pub struct Compiler {
    emitter: Arc<dyn Emitter>,
    target: Target,
    optimise: bool,
    verify: bool,
    dump: Option<PathBuf>,
    cache: Option<CodeCache>,
    messages: Arc<Messages>,
}

impl Compiler {
    /// A compiler for this device. It optimises, verifies each pass in debug builds, caches nothing, and dumps only where `IMPASTO_DUMP_KERNELS` names
    /// a folder.
    pub fn new(emitter: impl Emitter + 'static, target: Target) -> Compiler {
        let dump = std::env::var_os(DUMP).filter(|folder| !folder.is_empty()).map(PathBuf::from);
        Compiler {
            emitter: Arc::new(emitter),
            target,
            optimise: true,
            verify: VERIFY_EACH,
            dump,
            cache: None,
            messages: Arc::default(),
        }
    }

    /// Emits the kernels as they were written, to find faults of the passes. A message says so.
    #[must_use]
    pub fn unoptimised(self) -> Compiler {
        Compiler { optimise: false, ..self }
    }

    /// Whether the result of each pass is verified: by default in debug builds. The module has the same bytes. What is in a cache is not compiled, and so
    /// not verified.
    #[must_use]
    pub fn verify(self, verify: bool) -> Compiler {
        Compiler { verify, ..self }
    }

    /// Writes each stage of each compilation into a folder of its own in this one, and exactly the module that is given out.
    #[must_use]
    pub fn dump_to(self, folder: impl Into<PathBuf>) -> Compiler {
        Compiler { dump: Some(folder.into()), ..self }
    }

    /// Caches modules in this folder. A dump is always of a new compilation.
    #[must_use]
    pub fn cache_in(self, folder: impl Into<PathBuf>) -> Compiler {
        Compiler { cache: Some(CodeCache::at(folder)), ..self }
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

    /// The key of these kernels' module: another one wherever its bytes could be others. Whoever keeps what becomes of a module knows by this, without
    /// compiling it, which one it would be.
    pub fn key(&self, kernels: &[Kernel]) -> u128 {
        module_key(&*self.emitter, kernels, &self.target, self.optimise)
    }

    /// A module with an entry point for each kernel: all of them, or an error that names the one at fault.
    pub fn compile(&self, kernels: &[Kernel]) -> Result<CompiledModule, KernelError> {
        let mut dump = Dump::begin(self.dump.as_deref(), kernels, &self.messages);
        let made = self.make(kernels, &mut dump);
        dump.end(&made);
        made
    }

    fn make(&self, kernels: &[Kernel], dump: &mut Dump<'_>) -> Result<CompiledModule, KernelError> {
        go_together(kernels)?;
        check_size(kernels, MAX_OPS)?;
        if !self.optimise {
            for k in kernels {
                verify(k)?;
                self.messages.say(format!("kernel '{}' is shipped unoptimised, as was asked for", k.name));
            }
        }
        let module = |bytes| CompiledModule {
            kind: self.emitter.kind(),
            bytes,
            entries: kernels.iter().map(Entry::of).collect(),
        };
        let cache = self.cache.as_ref().map(|cache| (cache, self.key(kernels)));
        let found = cache.as_ref().filter(|_| !dump.is_on()).and_then(|(cache, key)| cache.get(*key));
        if let Some(bytes) = found.filter(|bytes| self.emitter.check(bytes).is_ok()) {
            return Ok(module(bytes));
        }
        let lowered = kernels.iter().map(|k| self.lower(k, dump)).collect::<Result<Vec<_>, _>>()?;
        let module = module(self.emitter.emit(&lowered, &self.target)?);
        if let Some((cache, key)) = cache {
            cache.put(key, &module.bytes, &self.messages);
        }
        Ok(module)
    }

    /// The kernel as it is emitted.
    fn lower(&self, kernel: &Kernel, dump: &mut Dump<'_>) -> Result<Kernel, KernelError> {
        dump.stage("built", kernel);
        let plain = STRIP_GRADIENTS.apply(kernel, self.verify)?;
        let kernel = plain.as_ref().unwrap_or(kernel);
        let mut now = match self.optimise {
            true => run_pipeline(kernel, self.verify, &mut |pass, k| dump.stage(pass, k))?,
            false => kernel.clone(),
        };
        let lowerings = self.emitter.lowerings();
        for pass in lowerings {
            now = pass.apply(&now, self.verify)?.unwrap_or(now);
        }
        if let Some(last) = lowerings.last() {
            dump.stage(last.name, &now);
        }
        Ok(now)
    }
}

/// Refuses kernels with more ops than the passes are meant for.
fn check_size(kernels: &[Kernel], limit: usize) -> Result<(), KernelError> {
    let count: usize = kernels.iter().map(Kernel::op_count).sum();
    match kernels.iter().max_by_key(|k| k.op_count()).filter(|_| count > limit) {
        Some(largest) => {
            Err(KernelError::TooManyOps { kernel: largest.name.clone(), count: count as u64, limit: limit as u64 })
        }
        None => Ok(()),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_with_too_many_ops_is_refused_by_the_name_of_its_largest_kernel() {
        let small: Kernel = "kernel small(1, 1, 1) {\n  return\n}".parse().unwrap();
        let large: Kernel = "kernel large(1, 1, 1) {\n  barrier\n  barrier\n  return\n}".parse().unwrap();
        let kernels = [small, large];
        assert_eq!(check_size(&kernels, 4), Ok(()));
        match check_size(&kernels, 3) {
            Err(KernelError::TooManyOps { kernel, count: 4, limit: 3 }) => assert_eq!(kernel, "large"),
            other => panic!("{other:?}"),
        }
    }
}
