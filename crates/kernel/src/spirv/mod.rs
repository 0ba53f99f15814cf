//! SPIR-V for Vulkan 1.1: version 1.3, the lowest with storage buffers and subgroups, in structured control flow.
//!
//! Ids are numbered while words are written, densely, after they were counted by the same code: a kernel over the limit is refused before
//! the first word. Capabilities are those of what is used. The entry point is called `main`; buffer `i` of the kernel is binding `i`
//! of set 0, scalar parameters are push constants.

mod control;
mod ops;
mod words;

use crate::error::{Contributors, KernelError};
use crate::ir::{Kernel, OpKind, Scalar, Space};
use crate::passes::{EXITS, FLOAT_ATOMICS, optimise};
use crate::verify::verify;
use control::Emit;

/// The largest bound on ids that every Vulkan driver must accept.
pub const ID_LIMIT: u32 = 4_194_303;

/// The words of a module with one kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Module {
    /// The words.
    pub words: Vec<u32>,
    /// The bound on ids: all are below it, and all from 1 are used.
    pub bound: u32,
}

/// What a device offers beyond the least that Vulkan 1.1 asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Target {
    /// `shaderSignedZeroInfNanPreserve` for the floats of a kernel. Without it a driver may compute `-0` as `0`, and take an infinity or a NaN
    /// for impossible; with it, `+ - x` give the bits of the reference.
    pub signed_zeros: bool,
}

/// Where each scalar parameter lies in the push constants, in bytes.
pub fn param_offsets(kernel: &Kernel) -> Vec<u32> {
    let mut end = 0u32;
    let place = |ty: Scalar| {
        let at = end.next_multiple_of(ty.bytes().max(1));
        end = at + ty.bytes();
        at
    };
    kernel.params().iter().map(|p| p.ty).map(place).collect()
}

/// Optimises a kernel and writes its words.
///
/// ```
/// use impasto_kernel::{Builder, compile};
/// let kernel = Builder::kernel("twice", [64, 1, 1], |k| {
///     let x = k.buffer_mut::<f32>("x");
///     let i = k.global_id(0);
///     x.store(i, x.load(i) * 2.0f32);
/// })?;
/// let module = compile(&kernel)?;
/// assert_eq!(module.words[..4], [0x0723_0203, 0x0001_0300, 0, module.bound]);
/// # Ok::<(), impasto_kernel::KernelError>(())
/// ```
pub fn compile(kernel: &Kernel) -> Result<Module, KernelError> {
    compile_for(kernel, Target::default())
}

/// [`compile`] for a device that offers more.
pub fn compile_for(kernel: &Kernel, target: Target) -> Result<Module, KernelError> {
    refuse_early(kernel, ID_LIMIT)?;
    emit_for(&optimise(kernel)?, target)
}

/// Writes the words of a kernel without optimising it: what is shipped on explicit request, and what others' optimisers are
/// measured on.
pub fn compile_unoptimised(kernel: &Kernel) -> Result<Module, KernelError> {
    verify(kernel)?;
    emit(kernel)
}

/// Writes the words of a kernel as it is. Variables, if it still has any, are variables of the function.
pub fn emit(kernel: &Kernel) -> Result<Module, KernelError> {
    emit_for(kernel, Target::default())
}

/// [`emit`] for a device that offers more.
pub fn emit_for(kernel: &Kernel, target: Target) -> Result<Module, KernelError> {
    emit_below(kernel, target, ID_LIMIT)
}

/// Refuses a kernel that has too many stores, before time is spent on it. Every store that surely runs takes an id for its place, and
/// no pass removes one.
fn refuse_early(kernel: &Kernel, limit: u32) -> Result<(), KernelError> {
    let mut stores = 0u64;
    for &op in kernel.region_ops(kernel.body()) {
        match kernel.kind(op) {
            OpKind::Store(m) | OpKind::Atomic(m, _) if !matches!(kernel.memory(m).space, Space::Private(_)) => {
                stores += 1
            }
            // Something in there may end the invocation.
            kind if kind.is_structure() => break,
            _ => {}
        }
    }
    if stores < u64::from(limit) {
        return Ok(());
    }
    Err(KernelError::TooManyIds {
        kernel: kernel.name.clone(),
        stage: "any translation to SPIR-V",
        count: stores + 1,
        limit,
        largest: Contributors(vec![("store".to_owned(), stores)]),
    })
}

fn emit_below(kernel: &Kernel, target: Target, limit: u32) -> Result<Module, KernelError> {
    let kernel = &EXITS.run(&FLOAT_ATOMICS.run(kernel)?)?;
    let counted = Emit::run(kernel, true);
    if counted.ids > u64::from(limit) {
        let mut largest: Vec<(String, u64)> = counted.tally.iter().map(|(&n, &c)| (n.to_owned(), c)).collect();
        largest.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        largest.truncate(4);
        return Err(KernelError::TooManyIds {
            kernel: kernel.name.clone(),
            stage: "emission of SPIR-V",
            count: counted.ids,
            limit,
            largest: Contributors(largest),
        });
    }
    Ok(control::module(Emit::run(kernel, false), target))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Builder;

    #[test]
    fn the_count_is_the_bound_and_one_id_less_is_refused() {
        let kernel = Builder::kernel("k", [1, 1, 1], |k| {
            let y = k.buffer_mut::<f32>("y");
            let i = k.global_id(0);
            k.for_(0u32, i, |_, j| k.if_(j.gt(3), || y.store(j, y.load(i) + 1.0f32)));
        })
        .unwrap();
        let kernel = optimise(&kernel).unwrap();
        let module = emit(&kernel).unwrap();
        assert_eq!(emit_below(&kernel, Target::default(), module.bound).unwrap(), module);
        match emit_below(&kernel, Target::default(), module.bound - 1) {
            Err(KernelError::TooManyIds { count, limit, largest, .. }) => {
                assert_eq!((count, limit), (u64::from(module.bound), module.bound - 1));
                assert!(!largest.0.is_empty());
            }
            other => panic!("{other:?}"),
        }
    }
}
