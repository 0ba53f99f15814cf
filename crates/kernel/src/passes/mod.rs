//! The passes, one file each, and the pipeline on one page. Each is linear or n log n in the ops it reads and writes.

mod composites;
mod cse;
mod dce;
mod float_atomics;
mod fold;
mod if_conversion;
mod invariant_carries;
mod licm;
mod lower_matrices;
mod multi_level_exits;
pub mod rewrite;
mod sccp;
mod single_trip_loops;
mod specialise;
mod sroa;
mod ssa;
mod store_forwarding;
mod strip_gradients;
mod unroll;

use std::sync::Arc;

use crate::error::KernelError;
use crate::ir::Kernel;
use crate::verify::{is_ssa, verify};
pub use lower_matrices::lower_matrices;
pub use specialise::specialise;

/// One pass: a kernel in, a kernel out that does the same.
#[derive(Clone, Copy, Debug)]
pub struct Pass {
    /// The name in file tests and messages.
    pub name: &'static str,
    /// Nothing, where the kernel would only be copied and a look at it shows that.
    run: fn(&Kernel) -> Option<Kernel>,
}

/// Scalar replacement of aggregates: works on variables, and comes before all else.
const SROA: Pass = Pass { name: "sroa", run: sroa::run };
/// SSA construction: after it there are no variables.
const SSA: Pass = Pass { name: "ssa", run: ssa::run };
const FOLD: Pass = Pass { name: "fold", run: fold::run };
const COMPOSITES: Pass = Pass { name: "composites", run: composites::run };
const SCCP: Pass = Pass { name: "sccp", run: sccp::run };
const INVARIANT_CARRIES: Pass = Pass { name: "invariant_carries", run: invariant_carries::run };
const CSE: Pass = Pass { name: "cse", run: cse::run };
const STORE_FORWARDING: Pass = Pass { name: "store_forwarding", run: store_forwarding::run };
const LICM: Pass = Pass { name: "licm", run: licm::run };
const IF_CONVERSION: Pass = Pass { name: "if_conversion", run: if_conversion::run };
const UNROLL: Pass = Pass { name: "unroll", run: unroll::run };
const SINGLE_TRIP_LOOPS: Pass = Pass { name: "single_trip_loops", run: single_trip_loops::run };
const DCE: Pass = Pass { name: "dce", run: dce::run };
/// Lowers exits from several loops at once. For emitters, not of the pipeline.
pub const MULTI_LEVEL_EXITS: Pass = Pass { name: "multi_level_exits", run: multi_level_exits::run };

/// Drops custom derivatives, which a module does not need. Comes before the pipeline in the compiler, not in [`optimise`].
pub(crate) const STRIP_GRADIENTS: Pass = Pass { name: "strip_gradients", run: strip_gradients::run };

/// Lowers atomic sums of floats. For emitters.
pub const FLOAT_ATOMICS: Pass = Pass { name: "float_atomics", run: float_atomics::run };

/// All passes, for tests that try each.
pub const PASSES: &[Pass] = &[
    SROA,
    SSA,
    FOLD,
    COMPOSITES,
    SCCP,
    INVARIANT_CARRIES,
    CSE,
    STORE_FORWARDING,
    LICM,
    IF_CONVERSION,
    UNROLL,
    SINGLE_TRIP_LOOPS,
    DCE,
    STRIP_GRADIENTS,
    MULTI_LEVEL_EXITS,
    FLOAT_ATOMICS,
];

/// The pipeline, in order. Unused results go first, since SSA construction makes some; the second round sees what unrolling and
/// forwarding laid open.
const PIPELINE: &[Pass] = &[
    SROA,
    SSA,
    DCE,
    FOLD,
    COMPOSITES,
    SINGLE_TRIP_LOOPS,
    SCCP,
    FOLD,
    INVARIANT_CARRIES,
    CSE,
    UNROLL,
    FOLD,
    STORE_FORWARDING,
    COMPOSITES,
    SCCP,
    SINGLE_TRIP_LOOPS,
    FOLD,
    IF_CONVERSION,
    FOLD,
    INVARIANT_CARRIES,
    LICM,
    CSE,
    STORE_FORWARDING,
    DCE,
];

/// Whether the result of each pass is verified where nothing is said: in debug builds, and so in tests.
pub(crate) const VERIFY_EACH: bool = cfg!(debug_assertions);

