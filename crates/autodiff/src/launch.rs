//! Launching derivatives: which buffers they take, how much tape, and what came out. The executor runs them here; a device takes the same launch.

use impasto_kernel::KernelError;
use impasto_kernel::exec::{BufferData, Launch, execute};
use impasto_kernel::ir::{Access, Kernel, OpKind, Scalar, Space};

use super::{Grad, Jvp, Purpose};

/// The derivatives that a launch gave.
#[derive(Clone, Debug)]
pub struct Derivatives {
    purposes: Vec<Purpose>,
    /// The launch, with all its buffers as they are afterwards.
    pub launch: Launch,
}

impl Derivatives {
    /// The adjoint of a buffer of the primal, or how it changes; none if no derivative flows through it.
    pub fn of(&self, buffer: usize) -> Option<&BufferData> {
        let at = self.purposes.iter().position(|r| matches!(r, Purpose::Derivative { of, .. } if *of == buffer))?;
        self.launch.buffers.get(at)
    }

    /// The adjoints of the parameters.
    pub fn params(&self) -> Option<&BufferData> {
        let at = self.purposes.iter().position(|r| *r == Purpose::Params)?;
        self.launch.buffers.get(at)
    }
}

fn invocations(kernel: &Kernel, groups: [u32; 3]) -> u64 {
    let all = groups.iter().chain(&kernel.workgroup);
    all.fold(1u64, |a, &b| a.saturating_mul(b.into()))
}

/// A launch with the buffers of these purposes.
pub(super) fn assemble(
    kernel: &Kernel,
    purposes: &[Purpose],
    primal: &Launch,
    given: &[(usize, BufferData)],
    params: &[u64],
    slots: [u32; 2],
) -> Result<Launch, KernelError> {
    let fail = |problem: String| Err(KernelError::Launch { kernel: kernel.name.clone(), problem });
    let each = invocations(kernel, primal.groups);
    for (buffer, _) in given {
        if !purposes.iter().any(|r| matches!(r, Purpose::Derivative { of, .. } if of == buffer)) {
            return fail(format!("no derivative flows through buffer {buffer} of the primal, so none can be given"));
        }
    }
    let mut buffers = Vec::new();
    for purpose in purposes {
        let missing =
            || -> Result<Launch, KernelError> { fail("the launch of the primal has too few buffers".to_owned()) };
        buffers.push(match *purpose {
            Purpose::Primal(n) => match primal.buffers.get(n) {
                Some(data) => data.clone(),
                None => return missing(),
            },
            Purpose::Derivative { of, .. } => match (given.iter().find(|g| g.0 == of), primal.buffers.get(of)) {
                (_, None) => return missing(),
                (Some((_, data)), Some(like)) if data.bits.len() == like.bits.len() => data.clone(),
                (Some((_, data)), Some(like)) => {
                    let (n, m) = (data.bits.len(), like.bits.len());
                    return fail(format!("buffer {of} has {m} scalars, its derivative was given with {n}"));
                }
                (None, Some(like)) => BufferData::zeros(Scalar::F32, like.bits.len()),
            },
            Purpose::Params if params.is_empty() => BufferData::zeros(Scalar::F32, primal.scalars.len()),
            Purpose::Params => BufferData { ty: Scalar::F32, bits: params.to_vec() },
            Purpose::Floats | Purpose::Numbers => {
                let (tape, ty) = if *purpose == Purpose::Floats { (0, Scalar::F32) } else { (1, Scalar::U32) };
                let n = u64::from(slots[tape]) * each;
                if n > u64::from(u32::MAX) {
                    return fail(format!(
                        "the tape needs {n} words, more than a buffer has: launch fewer workgroups at once"
                    ));
                }
                BufferData::zeros(ty, n as usize)
            }
            Purpose::Status => BufferData::zeros(Scalar::U32, 2),
        });
    }
    Ok(Launch { buffers, ..primal.clone() })
}

