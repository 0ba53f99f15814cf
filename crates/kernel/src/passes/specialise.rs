//! Specialisation: scalar parameters become constants. Cost: linear.

use super::rewrite::{Rewrite, Rule};
use crate::error::KernelError;
use crate::ir::{Kernel, OpId, OpKind};

struct Specialise<'a>(&'a [u64]);

impl Rule for Specialise<'_> {
    fn op(&mut self, rw: &mut Rewrite<'_>, op: OpId) {
        match rw.old.kind(op) {
            OpKind::Param(p) => {
                let (bits, ty) = (self.0[p as usize], rw.old.params()[p as usize].ty);
                let v = rw.asm.constant(ty, bits);
                rw.replace(op, v);
            }
            _ => rw.copy(self, op),
        }
    }
}

/// The kernel for these values of its scalar parameters, given as bits; it has none any more.
///
/// ```
/// use impasto_kernel::{Builder, specialise};
/// let kernel = Builder::kernel("k", [1, 1, 1], |k| {
///     let n = k.param::<u32>("n");
///     k.buffer_mut::<u32>("y").store(0, n);
/// })?;
/// assert!(specialise(&kernel, &[7])?.to_string().contains("const 7 : u32"));
/// # Ok::<(), impasto_kernel::KernelError>(())
/// ```
pub fn specialise(kernel: &Kernel, values: &[u64]) -> Result<Kernel, KernelError> {
    if values.len() != kernel.params().len() {
        return Err(KernelError::Launch {
            kernel: kernel.name.clone(),
            problem: format!("it has {} parameters, {} values were given", kernel.params().len(), values.len()),
        });
    }
    let mut made = Rewrite::run(kernel, &mut Specialise(values));
    made.params.clear();
    Ok(made)
}
