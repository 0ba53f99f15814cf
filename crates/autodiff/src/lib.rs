//! Derivatives of kernels, as kernels.
//!
//! # What is computed
//!
//! Buffers and f32 parameters go into a kernel, buffers come out. [`Differentiate::grad`] gives the adjoint: for each buffer `x` through which a
//! derivative flows there is a buffer `d_x`. Before the launch it holds the derivative of some number by what `x` holds *after* a launch
//! of the primal; afterwards, by what `x` held *before*. So what is only read gathers (`d_x` grows), and what is written is used up.
//! Adjoints of kernels that follow each other are launched one after the other, backwards, on the same `d_` buffers. One thing is left to the host:
//! where it can be shown that no element of a buffer is written twice, its adjoint is only read ([`Purpose::Derivative`] says so), and
//! what was overwritten is to be cleared. [`Chain`] does that, and keeps the states that it takes.
//!
//! [`Differentiate::jvp`] gives the forward mode: for each `x` a buffer `t_x` with the direction in which it changes, and the kernel computes, besides
//! its results, how they change.
//!
//! # How
//!
//! The kernel is brought to SSA and cleaned, so that nothing is assigned twice. `flatten.rs` takes composites and private arrays apart into scalars
//! and vectors. `normal.rs` turns `break`, `continue` and `return` at depth into values, so that a region has one end to begin at.
//! `activity.rs` finds what a derivative flows through. `plan.rs` finds what each loop must keep. `reverse.rs` then writes the adjoint by
//! recursion over regions, each op by the line that `table.rs` has for it, and `forward.rs` the tangents by the same lines.
//!
//! An adjoint is a value, a carried value or a result of a region; never a place in memory. The result is an ordinary kernel, which
//! the verifier accepts and the passes optimise, and which can be differentiated again.
//!
//! # What is kept
//!
//! Values of straight code are in sight. The region of an `if` is run again. A loop keeps, for each iteration, those of its carried values that the
//! derivatives of its body need and that cannot be computed from the iteration's number; the body is run again from them. They lie on the tape
//! (`tape.rs`), whose size [`Grad::size`] computes from the real numbers of iterations. Nested loops reuse it, so that
//! its size adds up and does not multiply. A launch whose tape is too small says so, always.
//!
//! # What is refused
//!
//! A derivative is right or refused with the op and the reason: a value that is needed, but was read from memory that this launch overwrites;
//! a float that becomes an integer and comes back, or is written as one; an unbounded loop on the way; what an atomic returned; an adjoint
//! that invocations would add to without an atomic (floats of 16 bits), or that they would all take at once.
//! [`Val::stop_gradient`](impasto_kernel::Val::stop_gradient), [`Val::with_derivatives`](impasto_kernel::Val::with_derivatives) and `#[kernel_fn(grad = ..)]` say what is
//! meant instead, and [`Kernel::with_gradient`] and `#[kernel(grad = ..)]` give a whole adjoint. A refusal names the place in the source.

mod activity;
mod chain;
mod check;
mod clear;
mod estimate;
mod flatten;
mod forward;
mod launch;
mod log;
mod normal;
mod parts;
mod places;
mod plan;
mod report;
mod reverse;
mod size;
mod table;
mod tape;
mod trim;
mod write;

use std::borrow::Cow;

use activity::{Activity, Places};
pub use chain::{Chain, Cost};
pub use estimate::MAX_ADJOINT_OPS;
use impasto_kernel::KernelError;
use impasto_kernel::ir::{Access, Kernel, MemoryDecl, MemoryId, OpId, Scalar, Space, Ty};
use impasto_kernel::passes::{clean, values};
use impasto_kernel::text::op_text;
use impasto_kernel::{GradientBuffer, gradient_buffers, verify};
pub use launch::Derivatives;
use normal::NormalForm;
use parts::BufferScalars;
use plan::Plan;
pub use report::{GradReport, TapedLoop};
use write::{F32, U32};

