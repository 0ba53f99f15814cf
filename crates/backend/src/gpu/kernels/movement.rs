//! The same numbers in other places.

use impasto_graph::DType;
use impasto_kernel::prelude::*;
use impasto_kernel::{Builder, Vec4};

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

/// The same in units of 16 bytes, and those units; none where the boxes are not made of them.
pub(crate) fn strided_copy_by_16(layout: &shapes::Copy, dtype: DType) -> Option<(Result<Kernel, KernelError>, u64)> {
    let unit = (16 / dtype.bytes()) as usize;
    let (last, outer) = (layout.shape.len().checked_sub(1)?, [&layout.from_strides, &layout.to_strides]);
    let whole = |n: usize| n.is_multiple_of(unit);
    let fits = whole(layout.shape[last])
        && [layout.from, layout.to].into_iter().all(whole)
        && outer.iter().all(|strides| strides[last] == 1 && strides[..last].iter().all(|&s| whole(s)));
    if !fits {
        return None;
    }
    let less = |strides: &[usize]| -> Vec<usize> {
        strides.iter().enumerate().map(|(i, &s)| if i == last { s } else { s / unit }).collect()
    };
    let mut shape = layout.shape.clone();
    shape[last] /= unit;
    let units: usize = shape.iter().product();
    let kernel = Builder::kernel("copy", [LINE, 1, 1], |k| {
        let (x, out) = (k.buffer::<Vec4<u32>>("x"), k.buffer_mut::<Vec4<u32>>("out"));
        let i = element(k, units as u32);
        let at = |strides: &[usize], begin: usize| place(k, &shape, &less(strides), i) + (begin / unit) as u32;
        let value = x.load(at(&layout.from_strides, layout.from));
        out.store(at(&layout.to_strides, layout.to), value);
    });
    Some((kernel, units as u64))
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
