//! The reference executor: what a kernel means, computed on the CPU. It is the judge in every differential test.
//!
//! A workgroup runs in lockstep: each op is done for all active invocations, in the order of their local index, before the next
//! op begins. What the language does not allow is an error that names the op and the invocation: an index out of bounds, workgroup
//! memory that nobody has written, a barrier that not all invocations reach, a loop that does not end.

mod data;
mod foreign;
mod machine;
mod mask;
mod matrix;
mod memory;
mod pending;
mod wide;

use crate::error::KernelError;
use crate::ir::{Kernel, MemoryDecl, Scalar, Space, Value};
use crate::verify::verify;
pub use data::BufferData;
pub use foreign::ForeignExecutor;
pub use machine::{Executor, Stop};
pub use mask::Mask;

/// Registers of a workgroup; more would not fit into the memory of a small machine.
const MAX_REGISTERS: u64 = 1 << 28;

/// One launch of a kernel: what it is given, and how it runs.
#[derive(Clone, Debug)]
pub struct Launch {
    /// Workgroups in x, y and z.
    pub groups: [u32; 3],
    /// The bits of the scalar parameters, in order.
    pub scalars: Vec<u64>,
    /// The buffers, in order; they hold the results afterwards.
    pub buffers: Vec<BufferData>,
    /// Invocations in a subgroup: a power of two up to 128.
    pub subgroup: u32,
    /// A run that takes more ops than this is stopped with an error.
    pub max_ops: u64,
    /// Every f32 is computed as an f64, and the bits in buffers and parameters are those of f64: for derivatives by differences.
    pub wide: bool,
}

impl Launch {
    /// A launch of so many workgroups with these buffers, no parameters, and subgroups of 32.
    pub fn new(groups: [u32; 3], buffers: Vec<BufferData>) -> Launch {
        Launch { groups, scalars: Vec::new(), buffers, subgroup: 32, max_ops: 1 << 32, wide: false }
    }
}

/// Runs a kernel, with or without variables.
///
/// ```
/// use impasto_kernel::{BufferData, Kernel, Launch, execute};
/// let kernel: Kernel = "kernel twice(4, 1, 1) {
///   buffer x: f32 write
///   %0 = global_id.x : u32
///   %1 = load x[%0] : f32
///   %2 = add %1, %1 : f32
///   store x[%0], %2
///   return
/// }".parse()?;
/// let mut launch = Launch::new([1, 1, 1], vec![BufferData::from(&[1f32, 2.0, 3.0, 4.0][..])]);
/// execute(&kernel, &mut launch)?;
/// assert_eq!(launch.buffers[0].to_f32().unwrap(), [2.0, 4.0, 6.0, 8.0]);
/// # Ok::<(), impasto_kernel::KernelError>(())
/// ```
pub fn execute(kernel: &Kernel, launch: &mut Launch) -> Result<(), KernelError> {
    verify(kernel)?;
    check(kernel, launch).map_err(|problem| KernelError::Launch { kernel: kernel.name.clone(), problem })?;
    run_workgroups(&mut machine::Executor::new(kernel, launch.wide), launch)
}

/// What a run reached.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    /// For each op, by its index, whether an invocation ran it.
    pub reached: Vec<bool>,
    /// Ops that were run, each counted once for all invocations of a workgroup that run it together.
    pub ops: u64,
    /// Ops that were run, each counted for every invocation that runs it.
    pub work: u64,
}

/// Runs an imported kernel, and says what it reached, also where it stopped. Its memory and the meaning of its foreign ops are those of `foreign`;
/// the launch has no buffers and parameters.
pub fn execute_foreign(
    kernel: &Kernel,
    launch: &mut Launch,
    foreign: &mut dyn ForeignExecutor,
) -> (Result<(), KernelError>, Coverage) {
    if let Err(e) = verify(kernel).and_then(|()| check_size(kernel)) {
        return (Err(e), Coverage::default());
    }
    let mut machine = machine::Executor::new(kernel, false);
    machine.watched = foreign.watched();
    machine.foreign = Some(foreign);
    let result = run_workgroups(&mut machine, launch);
    (result, machine.coverage())
}

