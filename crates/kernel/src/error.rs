//! What can be wrong with a kernel. Each error names the kernel, and the op where there is one.

use std::fmt;
use std::panic::Location;

use crate::target::Feature;

/// A kernel that cannot be built, compiled or run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KernelError {
    /// The textual form is not a kernel.
    #[error("line {line}: {problem}")]
    Parse {
        /// The line, from 1.
        line: usize,
        /// What is wrong there.
        problem: String,
    },
    /// A rule of the language is broken.
    #[error("kernel '{kernel}': `{op}`: {problem}")]
    Invalid {
        /// The kernel.
        kernel: String,
        /// The op, as the textual form shows it.
        op: String,
        /// Which rule, and what to do.
        problem: String,
    },
    /// A pass broke the kernel: a fault of this compiler, not of the kernel.
    #[error(
        "kernel '{kernel}': the pass '{pass}' broke it, which is a fault of the compiler, please report it: {cause}"
    )]
    Pass {
        /// The kernel.
        kernel: String,
        /// The pass.
        pass: &'static str,
        /// What the verifier says.
        cause: Box<KernelError>,
    },
    /// The builder was used wrongly where types could not prevent it.
    #[error("kernel '{kernel}': {problem}")]
    Build {
        /// The kernel.
        kernel: String,
        /// What was done, and what to do instead.
        problem: String,
    },
    /// A run on the executor that the program made impossible.
    #[error("kernel '{kernel}': `{op}`, workgroup {workgroup:?}, invocation {invocation}: {problem}")]
    Run {
        /// The kernel.
        kernel: String,
        /// The op, as the textual form shows it.
        op: String,
        /// The workgroup.
        workgroup: [u32; 3],
        /// The invocation in it.
        invocation: u32,
        /// What happened.
        problem: String,
    },
    /// A derivative that cannot be computed rightly, so that it is refused.
    #[error("{}kernel '{kernel}' cannot be differentiated: `{op}`: {problem}", place.map(|p| format!("{p}: ")).unwrap_or_default())]
    Gradient {
        /// The kernel.
        kernel: String,
        /// Where the op was written: file, line and column. None in a kernel that was read from its textual form.
        place: Option<&'static Location<'static>>,
        /// The op, as the textual form shows it.
        op: String,
        /// Why, and what to do.
        problem: String,
    },
    /// A tape was too small, so that what was computed means nothing.
    #[error(
        "kernel '{kernel}': its tape has room for {have} values for each invocation and {needed} are needed, so the gradients mean nothing. \
         Ask for the size with the same buffers and parameters as the launch"
    )]
    Tape {
        /// The kernel.
        kernel: String,
        /// The values for each invocation that there is room for.
        have: u32,
        /// The values for each invocation that were needed, or more.
        needed: u32,
    },
    /// What a caller gave does not fit the kernel.
    #[error("kernel '{kernel}': {problem}")]
    Launch {
        /// The kernel.
        kernel: String,
        /// What does not fit.
        problem: String,
    },
    /// The kernel needs matrices that the target does not have.
    #[error(
        "kernel '{kernel}': it needs {needs}, and the target offers {offers}. Write it for one of those, or take its matrices apart with \
         lower_matrices before it is compiled, which works on every device"
    )]
    NoMatrix {
        /// The kernel.
        kernel: String,
        /// The product or the matrix.
        needs: String,
        /// The products that the target computes.
        offers: String,
    },
    /// The kernel needs what the device lacks.
    #[error(
        "kernel '{kernel}': `{op}` needs {feature} ({known_as}), which the device does not have; use other types or operations there, or \
         another device"
    )]
    Lacks {
        /// The kernel.
        kernel: String,
        /// The first op that needs it, as the textual form shows it.
        op: String,
        /// What it needs.
        feature: Feature,
        /// What the API of the device calls it.
        known_as: &'static str,
    },
    /// The kernel is larger than the device takes.
    #[error(
        "kernel '{kernel}': it has {needs} {what}, and the device takes {limit}; make it smaller, or use another device"
    )]
    TooLarge {
        /// The kernel.
        kernel: String,
        /// What there is too much of.
        what: String,
        /// How much of it.
        needs: u64,
        /// The most there may be.
        limit: u64,
    },
    /// The driver is older than every module.
    #[error("kernel '{kernel}': it needs {api} {}.{}, and the device has {}.{}; update its driver", needs.0, needs.1, have.0, have.1)]
    OldDriver {
        /// The kernel.
        kernel: String,
        /// The name of the API.
        api: &'static str,
        /// The version that modules need.
        needs: (u32, u32),
        /// The version of the device.
        have: (u32, u32),
    },
    /// The kernels of a module do not go together.
    #[error("kernel '{kernel}': {problem}")]
    Module {
        /// The kernel.
        kernel: String,
        /// What is wrong, and what to do.
        problem: String,
    },
    /// The words are not what they should be: a fault of this compiler, not of the kernel.
    #[error(
        "kernel '{kernel}': its words are wrong, which is a fault of the compiler, please report it: {problem}; nothing was written"
    )]
    Words {
        /// The kernel, or the first of several.
        kernel: String,
        /// What is wrong with them, and where.
        problem: String,
    },
    /// There are more ops than the passes are meant for.
    #[error(
        "kernel '{kernel}': its module has {count} ops, and the compiler takes {limit}; nothing was written. Split the kernel, or unroll less"
    )]
    TooManyOps {
        /// The kernel with most of them.
        kernel: String,
        /// The ops of all kernels of the module.
        count: u64,
        /// The most that there may be.
        limit: u64,
    },
    /// The module needs more ids than every driver must accept.
    #[error(
        "kernel '{kernel}': {stage} would need {count} ids, and the limit of {format} is {limit}; nothing was written. Most ids \
         are taken by {largest}. Split the kernel, or unroll less"
    )]
    TooManyIds {
        /// The kernel.
        kernel: String,
        /// The stage of the compiler.
        stage: &'static str,
        /// The name of the output format.
        format: &'static str,
        /// The ids that would be needed.
        count: u64,
        /// The most that may be used.
        limit: u32,
        /// What takes most of them.
        largest: Contributors,
    },
}

/// How many ids each kind of thing takes, the largest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contributors(pub Vec<(String, u64)>);

impl fmt::Display for Contributors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (name, count)) in self.0.iter().enumerate() {
            write!(f, "{}{name} ({count})", if i == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}
