//! The passes, one file each, and the pipeline on one page. Each is linear or n log n in the ops it reads and writes.

mod constants;
mod dead;
mod exits;
mod float_atomics;
mod fold;
mod forward;
mod given;
mod hoist;
mod matrices;
mod numbering;
mod once;
pub(crate) mod rewrite;
mod select;
mod specialise;
mod split;
mod ssa;
mod unchanged;
mod unroll;
mod vectors;

use crate::error::KernelError;
use crate::ir::Kernel;
use crate::verify::{is_ssa, verify};
pub use matrices::lower_matrices;
pub use specialise::specialise;
pub(crate) use split::LEVELS as SPLIT_LEVELS;
pub(crate) use unroll::{MOST as MOST_UNROLLED, SMALL as SMALL_UNROLLED};

/// One pass: a kernel in, a kernel out that does the same.
#[derive(Clone, Copy, Debug)]
pub struct Pass {
    /// The name in file tests and messages.
    pub name: &'static str,
    /// Nothing, where the kernel would only be copied and a look at it shows that.
    run: fn(&Kernel) -> Option<Kernel>,
}

/// Works on variables, and comes before all else.
const SPLIT: Pass = Pass { name: "split", run: split::run };
/// SSA construction: behind it there are no variables.
const SSA: Pass = Pass { name: "ssa", run: ssa::run };
const FOLD: Pass = Pass { name: "fold", run: fold::run };
const VECTORS: Pass = Pass { name: "vectors", run: vectors::run };
const CONSTANTS: Pass = Pass { name: "constants", run: constants::run };
const UNCHANGED: Pass = Pass { name: "unchanged", run: unchanged::run };
const NUMBERING: Pass = Pass { name: "numbering", run: numbering::run };
const FORWARD: Pass = Pass { name: "forward", run: forward::run };
const HOIST: Pass = Pass { name: "hoist", run: hoist::run };
const SELECT: Pass = Pass { name: "select", run: select::run };
const UNROLL: Pass = Pass { name: "unroll", run: unroll::run };
const ONCE: Pass = Pass { name: "once", run: once::run };
const DEAD: Pass = Pass { name: "dead", run: dead::run };
/// Loops left by more than one level: what SPIR-V cannot say. Part of emission, not of the pipeline.
pub(crate) const EXITS: Pass = Pass { name: "exits", run: exits::run };

/// Derivatives that were given: what words do not need. Comes before the pipeline on the way to words, not in [`optimise`].
pub(crate) const GIVEN: Pass = Pass { name: "given", run: given::run };

/// Atomic sums of floats. Part of emission.
pub(crate) const FLOAT_ATOMICS: Pass = Pass { name: "float_atomics", run: float_atomics::run };

/// All passes, for tests that try each.
pub const PASSES: &[Pass] = &[
    SPLIT,
    SSA,
    FOLD,
    VECTORS,
    CONSTANTS,
    UNCHANGED,
    NUMBERING,
    FORWARD,
    HOIST,
    SELECT,
    UNROLL,
    ONCE,
    DEAD,
    GIVEN,
    EXITS,
    FLOAT_ATOMICS,
];

/// The pipeline, in order. Unused results go first, since SSA construction makes some; the second round sees what unrolling and
/// forwarding laid open.
const PIPELINE: &[Pass] = &[
    SPLIT, SSA, DEAD, FOLD, VECTORS, ONCE, CONSTANTS, FOLD, UNCHANGED, NUMBERING, UNROLL, FOLD, FORWARD, VECTORS,
    CONSTANTS, ONCE, FOLD, SELECT, FOLD, UNCHANGED, HOIST, NUMBERING, FORWARD, DEAD,
];

impl Pass {
    /// The pass with this name.
    pub fn named(name: &str) -> Option<Pass> {
        PASSES.iter().copied().find(|p| p.name == name)
    }

    /// Runs the pass. Debug builds verify what it made.
    pub fn run(self, kernel: &Kernel) -> Result<Kernel, KernelError> {
        Ok(self.apply(kernel)?.unwrap_or_else(|| kernel.clone()))
    }

