//! Modules of others: read, optimised by our passes, written again.
//!
//! A module keeps everything outside of its functions: capabilities, interface, layouts, specialisation constants, names. The function of each
//! entry point becomes a kernel, with the functions that it calls in place of their calls ([`body`]); its types are those of the
//! module, what our op table has becomes ops of ours, and every other instruction an opaque op with a known effect, or with any
//! ([`table`]). The passes then work on it as on any kernel, and [`write`] puts it back. What stands in a module without being
//! total stays so: nothing is guarded that was not.
//!
//! A function that is not understood is passed through as it was, and named.

mod body;
mod control;
mod facts;
pub(crate) mod foreign;
pub(crate) mod grammar;
mod module;
mod ops;
pub(crate) mod reflect;
mod rules;
mod table;
mod write;

use body::Blocks;
pub(crate) use body::SHARED;
use facts::Facts;
pub(crate) use facts::pointee;
use rspirv::spirv::Op as S;

use impasto_kernel::KernelError;
use impasto_kernel::hash::Set;
use impasto_kernel::ir::Kernel;
use impasto_kernel::passes::{MULTI_LEVEL_EXITS, optimise_imported};
use impasto_kernel::verify;
use module::At;
pub(crate) use module::Source;
pub use reflect::{BlockLayout, BoundBuffer, LastArray, ModuleEntry, ModuleInterface, ScalarFormat, reflect};
pub(crate) use reflect::{member_scalars, size_constants, strides};

/// Why a module was not optimised.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ImportError {
    /// The words are no module, or not one that can be read.
    #[error("word {word}: {problem}")]
    Words {
        /// The place of the first word that is wrong.
        word: usize,
        /// What is wrong there.
        problem: String,
    },
    /// The module is of another stage.
    #[error(
        "word {word}: the entry point '{name}' is a {stage} shader; only compute shaders (GLCompute) are optimised here"
    )]
    Graphics {
        /// The place of the entry point.
        word: usize,
        /// Its name.
        name: String,
        /// Its stage.
        stage: String,
    },
    /// A function is not understood, and was not to be passed through.
    #[error(
        "word {word}: the function '{function}' is not understood: {reason}; without --strict it is passed through as it is"
    )]
    NotUnderstood {
        /// The function.
        function: String,
        /// The word.
        word: usize,
        /// What is there.
        reason: String,
    },
    /// The module needs a newer environment.
    #[error("word 1: the module is SPIR-V {}.{}, and {environment} takes up to {}.{}", version.0, version.1, most.0, most.1)]
    Environment {
        /// The version of the module.
        version: (u32, u32),
        /// The environment that was asked for.
        environment: &'static str,
        /// The version that it takes.
        most: (u32, u32),
    },
    /// The result would be wrong: a fault of ours.
    #[error("what was written is wrong, which is a fault of the optimiser, please report it: {0}; nothing was written")]
    Fault(String),
    /// The result needs too many ids.
    #[error("the optimised module would need {count} ids, and the limit of SPIR-V is {limit}; nothing was written")]
    TooManyIds {
        /// The ids that would be needed.
        count: u64,
        /// The most that may be used.
        limit: u32,
    },
}

fn at(word: At, problem: String) -> ImportError {
    ImportError::Words { word: word as usize, problem }
}

/// A Vulkan environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Environment {
    /// Its name.
    pub name: &'static str,
    /// The newest version of SPIR-V that it takes.
    pub version: (u32, u32),
}

impl Environment {
    /// All that there are.
    pub const ALL: [Environment; 5] = [
        Environment { name: "vulkan1.0", version: (1, 0) },
        Environment { name: "vulkan1.1", version: (1, 3) },
        Environment { name: "vulkan1.2", version: (1, 5) },
        Environment { name: "vulkan1.3", version: (1, 6) },
        Environment { name: "vulkan1.4", version: (1, 6) },
    ];
}