impl Pass {
    /// The pass with this name.
    pub fn named(name: &str) -> Option<Pass> {
        PASSES.iter().copied().find(|p| p.name == name)
    }

    /// Runs the pass. Debug builds verify what it made.
    pub fn run(self, kernel: &Kernel) -> Result<Kernel, KernelError> {
        Ok(self.apply(kernel, VERIFY_EACH)?.unwrap_or_else(|| kernel.clone()))
    }

    /// Runs the pass; `None` if the kernel stays as it is. What it made is verified where that is asked for.
    pub fn apply(self, kernel: &Kernel, verify_each: bool) -> Result<Option<Kernel>, KernelError> {
        if ![SROA.name, SSA.name, STRIP_GRADIENTS.name, MULTI_LEVEL_EXITS.name, FLOAT_ATOMICS.name].contains(&self.name)
            && !is_ssa(kernel)
        {
            return Err(KernelError::Build {
                kernel: kernel.name.clone(),
                problem: format!("the pass '{}' works on values, and there are variables: run 'ssa' first", self.name),
            });
        }
        let made = (self.run)(kernel);
        if let (true, Some(made)) = (verify_each, &made) {
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

/// Runs the whole pipeline; the result is verified in every build, and keeps the kernel as it was written for derivatives.
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
    let original = kernel.original.clone().unwrap_or_else(|| Arc::new(kernel.clone()));
    let mut made = run_pipeline(kernel, VERIFY_EACH, look)?;
    made.original = Some(original);
    Ok(made)
}

/// The pipeline, for those who need nothing but its result, which is verified in every build.
pub(crate) fn run_pipeline(
    kernel: &Kernel,
    verify_each: bool,
    look: &mut dyn FnMut(&'static str, &Kernel),
) -> Result<Kernel, KernelError> {
    run_passes(PIPELINE, kernel, verify_each, look)
}

fn run_passes(
    passes: &[Pass],
    kernel: &Kernel,
    verify_each: bool,
    look: &mut dyn FnMut(&'static str, &Kernel),
) -> Result<Kernel, KernelError> {
    verify(kernel)?;
    let mut now: Option<Kernel> = None;
    for pass in passes {
        now = pass.apply(now.as_ref().unwrap_or(kernel), verify_each)?.or(now);
        look(pass.name, now.as_ref().unwrap_or(kernel));
    }
    let now = now.unwrap_or_else(|| kernel.clone());
    // The same once more, to name the pass that broke it.
    if !verify_each && verify(&now).is_err() {
        return run_passes(passes, kernel, true, &mut |_, _| ());
    }
    Ok(now)
}

/// The pipeline for kernels that were imported: loops and branches stay as their authors wrote them, unless that is more.
const IMPORTED_PIPELINE: &[Pass] = &[
    SROA,
    SSA,
    DCE,
    FOLD,
    COMPOSITES,
    SINGLE_TRIP_LOOPS,
    SCCP,
    FOLD,
    CSE,
    STORE_FORWARDING,
    COMPOSITES,
    FOLD,
    IF_CONVERSION,
    FOLD,
    LICM,
    CSE,
    DCE,
];

/// Optimises a kernel that was imported, with a look at it after each pass that changed it.
pub fn optimise_imported(
    kernel: &Kernel,
    verify_each: bool,
    look: &mut dyn FnMut(&'static str, &Kernel),
) -> Result<Kernel, KernelError> {
    let mut now: Option<Kernel> = None;
    let size = |k: &Kernel| (k.op_count(), k.value_count(), k.region_count());
    // Passes that have seen the kernel as it is: another run would find nothing new.
    let mut done: Vec<&'static str> = Vec::new();
    for pass in IMPORTED_PIPELINE {
        if done.contains(&pass.name) {
            continue;
        }
        let kernel = now.as_ref().unwrap_or(kernel);
        if let Some(made) = pass.apply(kernel, verify_each)? {
            look(pass.name, &made);
            if size(kernel) != size(&made) {
                done.clear();
            }
            now = Some(made);
        }
        done.push(pass.name);
    }
    let now = now.unwrap_or_else(|| kernel.clone());
    if !verify_each && verify(&now).is_err() {
        return optimise_imported(kernel, true, &mut |_, _| ());
    }
    Ok(now)
}

/// Turns variables into values, those of composites member by member.
pub fn values(kernel: &Kernel) -> Result<Kernel, KernelError> {
    match SROA.apply(kernel, VERIFY_EACH)? {
        Some(split) => SSA.run(&split),
        None => SSA.run(kernel),
    }
}

/// Removes redundant and dead code, and leaves loops and branches as they are.
pub fn clean(kernel: &Kernel) -> Result<Kernel, KernelError> {
    let mut now = kernel.clone();
    for pass in [FOLD, SINGLE_TRIP_LOOPS, SCCP, FOLD, CSE, STORE_FORWARDING, COMPOSITES, DCE] {
        now = pass.apply(&now, VERIFY_EACH)?.unwrap_or(now);
    }
    DCE.check(&now)?;
    Ok(now)
}

/// SSA construction alone.
pub fn construct(kernel: &Kernel) -> Result<Kernel, KernelError> {
    verify(kernel)?;
    SSA.run(kernel)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Compiler, Emitter, ModuleKind, Target};

    const GOOD: &str = "kernel k(1, 1, 1) {\n  return\n}";
    /// A value is used outside of the region that defines it.
    const BROKEN: &str = "kernel k(1, 1, 1) {
  buffer y: u32 write
  %0 = const 0 : u32
  %1 = lt %0, %0 : bool
  if %1 {
    %2 = const 5 : u32
    yield
  } else {
    yield
  }
  store y[%0], %2
  return
}";

    fn parsed(text: &str) -> Kernel {
        text.parse().unwrap()
    }

    const BREAKS: Pass = Pass { name: "breaks", run: |_| Some(parsed(BROKEN)) };
    const MENDS: Pass = Pass { name: "mends", run: |_| Some(parsed(GOOD)) };
    const LEAVES: Pass = Pass { name: "leaves", run: |_| None };

    fn blamed<T>(made: Result<T, KernelError>) -> Option<&'static str> {
        match made {
            Ok(_) => None,
            Err(KernelError::Pass { kernel, pass, cause }) => {
                assert!(kernel == "k" && cause.to_string().contains("not defined here"), "{kernel}: {cause}");
                Some(pass)
            }
            Err(other) => panic!("{other}"),
        }
    }

    #[test]
    fn a_pass_that_breaks_ssa_is_named_where_each_is_verified() {
        let kernel = parsed(GOOD);
        let run = |passes: &[Pass], verify_each| run_passes(passes, &kernel, verify_each, &mut |_, _| ());
        // A later pass that hides it is no excuse.
        assert_eq!(blamed(run(&[LEAVES, BREAKS, LEAVES, MENDS], true)), Some("breaks"));
        assert_eq!(blamed(run(&[LEAVES, BREAKS, LEAVES, MENDS], false)), None);
        // A broken result is refused in every build, with the name of the pass that broke it and not of the last one.
        assert_eq!(blamed(run(&[LEAVES, BREAKS, LEAVES], false)), Some("breaks"));
        assert_eq!(blamed(BREAKS.run(&kernel)).is_some(), VERIFY_EACH);
    }

    #[derive(Debug)]
    struct Lowers(&'static [Pass]);

    impl Emitter for Lowers {
        fn kind(&self) -> ModuleKind {
            ModuleKind::Ptx
        }

        fn version(&self) -> &'static str {
            "test"
        }

        fn lowerings(&self) -> &[Pass] {
            self.0
        }

        fn emit(&self, kernels: &[Kernel], _: &Target) -> Result<Vec<u8>, KernelError> {
            Ok(kernels[0].to_string().into_bytes())
        }

        fn check(&self, _: &[u8]) -> Result<(), String> {
            Ok(())
        }
    }

    #[test]
    fn a_compiler_verifies_lowerings_too() {
        let compiler = Compiler::new(Lowers(&[BREAKS, MENDS]), Target::LEAST);
        let compile = |compiler: &Compiler| compiler.compile(&[parsed(GOOD)]);
        assert_eq!(blamed(compile(&compiler.clone().verify(true))), Some("breaks"));
        assert_eq!(blamed(compile(&compiler.clone().verify(false))), None);
        assert_eq!(blamed(compile(&compiler)).is_some(), cfg!(debug_assertions), "tests verify");
    }
}