/// What a buffer of a derivative is, by its number among the buffers of the primal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A buffer of the primal, as it was before the launch of the primal.
    Primal(usize),
    /// The adjoint of a buffer, or its direction in forward mode: as many f32 as the buffer has scalars.
    Derivative {
        /// The buffer.
        of: usize,
        /// Whether the kernel only reads it.
        read: bool,
    },
    /// The adjoints, or the directions, of the parameters: one f32 for each, in order.
    Params,
    /// The tape of floats: as many f32 as the slots that are needed, times the invocations.
    Floats,
    /// The tape of integers, u32 in the same way.
    Numbers,
    /// Two u32, zero before the launch; afterwards, the slots that were lacking.
    Status,
}

/// The adjoint of a kernel.
#[derive(Clone, Debug)]
pub struct Grad {
    /// The adjoint.
    pub kernel: Kernel,
    /// What each of its buffers is.
    pub purposes: Vec<Purpose>,
    /// The kernel that computes the slots that each tape needs for an invocation, into its last buffer, of two u32, by maximum; the others are
    /// buffers of the primal. None if there is no tape.
    pub size: Option<(Kernel, Vec<Purpose>)>,
    /// What is kept and what is computed again.
    pub report: GradReport,
}

/// The forward derivative of a kernel.
#[derive(Clone, Debug)]
pub struct Jvp {
    /// It computes what the primal computes, and how that changes.
    pub kernel: Kernel,
    /// What each of its buffers is; those of the primal come first, all and in order.
    pub purposes: Vec<Purpose>,
}

/// A refusal: the op, and why.
type Refusal = (OpId, String);

fn refused(k: &Kernel, (op, problem): Refusal) -> KernelError {
    KernelError::Gradient { kernel: k.name.clone(), place: k.place(op), op: op_text(k, op), problem }
}

/// Derivatives of kernels.
///
/// ```
/// use impasto_autodiff::Differentiate;
/// use impasto_kernel::{Builder, BufferData, Launch};
/// // A product over a loop that is as long as a buffer says: y = n-th power of x.
/// let kernel = Builder::kernel("power", [1, 1, 1], |k| {
///     let (n, x, y) = (k.buffer::<u32>("n"), k.buffer::<f32>("x"), k.buffer_mut::<f32>("y"));
///     let product = k.var(1f32);
///     k.for_(0u32, n.load(0), |_, _| product.set(product.get() * x.load(0)));
///     y.store(0, product.get());
/// })?;
/// let launch = Launch::new([1, 1, 1], vec![[3u32][..].into(), [2f32][..].into(), [0f32][..].into()]);
/// let grad = kernel.grad()?;
/// let adjoints = grad.execute(&launch, &[(2, [1f32][..].into())])?;
/// assert_eq!(adjoints.of(1).and_then(BufferData::to_f32), Some(vec![12.0]));
/// # Ok::<(), impasto_kernel::KernelError>(())
/// ```
pub trait Differentiate {
    /// The adjoint, by all its buffers of floats and its f32 parameters. Where some of them are constants, such as masses or weights that stay as
    /// they are, [`grad_of`](Differentiate::grad_of) and [`grad_without`](Differentiate::grad_without) give a kernel that computes less.
    fn grad(&self) -> Result<Grad, KernelError>;

    /// The adjoint by these buffers and parameters only: others are constants.
    fn grad_of(&self, names: &[&str]) -> Result<Grad, KernelError>;

    /// The adjoint by all buffers and parameters but these, which are constants.
    ///
    /// ```
    /// use impasto_autodiff::Differentiate;
    /// use impasto_kernel::Builder;
    /// let kernel = Builder::kernel("weighted", [1, 1, 1], |k| {
    ///     let (w, x, y) = (k.buffer::<f32>("w"), k.buffer::<f32>("x"), k.buffer_mut::<f32>("y"));
    ///     y.store(0, w.load(0) * x.load(0));
    /// })?;
    /// assert_eq!(kernel.grad()?.report.adjoints, ["w", "x", "y"]);
    /// assert_eq!(kernel.grad_without(&["w"])?.report.adjoints, ["x", "y"]);
    /// # Ok::<(), impasto_kernel::KernelError>(())
    /// ```
    fn grad_without(&self, names: &[&str]) -> Result<Grad, KernelError>;