/// How a module is optimised.
#[derive(Clone, Copy, Debug)]
pub struct ModuleOptions {
    /// Refuse what is not understood instead of passing it through.
    pub strict: bool,
    /// Refuse modules that this environment does not take.
    pub environment: Option<Environment>,
    /// Verify each kernel after each pass.
    pub verify: bool,
}

impl Default for ModuleOptions {
    /// What is not understood is passed through, every environment is taken, and debug builds verify.
    fn default() -> ModuleOptions {
        ModuleOptions { strict: false, environment: None, verify: cfg!(debug_assertions) }
    }
}

/// A function that was passed through as it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PassedThrough {
    /// Its name, or its id.
    pub function: String,
    /// The word that was not understood.
    pub word: usize,
    /// What is there.
    pub reason: String,
}

/// A module, optimised.
#[derive(Clone, Debug)]
pub struct OptimisedModule {
    /// The words.
    pub words: Vec<u32>,
    /// Functions that were passed through as they were.
    pub passed: Vec<PassedThrough>,
}

/// Instructions of the functions of a module that was read.
pub fn count_instructions(words: &[u32]) -> usize {
    ModuleSize::of(words).instructions
}

/// The entry points of a module as kernels, and what was not understood.
pub(crate) struct Imported {
    pub(crate) source: Source,
    pub(crate) kernels: Vec<Kernel>,
    kept: Set<u32>,
    passed: Vec<PassedThrough>,
}

pub(crate) fn import_all(words: &[u32], options: ModuleOptions) -> Result<Imported, ImportError> {
    if let (Some(e), Some(&version)) = (options.environment, words.get(1)) {
        let have = (version >> 16 & 0xFF, version >> 8 & 0xFF);
        if have > e.version {
            return Err(ImportError::Environment { version: have, environment: e.name, most: e.version });
        }
    }
    let source = Source::read(words)?;
    let blocks = Blocks::of(&source);
    let mut kept = Set::default();
    let mut passed: Vec<PassedThrough> = Vec::new();
    // Each iteration imports all, or finds one more function that stays as it is.
    let kernels = 'again: loop {
        let facts = Facts::of(&source, &kept);
        let mut kernels = Vec::new();
        let mut done = Set::default();
        for e in &source.entries {
            if kept.contains(&e.function) || !done.insert(e.function) {
                continue;
            }
            let f = source.function_of[&e.function];
            let imported = body::import(&source, &facts, &blocks, f, &e.name, &kept).and_then(|kernel| {
                // What breaks the rules of our language breaks those of SPIR-V, too.
                let wrong =
                    |e: KernelError| body::Refusal { word: source.functions[f].at as usize, reason: e.to_string() };
                verify(&kernel).map(|()| kernel).map_err(wrong)
            });
            let refusal = match imported {
                Ok(kernel) => {
                    kernels.push(kernel);
                    continue;
                }
                Err(refusal) => refusal,
            };
            let word = refusal.word as At;
            let inside = source.functions.iter().find(|f| (f.at..f.end).contains(&word)).map_or(e.function, |f| f.id);
            // What is found in a function that already stays is the caller's affair.
            let function = if kept.contains(&inside) { e.function } else { inside };
            let name = source.function_name(function);
            if options.strict {
                return Err(ImportError::NotUnderstood { function: name, word: refusal.word, reason: refusal.reason });
            }
            kept.insert(function);
            passed.push(PassedThrough { function: name, word: refusal.word, reason: refusal.reason });
            continue 'again;
        }
        break kernels;
    };
    Ok(Imported { source, kernels, kept, passed })
}

/// Optimises a module of compute shaders. The same words give the same words.
///
/// ```
/// use impasto_kernel::Builder;
/// use impasto_spirv::{ModuleOptions, Words, compile_unoptimised, optimise_words};
/// let kernel = Builder::kernel("k", [64, 1, 1], |k| {
///     let (y, sum) = (k.buffer_mut::<u32>("y"), k.var(0u32));
///     k.if_(k.global_id(0).gt(3), || sum.set(sum.get() + 1u32));
///     y.store(k.global_id(0), sum.get());
/// })?;
/// let before = compile_unoptimised(&kernel)?.words();
/// let after = optimise_words(&before, ModuleOptions::default()).unwrap();
/// assert!(after.words.len() < before.len() && after.passed.is_empty());
/// # Ok::<(), impasto_kernel::KernelError>(())
/// ```
pub fn optimise_words(words: &[u32], options: ModuleOptions) -> Result<OptimisedModule, ImportError> {
    optimise_words_seen(words, options, &mut |_, _, _| ())
}

