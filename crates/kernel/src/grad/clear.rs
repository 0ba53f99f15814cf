//! What a kernel overwrites has no adjoint before it: the kernel that says so, by storing zeros wherever the primal stores. Cost: linear.

use crate::error::KernelError;
use crate::ir::{Access, Kernel, MemoryId, OpId, OpKind, Space};
use crate::passes::clean;
use crate::passes::rewrite::{Rewrite, Rule};
use crate::verify::verify;

use super::activity::Places;
use super::write::F32;
use super::{Purpose, buffer_numbers, declare, is_f32, prepared, refused, stride, trim};

struct Clear {
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
                let (width, zero) = (rw.asm.number(stride(old.memory(m).ty)), rw.asm.zero(F32));
                let first = rw.asm.times(rw.get(old.args(op)[0]), width);
                for i in 0..lanes {
                    let i = rw.asm.number(i);
                    let at = rw.asm.plus(first, i);
                    rw.asm.push(OpKind::Store(to), &[at, zero], &[]);
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
    let written = primal.memories().iter().zip(buffer_numbers(primal));
    let mut written = written.filter(|(m, _)| m.space == Space::Buffer(Access::ReadWrite)).filter_map(|(_, n)| n);
    if !written.any(of) {
        return Ok(None);
    }
    let k = &prepared(primal, true)?;
    let places = Places::new(k);
    let numbers = buffer_numbers(k);
    let mut stored = vec![false; k.memories().len()];
    for &op in &places.ops {
        if let OpKind::Store(m) | OpKind::Atomic(m, _) = k.kind(op) {
            stored[m.index()] |= matches!(k.kind(op), OpKind::Store(_));
        }
    }
    let mut header = k.header();
    header.name = format!("{}_clear", k.name);
    header.gradient = None;
    let mut purposes: Vec<Option<Purpose>> = numbers.iter().map(|n| n.map(Purpose::Primal)).collect();
    let mut adjoints = Vec::new();
    for (i, m) in k.memories().iter().enumerate() {
        let number = numbers[i].filter(|&n| stored[i] && is_f32(m.ty) && of(n));
        adjoints.push(number.map(|of| {
            purposes.push(Some(Purpose::Derivative { of, read: false }));
            declare(&mut header, &format!("d_{}", m.name), F32, Space::Buffer(Access::ReadWrite))
        }));
    }
    if adjoints.iter().all(Option::is_none) {
        return Ok(None);
    }
    let made = clean(&Rewrite::run_with(k, header, &mut Clear { adjoints }))?;
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
