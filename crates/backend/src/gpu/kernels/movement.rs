//! The same numbers in other places.

use impasto_graph::DType;
use impasto_kernel::prelude::*;

use super::elementwise::place;
use super::{LINE, element, scalar};
use crate::shapes;

/// A copy of a box of elements between two layouts, bit by bit. Buffers: operand, result.
pub(crate) fn strided_copy(layout: &shapes::Copy, dtype: DType) -> Result<Kernel, KernelError> {
    match dtype {
        DType::F32 | DType::I32 => copy::<u32>(layout),
        DType::F16 => copy::<f16>(layout),
        DType::BF16 => copy::<bf16>(layout),
    }
}

/// Generic, and not `stored`, since a conversion would change the bits of some NaN.
#[kernel(workgroup = LINE)]
fn copy<T: Lit>(#[comptime] layout: &shapes::Copy, x: &[T], out: &mut [T]) {
    let i = element(comptime!(layout.shape.iter().product::<usize>() as u32));
    let from = place(comptime!(&layout.shape), comptime!(&layout.from_strides), i) + layout.from as u32;
    let to = place(comptime!(&layout.shape), comptime!(&layout.to_strides), i) + layout.to as u32;
    out[to] = x[from];
}

/// Zeros everywhere.
#[kernel(workgroup = LINE)]
pub(crate) fn clear(#[comptime] elements: u32, #[comptime] dtype: DType, #[stored(scalar(dtype))] out: &mut [f32]) {
    let i = element(elements);
    out[i] = 0.0;
}