    /// The forward derivative, by all its buffers of floats and its f32 parameters.
    ///
    /// ```
    /// use impasto_autodiff::Differentiate;
    /// use impasto_kernel::{Builder, BufferData, Launch};
    /// let kernel = Builder::kernel("square", [1, 1, 1], |k| {
    ///     let (x, y) = (k.buffer::<f32>("x"), k.buffer_mut::<f32>("y"));
    ///     y.store(0, x.load(0) * x.load(0));
    /// })?;
    /// let launch = Launch::new([1, 1, 1], vec![[3f32][..].into(), [0f32][..].into()]);
    /// let changes = kernel.jvp()?.execute(&launch, &[(0, [1f32][..].into())])?;
    /// assert_eq!(changes.of(1).and_then(BufferData::to_f32), Some(vec![6.0]));
    /// # Ok::<(), impasto_kernel::KernelError>(())
    /// ```
    fn jvp(&self) -> Result<Jvp, KernelError>;

    /// The forward derivative along these buffers and parameters only: others are constants.
    fn jvp_of(&self, names: &[&str]) -> Result<Jvp, KernelError>;
}

impl Differentiate for Kernel {
    fn grad(&self) -> Result<Grad, KernelError> {
        gradient(self, &|_| true)
    }

    fn grad_of(&self, names: &[&str]) -> Result<Grad, KernelError> {
        known(self, names)?;
        let grad = gradient(self, &|name| names.contains(&name))?;
        let has = |n: &&&str| match self.params().iter().any(|p| p.name == ***n) {
            true => grad.purposes.contains(&Purpose::Params),
            false => grad.report.adjoints.iter().any(|a| a == **n),
        };
        match names.iter().find(|n| self.gradient().is_some() && !has(n)) {
            Some(n) => Err(KernelError::Build {
                kernel: self.name.clone(),
                problem: format!("the gradient that it was given, '{}', gives none by '{n}'", grad.kernel.name),
            }),
            None => Ok(grad),
        }
    }

    fn grad_without(&self, names: &[&str]) -> Result<Grad, KernelError> {
        known(self, names)?;
        gradient(self, &|name| !names.contains(&name))
    }

    fn jvp(&self) -> Result<Jvp, KernelError> {
        forward::jvp(self, &|_| true)
    }

    fn jvp_of(&self, names: &[&str]) -> Result<Jvp, KernelError> {
        known(self, names)?;
        forward::jvp(self, &|name| names.contains(&name))
    }
}

/// The custom gradient of a kernel, if it has one.
fn custom(primal: &Kernel) -> Option<Result<Grad, KernelError>> {
    let backward = primal.gradient()?;
    Some(gradient_buffers(primal, backward).map(|buffers| {
        let is_buffer = |m: &&MemoryDecl| matches!(m.space, Space::Buffer(_));
        let names: Vec<&str> = primal.memories().iter().filter(is_buffer).map(|m| m.name.as_str()).collect();
        let (mut purposes, mut adjoints) = (Vec::new(), Vec::new());
        for buffer in buffers {
            purposes.push(match buffer {
                GradientBuffer::Primal(of) => Purpose::Primal(of),
                GradientBuffer::Adjoint { of, read } => {
                    adjoints.push(names[of].to_owned());
                    Purpose::Derivative { of, read }
                }
                GradientBuffer::Params => Purpose::Params,
            });
        }
        let report = GradReport { kernel: primal.name.clone(), loops: Vec::new(), adjoints, logged: Vec::new() };
        Grad { kernel: backward.clone(), purposes, size: None, report }
    }))
}

fn known(k: &Kernel, names: &[&str]) -> Result<(), KernelError> {
    let has = |n: &&&str| k.params().iter().any(|p| p.name == **n) || k.memories().iter().any(|m| m.name == **n);
    match names.iter().find(|n| !has(n)) {
        Some(n) => Err(KernelError::Build {
            kernel: k.name.clone(),
            problem: format!("'{n}' is none of its buffers and parameters, so it has no derivative by it"),
        }),
        None => Ok(()),
    }
}

