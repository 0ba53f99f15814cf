//! What can be wrong with a kernel. Each error names the kernel, and the op where there is one.

use std::fmt;

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
    #[error("kernel '{kernel}' cannot be differentiated: `{op}`: {problem}")]
    Gradient {
        /// The kernel.
        kernel: String,
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
    /// The kernel needs more SPIR-V ids than every Vulkan driver must accept.
    #[error(
        "kernel '{kernel}': {stage} would need {count} ids, and the limit of SPIR-V is {limit}; nothing was written. Most ids \
         are taken by {largest}. Split the kernel, or unroll less"
    )]
    TooManyIds {
        /// The kernel.
        kernel: String,
        /// The stage of the compiler.
        stage: &'static str,
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
