//! Modules on the CPU: imported, not optimised, and run by the executor.

mod instructions;
mod memory;
mod numbers;
mod observe;

use rspirv::spirv::{Decoration, Op as S};

use impasto_kernel::KernelError;
use impasto_kernel::exec::{Coverage, Launch, execute_foreign};
use impasto_kernel::hash::Map;
use impasto_kernel::ir::{Kernel, OpId, OpKind, Value};

use crate::import::foreign::Foreign;
use crate::import::{ImportError, ModuleInterface, ModuleOptions, SHARED, Source, import_all, reflect};
use memory::ModuleMemory;
pub(crate) use observe::{Observer, VARIED};

/// Scalars that take as long to move as one op of one invocation.
const SCALARS_OF_AN_OP: u64 = 4;

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
    ModuleProgram::new(words, entry)?.run(launch, &mut Observer::default()).0
}

/// An entry point of a module, to be run on the executor any number of times.
pub(crate) struct ModuleProgram {
    pub(crate) source: Source,
    pub(crate) kernel: Kernel,
    interface: ModuleInterface,
    /// The values that are constants, and the ops that give them.
    pub(crate) constants: Map<Value, OpKind>,
}

impl ModuleProgram {
    pub(crate) fn new(words: &[u32], entry: &str) -> Result<ModuleProgram, ImportError> {
        let imported = import_all(words, ModuleOptions { strict: true, ..ModuleOptions::default() })?;
        let interface = reflect::of(&imported.source)?;
        let Some(mut kernel) = imported.kernels.into_iter().find(|k| k.name == entry) else {
            return Err(ImportError::Words { word: 5, problem: format!("there is no entry point '{entry}'") });
        };
        kernel.workgroup = interface.entries.iter().find(|e| e.name == entry).map_or([1; 3], |e| e.workgroup);
        let mut program = ModuleProgram { source: imported.source, kernel, interface, constants: Map::default() };
        let k = &program.kernel;
        program.constants =
            program.ops().filter(|&op| is_constant(k.kind(op))).map(|op| (k.result(op), k.kind(op))).collect();
        Ok(program)
    }

    /// All its ops.
    pub(crate) fn ops(&self) -> impl Iterator<Item = OpId> {
        let k = &self.kernel;
        let mut open = vec![k.body()];
        std::iter::from_fn(move || {
            open.pop().map(|region| {
                let ops = k.region_ops(region);
                ops.iter().for_each(|&op| open.extend_from_slice(k.regions(op)));
                ops
            })
        })
        .flatten()
        .copied()
    }

    /// Runs it, and says what it reached; the buffers hold the results afterwards, and the observer what the ops computed that it watches.
    pub(crate) fn run(
        &self,
        launch: &mut ModuleLaunch,
        observer: &mut Observer,
    ) -> (Result<(), ImportError>, Coverage) {
        let ModuleProgram { source, kernel, interface, .. } = self;
        if launch.buffers.len() != interface.buffers.len() {
            let problem = format!("it takes {} buffers, {} were given", interface.buffers.len(), launch.buffers.len());
            return (Err(ImportError::Words { word: 5, problem }), Coverage::default());
        }
        let mut run = Launch::new(launch.groups, Vec::new());
        run.subgroup = launch.subgroup;
        run.max_ops = launch.most_ops;
        let mut bytes = std::mem::take(&mut launch.buffers);
        bytes.push(launch.constants.clone());
        let failed = |e: KernelError| ImportError::Words { word: 5, problem: e.to_string() };
        let mut memory = match ModuleMemory::new(source, kernel, interface, bytes, observer) {
            Ok(memory) => memory,
            Err(what) => return (Err(failed(cannot_run(&kernel.name, &what))), Coverage::default()),
        };
        let (result, mut coverage) = execute_foreign(kernel, &mut run, &mut memory);
        coverage.work += memory.moved / SCALARS_OF_AN_OP;
        launch.strayed = memory.strayed;
        launch.buffers = memory.buffers.into_iter().take(interface.buffers.len()).collect();
        (result.map_err(failed), coverage)
    }

    /// Its ops that compute or move something, and of those the ones that write memory which others see. Moves between blocks count as
    /// nothing: the same program can be written with more or fewer of them.
    pub(crate) fn instructions(&self) -> Vec<(OpId, bool)> {
        let k = &self.kernel;
        let foreign = Foreign::of(k);
        let mut found = Vec::new();
        for op in self.ops() {
            let writes = match k.kind(op) {
                kind if kind.is_structure() || kind.is_terminator() || is_constant(kind) => continue,
                OpKind::Get(_) | OpKind::Set(_) => continue,
                OpKind::Store(memory) => memory == SHARED,
                OpKind::Foreign(n, _) => {
                    let code = foreign.and_then(|f| f.instructions.get(n as usize)).map_or(0, |i| i.opcode.into());
                    S::from_u32(code).is_some_and(|c| c == S::Store || instructions::is_atomic(c))
                }
                _ => false,
            };
            found.push((op, writes));
        }
        found
    }

    /// Invocations in a workgroup.
    pub(crate) fn lanes(&self) -> u64 {
        self.kernel.workgroup.iter().map(|&n| u64::from(n)).product()
    }

    /// The integers that the module has as constants of 32 bits.
    pub(crate) fn integers(&self) -> impl Iterator<Item = u32> {
        let s = &self.source;
        s.preamble.iter().filter(|&&at| s.op(at) == S::Constant).filter_map(|&at| s.constant(s.operands(at)[1]))
    }
}

/// Whether an op gives the same value wherever it stands.
pub(crate) fn is_constant(kind: OpKind) -> bool {
    matches!(kind, OpKind::Const(_) | OpKind::ForeignConst(_) | OpKind::Undef)
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