#[cfg(test)]
thread_local! {
    /// Kernels that were prepared on this thread.
    static PREPARED: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

/// SSA form on scalars and vectors, with what is plainly superfluous taken out.
fn prepared(k: &Kernel, arrays: bool) -> Result<(Kernel, BufferScalars), KernelError> {
    #[cfg(test)]
    PREPARED.set(PREPARED.get() + 1);
    verify(k)?;
    let is_matrix = |op: &OpId| k.kind(*op).is_matrix();
    if let Some(op) = Places::new(k).ops.into_iter().find(is_matrix) {
        let problem =
            "matrices of a subgroup have no derivatives here: write the product with loops, or differentiate around it";
        return Err(refused(k, (op, problem.to_owned())));
    }
    // Refusals name the place in the source of what they refuse.
    let mut k = k.clone();
    k.follow_sources(true);
    let (ssa, parts) = parts::split(&clean(&values(&k)?)?);
    Ok((clean(&values(&flatten::flatten(&ssa, arrays))?)?, parts))
}

/// Adds a memory with a name of its own.
fn declare(header: &mut Kernel, name: &str, ty: Ty, space: Space) -> MemoryId {
    let taken =
        |n: &str, h: &Kernel| h.memories().iter().any(|m| m.name == n) || h.params().iter().any(|p| p.name == n);
    let mut own = name.to_owned();
    let mut number = 1;
    while taken(&own, header) {
        number += 1;
        own = format!("{name}_{number}");
    }
    header.memories_mut().push(MemoryDecl { name: own, ty, space });
    MemoryId(header.memories().len() as u32 - 1)
}

/// The number of each memory among the buffers of the caller.
fn buffer_numbers(k: &Kernel, parts: &BufferScalars) -> Vec<Option<usize>> {
    let mut numbers: Vec<Option<usize>> = Vec::new();
    let mut n = 0;
    for (i, m) in k.memories().iter().enumerate() {
        let id = MemoryId(i as u32);
        numbers.push(match m.space {
            Space::Buffer(_) if parts.has(id) => numbers[parts.whole(id).index()],
            Space::Buffer(_) => {
                n += 1;
                Some(n - 1)
            }
            _ => None,
        });
    }
    numbers
}

/// What a kernel begins with that is made of a prepared one: the buffers of the primal, to be read, and their purposes.
fn derived(k: &Kernel, parts: &BufferScalars, what: &str) -> (Kernel, Vec<Option<Purpose>>) {
    let mut header = parts.header(k);
    header.name = format!("{}_{what}", k.name);
    header.clear_gradient();
    let mut purposes: Vec<Option<Purpose>> =
        buffer_numbers(k, parts).into_iter().map(|n| n.map(Purpose::Primal)).collect();
    purposes.truncate(header.memories().len());
    for m in header.memories_mut() {
        if m.space == Space::Buffer(Access::ReadWrite) {
            m.space = Space::Buffer(Access::Read);
        }
    }
    (header, purposes)
}

/// The kernel that derivatives are taken of: as it was written. One that was optimised and changed again is refused where ops of it run that
/// would not have run: their derivatives are multiplied by zero, and may be infinite.
fn as_written(k: &Kernel) -> Result<Cow<'_, Kernel>, KernelError> {
    match k.original() {
        Some(original) => Ok(Cow::Owned(original)),
        None if k.is_speculated() => Err(KernelError::Build {
            kernel: k.name.clone(),
            problem: "it was optimised, so that ops run ahead of the branches and loops that guard them, and derivatives could be NaN where \
                      those of the kernel as it was written are not: differentiate first, and optimise the derivative"
                .to_owned(),
        }),
        None => Ok(Cow::Borrowed(k)),
    }
}

fn gradient(primal: &Kernel, wrt: &dyn Fn(&str) -> bool) -> Result<Grad, KernelError> {
    gradient_below(primal, wrt, MAX_ADJOINT_OPS)
}