/// Refuses what came out of a launch whose tape was too small.
fn check_tapes(kernel: &Kernel, launch: &Launch, slots: [u32; 2]) -> Result<(), KernelError> {
    let mut status = vec![false; kernel.memories().len()];
    let mut open = vec![kernel.body()];
    while let Some(r) = open.pop() {
        for &op in kernel.region_ops(r) {
            open.extend_from_slice(kernel.regions(op));
            if let OpKind::Atomic(m, _) = kernel.kind(op) {
                // Only a lack of room is ever noted in a tape by an atomic.
                status[m.index()] = kernel.memory(m).space == Space::Buffer(Access::Tape);
            }
        }
    }
    let buffers = kernel.memories().iter().zip(status).filter(|(m, _)| matches!(m.space, Space::Buffer(_)));
    for ((_, is_status), data) in buffers.zip(&launch.buffers) {
        let lacking = data.bits.iter().enumerate().find(|(_, b)| is_status && **b != 0);
        if let Some((tape, &needed)) = lacking {
            let have = slots.get(tape).copied().unwrap_or(0);
            return Err(KernelError::Tape { kernel: kernel.name.clone(), have, needed: needed as u32 });
        }
    }
    Ok(())
}

impl Grad {
    /// The slots that each tape needs for an invocation, computed on the executor from the launch of the primal.
    pub fn slots(&self, primal: &Launch) -> Result<[u32; 2], KernelError> {
        let Some((kernel, purposes)) = &self.size else { return Ok([0; 2]) };
        let mut launch = assemble(kernel, purposes, primal, &[], &[], [0; 2])?;
        execute(kernel, &mut launch)?;
        let out = launch.buffers.last().map(|d| d.bits.clone()).unwrap_or_default();
        Ok([0, 1].map(|t| out.get(t).map_or(0, |&b| b as u32)))
    }

    /// Bytes of tape for a launch with these slots.
    pub fn tape_bytes(&self, groups: [u32; 3], slots: [u32; 2]) -> u64 {
        let words = u64::from(slots[0]) + u64::from(slots[1]);
        words.saturating_mul(4).saturating_mul(invocations(&self.kernel, groups))
    }

    /// The launch of the adjoint: `given` has adjoints of buffers of the primal, by number; what is not given is zero.
    pub fn launch(
        &self,
        primal: &Launch,
        given: &[(usize, BufferData)],
        slots: [u32; 2],
    ) -> Result<Launch, KernelError> {
        assemble(&self.kernel, &self.purposes, primal, given, &[], slots)
    }

    /// Refuses what came out of a launch whose tape was too small. Ask this of every launch, on any device.
    pub fn check(&self, launch: &Launch, slots: [u32; 2]) -> Result<(), KernelError> {
        check_tapes(&self.kernel, launch, slots)
    }

    /// Computes the size of the tape and runs the adjoint on the executor.
    pub fn execute(&self, primal: &Launch, given: &[(usize, BufferData)]) -> Result<Derivatives, KernelError> {
        let slots = self.slots(primal)?;
        let mut launch = self.launch(primal, given, slots)?;
        execute(&self.kernel, &mut launch)?;
        self.check(&launch, slots)?;
        Ok(Derivatives { purposes: self.purposes.clone(), launch })
    }
}

impl Jvp {
    /// The launch: `given` has the directions of buffers of the primal, by number; what is not given does not change.
    pub fn launch(
        &self,
        primal: &Launch,
        given: &[(usize, BufferData)],
        params: &[u64],
    ) -> Result<Launch, KernelError> {
        assemble(&self.kernel, &self.purposes, primal, given, params, [0; 2])
    }

    /// Runs it on the executor, with parameters that do not change.
    pub fn execute(&self, primal: &Launch, given: &[(usize, BufferData)]) -> Result<Derivatives, KernelError> {
        self.execute_along(primal, given, &[])
    }

    /// Runs it on the executor; `params` has the bits of the directions of all parameters.
    pub fn execute_along(
        &self,
        primal: &Launch,
        given: &[(usize, BufferData)],
        params: &[u64],
    ) -> Result<Derivatives, KernelError> {
        let mut launch = self.launch(primal, given, params)?;
        execute(&self.kernel, &mut launch)?;
        check_tapes(&self.kernel, &launch, [0; 2])?;
        Ok(Derivatives { purposes: self.purposes.clone(), launch })
    }
}
