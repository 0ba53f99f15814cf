//! Modules on the CPU: imported, not optimised, and run by the executor.

mod instructions;
mod memory;
mod numbers;

use rspirv::spirv::{Decoration, Op as S};

use impasto_kernel::KernelError;
use impasto_kernel::exec::{Launch, execute_foreign};

use crate::import::{ImportError, ModuleInterface, ModuleOptions, Source, import_all, reflect};
use memory::ModuleMemory;

/// One launch of an entry point of a module.
#[derive(Clone, Debug)]
pub struct ModuleLaunch {
    /// Workgroups in x, y and z.
    pub groups: [u32; 3],
    /// The bytes of the buffers, in the order of [`ModuleInterface::buffers`].
    pub buffers: Vec<Vec<u8>>,
    /// The bytes of the push constants.
    pub constants: Vec<u8>,
    /// Invocations in a subgroup.
    pub subgroup: u32,
    /// A run that takes more ops than this is stopped: a loop may not end.
    pub most_ops: u64,
    /// Afterwards, whether something was read or written outside of its buffer or array. Vulkan promises nothing of such a program.
    pub strayed: bool,
}

/// Runs an entry point on the executor; the buffers hold the results afterwards. What it cannot run is an error that says so.
pub fn execute_words(words: &[u32], entry: &str, launch: &mut ModuleLaunch) -> Result<(), ImportError> {
    let options = ModuleOptions { strict: true, environment: None };
    let imported = import_all(words, options)?;
    let interface = reflect::of(&imported.source)?;
    let Some(mut kernel) = imported.kernels.into_iter().find(|k| k.name == entry) else {
        return Err(ImportError::Words { word: 5, problem: format!("there is no entry point '{entry}'") });
    };
    kernel.workgroup = interface.entries.iter().find(|e| e.name == entry).map_or([1; 3], |e| e.workgroup);
    if launch.buffers.len() != interface.buffers.len() {
        let problem = format!("it takes {} buffers, {} were given", interface.buffers.len(), launch.buffers.len());
        return Err(ImportError::Words { word: 5, problem });
    }
    let mut run = Launch::new(launch.groups, Vec::new());
    run.subgroup = launch.subgroup;
    run.max_ops = launch.most_ops;
    let mut bytes = launch.buffers.clone();
    bytes.push(launch.constants.clone());
    let failed = |e: KernelError| ImportError::Words { word: 5, problem: e.to_string() };
    let mut outside = ModuleMemory::new(&imported.source, &kernel, &interface, bytes)
        .map_err(|what| failed(cannot_run(&kernel.name, &what)))?;
    execute_foreign(&kernel, &mut run, &mut outside).map_err(failed)?;
    launch.strayed = outside.strayed;
    launch.buffers = outside.buffers.into_iter().take(interface.buffers.len()).collect();
    Ok(())
}

fn cannot_run(kernel: &str, what: &str) -> KernelError {
    KernelError::Launch { kernel: kernel.to_owned(), problem: format!("{what} cannot be run here") }
}

/// The module with its buffers at bindings 0 and on of set 0, in the order of [`ModuleInterface::buffers`]: as our devices take them.
pub fn rebind(words: &[u32], interface: &ModuleInterface) -> Result<Vec<u32>, ImportError> {
    let s = Source::read(words)?;
    let mut words = s.words.clone();
    for (i, b) in (0u32..).zip(&interface.buffers) {
        for &at in s.decorations.get(&b.variable).into_iter().flatten() {
            let w = s.operands(at);
            match w.get(1) {
                Some(&d) if s.op(at) == S::Decorate && d == Decoration::DescriptorSet as u32 => {
                    words[at as usize + 3] = 0
                }
                Some(&d) if s.op(at) == S::Decorate && d == Decoration::Binding as u32 => words[at as usize + 3] = i,
                _ => {}
            }
        }
    }
    words[3] = s.bound;
    Ok(words)
}