/// The gradient of a kernel, if it has no more ops than this.
fn gradient_below(primal: &Kernel, wrt: &dyn Fn(&str) -> bool, limit: u64) -> Result<Grad, KernelError> {
    if let Some(custom) = custom(primal) {
        return custom;
    }
    let primal = &*as_written(primal)?;
    verify(primal)?;
    estimate::check_early(&values(primal)?, wrt, limit)?;
    let (flat, parts) = prepared(primal, true)?;
    let wrt = &|name: &str| wrt(parts::base(name));
    let mut normal = normal::normal(&flat).map_err(|r| refused(&flat, r))?;
    let mut places = Places::new(&normal.kernel);
    let mut activity = Activity::new(&normal.kernel, &places, wrt);
    let mut plan = Plan::new(&normal, &places, &activity);
    estimate::check(&normal.kernel, &places, &activity, &plan, limit)?;
    if let Some(logged) = log::log(&normal, &places, &plan) {
        normal = logged;
        places = Places::new(&normal.kernel);
        activity = Activity::new(&normal.kernel, &places, wrt);
        plan = Plan::new(&normal, &places, &activity);
    }
    let k = &normal.kernel;
    verify(k)?;
    check::check(&normal, &places, &activity, &plan).map_err(|r| refused(k, r))?;
    let report = GradReport::new(&normal, &places, &activity, &plan);

    let (mut header, mut purposes) = derived(k, &parts, "grad");
    parts.agree(&mut plan.once, |m| activity.memory(m));
    let numbers = buffer_numbers(k, &parts);
    let mut memories = Vec::new();
    for (i, m) in k.memories().iter().enumerate() {
        let id = MemoryId(i as u32);
        if !activity.memory(id) {
            memories.push(None);
            continue;
        }
        let stride = stride(m.ty);
        let read = plan.once[i];
        if let Some(shared) = parts.shared(id, &memories) {
            memories.push(Some(shared));
            continue;
        }
        let space = match m.space {
            Space::Buffer(Access::Tape | Access::Scratch) => Space::Buffer(Access::Scratch),
            Space::Buffer(_) if read => Space::Buffer(Access::Read),
            Space::Buffer(_) => Space::Buffer(Access::ReadWrite),
            Space::Workgroup(n) => Space::Workgroup(n * stride),
            Space::Private(n) => Space::Private(n * stride),
            other @ (Space::Registers(_) | Space::Pointed { .. }) => other,
        };
        // All parts of a buffer have one adjoint.
        let name = if parts.has(id) { parts::base(&m.name) } else { &m.name };
        memories.push(Some(declare(&mut header, &format!("d_{name}"), F32, space)));
        purposes.push(numbers[i].map(|of| Purpose::Derivative { of, read }));
    }
    let has_params = places
        .ops
        .iter()
        .any(|&op| matches!(k.kind(op), impasto_kernel::ir::OpKind::Param(_)) && activity.value(k.result(op)));
    let mut buffer = |name: &str, ty: Ty, access: Access, purpose: Purpose| {
        purposes.push(Some(purpose));
        declare(&mut header, name, ty, Space::Buffer(access))
    };
    let params = has_params.then(|| buffer("d_params", F32, Access::ReadWrite, Purpose::Params));
    let words = plan.words();
    let floats = (words[0] > 0).then(|| buffer("tape", F32, Access::Tape, Purpose::Floats));
    let numbers = (words[1] > 0).then(|| buffer("tape_numbers", U32, Access::Tape, Purpose::Numbers));
    let status = (words != [0; 2]).then(|| buffer("tape_status", U32, Access::Tape, Purpose::Status));
    let outlets = reverse::AdjointMemories { memories, params, tapes: [floats, numbers], status };
    let written = reverse::reverse(&normal, &parts, &places, &activity, &plan, header, outlets);
    let (mut kernel, purposes) = trim::trim(&clean(&written)?, &purposes);
    kernel.follow_sources(false);
    verify(&kernel)?;

    let size = match words {
        [0, 0] => None,
        _ => Some(sizing(&normal, &parts, &plan)?),
    };
    Ok(Grad { kernel, purposes, size, report })
}

fn sizing(normal: &NormalForm, parts: &BufferScalars, plan: &Plan) -> Result<(Kernel, Vec<Purpose>), KernelError> {
    let (mut header, mut purposes) = derived(&normal.kernel, parts, "size");
    let out = declare(&mut header, "slots", U32, Space::Buffer(Access::ReadWrite));
    purposes.push(Some(Purpose::Status));
    let written = size::size(normal, parts, plan, header, out);
    let (mut kernel, purposes) = trim::trim(&clean(&written)?, &purposes);
    kernel.follow_sources(false);
    verify(&kernel)?;
    Ok((kernel, purposes))
}

/// Scalars from one element to the next, in a memory and in its adjoint: a vector of 3 is followed by one that nobody uses.
fn stride(ty: Ty) -> u32 {
    ty.lanes().map_or(1, |l| l.1.next_power_of_two())
}

/// Whether a memory holds f32, alone or in vectors.
fn is_f32(ty: Ty) -> bool {
    matches!(ty.lanes(), Some((Scalar::F32, _)))
}
