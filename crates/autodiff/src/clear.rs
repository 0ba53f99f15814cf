//! What a kernel overwrites has no adjoint before it: the kernel that says so, by storing zeros wherever the primal stores. Cost: linear.

use impasto_kernel::KernelError;
use impasto_kernel::ir::{Access, Kernel, MemoryId, OpId, OpKind, Space};
use impasto_kernel::passes::clean;
use impasto_kernel::passes::rewrite::{Rewrite, Rule};
use impasto_kernel::verify;

use super::activity::Places;
use super::parts::{BufferScalars, base};
use super::write::F32;
use super::{Purpose, buffer_numbers, declare, derived, is_f32, prepared, refused, trim};

struct Clear {
    parts: BufferScalars,
    adjoints: Vec<Option<MemoryId>>,
}

impl Rule for Clear {
    fn op(&mut self, rw: &mut Rewrite<'_>, op: OpId) {
        let old = rw.old;
        let buffer = |m: MemoryId| matches!(old.memory(m).space, Space::Buffer(Access::ReadWrite));
        match old.kind(op) {
            OpKind::Store(m) if buffer(m) => {
                let Some(to) = self.adjoints[m.index()] else { return };
                let lanes = old.memory(m).ty.lanes().map_or(1, |l| l.1);
                let zero = rw.asm.zero(F32);
                let index = rw.get(old.args(op)[0]);
                let first = self.parts.place(&mut rw.asm, old, m, index);
                for i in 0..lanes {
                    let i = rw.asm.number(i);
                    let at = rw.asm.plus(first, i);
                    rw.asm.push(OpKind::Store(to), &[at, zero], &[]);
                }
            }
            OpKind::Load(m) if self.parts.has(m) => {
                let index = rw.get(old.args(op)[0]);
                if let Some(v) = self.parts.load(&mut rw.asm, m, index) {
                    rw.replace(op, v);
                }
            }
            OpKind::Atomic(m, _) if buffer(m) => {
                let none = rw.asm.zero(old.ty(old.result(op)));
                rw.replace(op, none);
            }
            _ => rw.copy(self, op),
        }
    }
}

/// The kernel that clears the adjoints of what the primal overwrites in these of its buffers, by number; none if it overwrites nothing there.
pub(super) fn clear(
    primal: &Kernel,
    of: &dyn Fn(usize) -> bool,
) -> Result<Option<(Kernel, Vec<Purpose>)>, KernelError> {
    let buffers = primal.memories().iter().filter(|m| matches!(m.space, Space::Buffer(_)));
    let mut written = buffers.enumerate().filter(|(_, m)| m.space == Space::Buffer(Access::ReadWrite));
    if !written.any(|(n, _)| of(n)) {
        return Ok(None);
    }
    let (k, parts) = &prepared(primal, true)?;
    let places = Places::new(k);
    let numbers = buffer_numbers(k, parts);
    let mut stored = vec![false; k.memories().len()];
    for &op in &places.ops {
        if let OpKind::Store(m) | OpKind::Atomic(m, _) = k.kind(op) {
            stored[m.index()] |= matches!(k.kind(op), OpKind::Store(_));
        }
    }
    let (mut header, mut purposes) = derived(k, parts, "clear");
    // What it writes is known by this below.
    header.memories_mut().iter_mut().zip(k.memories()).for_each(|(m, old)| m.space = old.space);
    let mut adjoints = Vec::new();
    for (i, m) in k.memories().iter().enumerate() {
        let number = numbers[i].filter(|&n| stored[i] && is_f32(m.ty) && of(n));
        let shared = parts.shared(MemoryId(i as u32), &adjoints);
        adjoints.push(number.map(|of| {
            shared.unwrap_or_else(|| {
                purposes.push(Some(Purpose::Derivative { of, read: false }));
                declare(&mut header, &format!("d_{}", base(&m.name)), F32, Space::Buffer(Access::ReadWrite))
            })
        }));
    }
    if adjoints.iter().all(Option::is_none) {
        return Ok(None);
    }
    let made = clean(&Rewrite::run_with(k, header, &mut Clear { parts: parts.clone(), adjoints }))?;
    let (kernel, purposes) = trim::trim(&made, &purposes);
    verify(&kernel)?;
    // What is read to know where to store must be as it was.
    let overwritten = |m: MemoryId| kernel.memory(m).space == Space::Buffer(Access::ReadWrite);
    let reads = Places::new(&kernel).ops.into_iter().find(|&op| match kernel.kind(op) {
        OpKind::Load(m) | OpKind::Atomic(m, _) => overwritten(m),
        _ => false,
    });
    match reads {
        Some(op) => Err(refused(
            &kernel,
            (
                op,
                "where it stores depends on a buffer that it overwrites: read one buffer and write another".to_owned(),
            ),
        )),
        None => Ok(Some((kernel, purposes))),
    }
}