/// Refuses workgroups and values that are too large to run.
fn check_size(kernel: &Kernel) -> Result<(), KernelError> {
    let refuse = |problem: String| KernelError::Launch { kernel: kernel.name.clone(), problem };
    let lanes = kernel.workgroup.iter().try_fold(1u32, |a, &b| a.checked_mul(b)).filter(|n| (1..=1024).contains(n));
    let lanes = lanes.ok_or_else(|| refuse(format!("a workgroup of {:?} is not run here", kernel.workgroup)))?;
    let columns = (0..kernel.value_count()).map(|v| u64::from(machine::leaves(kernel, kernel.ty(Value(v as u32)))));
    if columns.sum::<u64>().saturating_mul(lanes.into()) > MAX_REGISTERS {
        return Err(refuse("its values are too many to run here".to_owned()));
    }
    Ok(())
}

/// Runs all workgroups of a launch, one after the other.
fn run_workgroups(machine: &mut Executor<'_>, launch: &mut Launch) -> Result<(), KernelError> {
    let [nx, ny, nz] = launch.groups;
    for z in 0..nz {
        for y in 0..ny {
            for x in 0..nx {
                machine.workgroup([x, y, z], launch)?;
            }
        }
    }
    Ok(())
}

fn check(kernel: &Kernel, launch: &Launch) -> Result<(), String> {
    if launch.scalars.len() != kernel.params.len() {
        return Err(format!("it takes {} scalars, {} were given", kernel.params.len(), launch.scalars.len()));
    }
    let mask = |s: Scalar| if launch.wide && s == Scalar::F32 { u64::MAX } else { s.mask() };
    for (p, &bits) in kernel.params.iter().zip(&launch.scalars) {
        if bits & !mask(p.ty) != 0 {
            return Err(format!("the parameter '{}' is a {}, and {bits:#x} is none", p.name, p.ty));
        }
    }
    let buffers: Vec<_> = kernel.memories.iter().filter(|m| matches!(m.space, Space::Buffer(_))).collect();
    if launch.buffers.len() != buffers.len() {
        return Err(format!("it takes {} buffers, {} were given", buffers.len(), launch.buffers.len()));
    }
    for (m, data) in buffers.iter().zip(&launch.buffers) {
        if launch.wide && m.ty.lanes().is_none() {
            return Err(format!("the buffer '{}' holds composites, whose f32 have no room for f64", m.name));
        }
        let (s, scalars) = data::unit(m.ty);
        if data.ty != s
            || !data.bits.len().is_multiple_of(scalars as usize)
            || data.bits.iter().any(|b| b & !mask(s) != 0)
        {
            return Err(format!(
                "the buffer '{}' takes {s}, {scalars} for each element, and was given {} of {}, which do not fit",
                m.name,
                data.bits.len(),
                data.ty
            ));
        }
    }
    let columns: u64 =
        (0..kernel.value_count()).map(|v| u64::from(machine::leaves(kernel, kernel.ty(Value(v as u32))))).sum();
    if columns.saturating_mul(kernel.workgroup.iter().product::<u32>().into()) > MAX_REGISTERS {
        return Err(format!(
            "{columns} scalars for each of {:?} invocations are too many to run here",
            kernel.workgroup
        ));
    }
    let private = |m: &MemoryDecl| match m.space {
        Space::Private(n) | Space::Registers(n) => u64::from(n) * u64::from(machine::leaves(kernel, m.ty)),
        _ => 0,
    };
    let arrays: u64 = kernel.memories.iter().map(private).sum();
    if arrays.saturating_mul(kernel.workgroup.iter().product::<u32>().into()) > MAX_REGISTERS / 4 {
        return Err(format!(
            "private arrays of {arrays} scalars for each of {:?} invocations are too many to run here",
            kernel.workgroup
        ));
    }
    if !launch.subgroup.is_power_of_two() || launch.subgroup > 128 {
        return Err(format!("a subgroup has a power of two invocations up to 128, not {}", launch.subgroup));
    }
    if launch.groups.iter().try_fold(1u32, |a, &b| a.checked_mul(b)).is_none() {
        return Err(format!("{:?} workgroups are too many", launch.groups));
    }
    Ok(())
}