    /// Runs the pass; nothing, if the kernel stays as it is.
    pub(crate) fn apply(self, kernel: &Kernel) -> Result<Option<Kernel>, KernelError> {
        if ![SPLIT.name, SSA.name, GIVEN.name, EXITS.name, FLOAT_ATOMICS.name].contains(&self.name) && !is_ssa(kernel) {
            return Err(KernelError::Build {
                kernel: kernel.name.clone(),
                problem: format!("the pass '{}' works on values, and there are variables: run 'ssa' first", self.name),
            });
        }
        let made = (self.run)(kernel);
        if let (true, Some(made)) = (cfg!(debug_assertions), &made) {
            self.check(made)?;
        }
        Ok(made)
    }

    fn check(self, made: &Kernel) -> Result<(), KernelError> {
        verify(made).map_err(|cause| KernelError::Pass {
            kernel: made.name.clone(),
            pass: self.name,
            cause: Box::new(cause),
        })
    }
}

/// Runs the whole pipeline; the result is verified in every build.
///
/// ```
/// use impasto_kernel::{Builder, optimise};
/// let kernel = Builder::kernel("five", [1, 1, 1], |k| {
///     let y = k.buffer_mut::<u32>("y");
///     let sum = k.var(0u32);
///     k.for_(0u32, 5u32, |_, _| sum.set(sum.get() + 1u32));
///     y.store(0, sum.get());
/// })?;
/// assert!(optimise(&kernel)?.to_string().contains("const 5 : u32"));
/// # Ok::<(), impasto_kernel::KernelError>(())
/// ```
pub fn optimise(kernel: &Kernel) -> Result<Kernel, KernelError> {
    optimise_seen(kernel, &mut |_, _| ())
}

/// [`optimise`], with a look at the kernel after each pass.
pub fn optimise_seen(kernel: &Kernel, look: &mut dyn FnMut(&'static str, &Kernel)) -> Result<Kernel, KernelError> {
    verify(kernel)?;
    let split = SPLIT.apply(kernel)?;
    let kernel = split.as_ref().unwrap_or(kernel);
    look(SPLIT.name, kernel);
    let mut now = SSA.run(kernel)?;
    look(SSA.name, &now);
    for pass in &PIPELINE[2..] {
        if let Some(made) = pass.apply(&now)? {
            now = made;
        }
        look(pass.name, &now);
    }
    DEAD.check(&now)?;
    Ok(now)
}

/// The pipeline for kernels that were imported: loops and branches stay as their authors wrote them, unless that is more.
const MODULE_PIPELINE: &[Pass] = &[
    SPLIT, SSA, DEAD, FOLD, VECTORS, ONCE, CONSTANTS, FOLD, NUMBERING, FORWARD, VECTORS, FOLD, SELECT, FOLD, HOIST,
    NUMBERING, DEAD,
];

/// Optimises a kernel that was imported from a module.
pub(crate) fn optimise_module(
    kernel: &Kernel,
    look: &mut dyn FnMut(&'static str, &Kernel),
) -> Result<Kernel, KernelError> {
    let mut now: Option<Kernel> = None;
    let size = |k: &Kernel| (k.op_count(), k.value_count(), k.region_count());
    // Passes that have seen the kernel as it is: another turn would find nothing new.
    let mut done: Vec<&'static str> = Vec::new();
    for pass in MODULE_PIPELINE {
        if done.contains(&pass.name) {
            continue;
        }
        let kernel = now.as_ref().unwrap_or(kernel);
        if let Some(made) = pass.apply(kernel)? {
            look(pass.name, &made);
            if size(kernel) != size(&made) {
                done.clear();
            }
            now = Some(made);
        }
        done.push(pass.name);
    }
    let now = now.unwrap_or_else(|| kernel.clone());
    DEAD.check(&now)?;
    Ok(now)
}

/// Variables become values, those of composites member by member.
pub(crate) fn values(kernel: &Kernel) -> Result<Kernel, KernelError> {
    match SPLIT.apply(kernel)? {
        Some(split) => SSA.run(&split),
        None => SSA.run(kernel),
    }
}

/// Takes out what is plainly superfluous, and leaves loops and branches as they are.
pub(crate) fn clean(kernel: &Kernel) -> Result<Kernel, KernelError> {
    let mut now = kernel.clone();
    for pass in [FOLD, ONCE, CONSTANTS, FOLD, NUMBERING, FORWARD, VECTORS, DEAD] {
        now = pass.apply(&now)?.unwrap_or(now);
    }
    DEAD.check(&now)?;
    Ok(now)
}

/// SSA construction alone.
pub fn construct(kernel: &Kernel) -> Result<Kernel, KernelError> {
    verify(kernel)?;
    SSA.run(kernel)
}
