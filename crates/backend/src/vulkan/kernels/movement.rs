//! The same numbers in other places.

use half::{bf16, f16};
use impasto_graph::DType;
use impasto_kernel::{Builder, Kernel, KernelError, Lit};

use super::elementwise::place;
use super::{LINE, element};
use crate::shapes::Copy;

/// A copy of a box of elements, bit by bit. Buffers: operand, result.
pub(in super::super) fn copy(copy: &Copy, dtype: DType) -> Result<Kernel, KernelError> {
    match dtype {
        DType::F32 | DType::I32 => copy_of::<u32>(copy),
        DType::F16 => copy_of::<f16>(copy),
        DType::BF16 => copy_of::<bf16>(copy),
    }
}

fn copy_of<T: Lit>(copy: &Copy) -> Result<Kernel, KernelError> {
    Builder::kernel("copy", [LINE, 1, 1], |k| {
        let (x, out) = (k.buffer::<T>("x"), k.buffer_mut::<T>("out"));
        let i = element(k, copy.shape.iter().product::<usize>() as u32);
        let from = place(k, &copy.shape, &copy.from_strides, i) + copy.from as u32;
        let to = place(k, &copy.shape, &copy.to_strides, i) + copy.to as u32;
        out.store(to, x.load(from));
    })
}

/// Zeros everywhere. Buffer: result.
pub(in super::super) fn clear(elements: u32, dtype: DType) -> Result<Kernel, KernelError> {
    match dtype {
        DType::F32 | DType::I32 => clear_of(elements, 0u32),
        DType::F16 => clear_of(elements, f16::ZERO),
        DType::BF16 => clear_of(elements, bf16::ZERO),
    }
}

fn clear_of<T: Lit>(elements: u32, zero: T) -> Result<Kernel, KernelError> {
    Builder::kernel("clear", [LINE, 1, 1], |k| {
        let out = k.buffer_mut::<T>("out");
        let i = element(k, elements);
        out.store(i, k.lit(zero));
    })
}