/// What is better in a module that does the same, most important first: fewer instructions in its functions, fewer in loops, fewer words, fewer ids.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct ModuleSize {
    instructions: usize,
    in_loops: usize,
    words: usize,
    ids: u32,
}

impl ModuleSize {
    /// The size of a module that was read or written here.
    fn of(words: &[u32]) -> ModuleSize {
        let mut size =
            ModuleSize { instructions: 0, in_loops: 0, words: words.len(), ids: words.get(3).copied().unwrap_or(0) };
        let (mut at, mut inside) = (5, false);
        // The merge blocks of the loops around.
        let mut merges: Vec<u32> = Vec::new();
        while at < words.len() {
            let op = words[at] & 0xFFFF;
            inside |= op == S::Function as u32;
            match words.get(at + 1) {
                Some(&label) if op == S::Label as u32 => merges.retain(|&m| m != label),
                Some(&merge) if op == S::LoopMerge as u32 => merges.push(merge),
                _ => {}
            }
            size.instructions += usize::from(inside);
            size.in_loops += merges.len();
            at += (words[at] >> 16).max(1) as usize;
        }
        size
    }
}

/// [`optimise_words`], with a look at each entry point after each pass: the pass, the entry point, and its text.
///
/// A module is optimised until that makes it no smaller, so the result has at most the instructions of `words`, and is its own result.
pub fn optimise_words_seen(
    words: &[u32],
    options: ModuleOptions,
    look: &mut dyn FnMut(&'static str, &str, &dyn std::fmt::Display),
) -> Result<OptimisedModule, ImportError> {
    let OptimisedModule { words: mut made, passed } = optimise_once(words, options, look)?;
    let mut best = words.to_vec();
    let mut size = ModuleSize::of(words);
    loop {
        if ModuleSize::of(&made) >= size {
            // Ids and debug information may still be compacted where no pass helps.
            made = compact(&best)?;
            if ModuleSize::of(&made) >= size {
                return Ok(OptimisedModule { words: best, passed });
            }
        }
        size = ModuleSize::of(&made);
        best = made;
        made = optimise_once(&best, options, look)?.words;
    }
}

/// The module with its functions as they are, and what they do not need left out.
fn compact(words: &[u32]) -> Result<Vec<u32>, ImportError> {
    let source = Source::read(words)?;
    let kept = source.functions.iter().map(|f| f.id).collect();
    let words = write::write(&source, &[], &kept)?;
    module::last_look(&words).map_err(|e| ImportError::Fault(e.to_string()))?;
    Ok(words)
}

fn optimise_once(
    words: &[u32],
    options: ModuleOptions,
    look: &mut dyn FnMut(&'static str, &str, &dyn std::fmt::Display),
) -> Result<OptimisedModule, ImportError> {
    let Imported { source, kernels, kept, passed } = import_all(words, options)?;
    let fault = |e: KernelError| ImportError::Fault(e.to_string());
    let mut made = Vec::new();
    for k in &kernels {
        look("imported", &k.name, k);
        let last = optimise_imported(k, options.verify, &mut |pass, now| look(pass, &k.name, now)).map_err(fault)?;
        let last = MULTI_LEVEL_EXITS.apply(&last, options.verify).map_err(fault)?.unwrap_or(last);
        made.push(last);
    }
    let words = write::write(&source, &made, &kept)?;
    module::last_look(&words).map_err(|e| ImportError::Fault(e.to_string()))?;
    Ok(OptimisedModule { words, passed })
}
