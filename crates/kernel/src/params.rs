//! The block of scalar parameters as hosts fill it: each parameter at the next multiple of its size. And that of the arrays that a workgroup
//! shares, for APIs that know them as one piece of memory.

use crate::error::KernelError;
use crate::ir::{Kernel, OpKind, Scalar, Space, WarpgroupProduct};

/// Bytes of the parameter block of a kernel.
pub fn param_size(kernel: &Kernel) -> u32 {
    let last = kernel.params().last().zip(param_offsets(kernel).last().copied());
    last.map_or(0, |(p, at)| at + p.ty.bytes())
}

/// The offset of each scalar parameter in the parameter block, in bytes.
pub fn param_offsets(kernel: &Kernel) -> Vec<u32> {
    let mut end = 0u32;
    let place = |ty: Scalar| {
        let at = end.next_multiple_of(ty.bytes().max(1));
        end = at + ty.bytes();
        at
    };
    kernel.params().iter().map(|p| p.ty).map(place).collect()
}

/// The parameter block of a launch with these values of the scalar parameters, given as bits.
///
/// ```
/// use impasto_kernel::{Builder, param_bytes};
/// let kernel = Builder::kernel("k", [1, 1, 1], |k| {
///     let (a, n) = (k.param::<u32>("a"), k.param::<u64>("n"));
///     k.buffer_mut::<u64>("y").store(a, n);
/// })?;
/// assert_eq!(param_bytes(&kernel, &[7, 9])?, [7, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0]);
/// # Ok::<(), impasto_kernel::KernelError>(())
/// ```
pub fn param_bytes(kernel: &Kernel, values: &[u64]) -> Result<Vec<u8>, KernelError> {
    let params = kernel.params();
    if values.len() != params.len() {
        let problem = format!("it has {} parameters, {} values were given", params.len(), values.len());
        return Err(KernelError::Launch { kernel: kernel.name.clone(), problem });
    }
    let mut bytes = Vec::new();
    for ((p, at), value) in params.iter().zip(param_offsets(kernel)).zip(values) {
        bytes.resize(at as usize, 0);
        bytes.extend_from_slice(&value.to_le_bytes()[..p.ty.bytes() as usize]);
    }
    Ok(bytes)
}

/// The offset of each workgroup array in one block of bytes, and the size of that block; other memories have offset 0. Every array begins at a
/// multiple of 16 bytes, or of the alignment of its elements where that is larger; one that holds tiles of warpgroups at a multiple of what those
/// begin at.
pub fn shared_offsets(kernel: &Kernel) -> (Vec<u64>, u64) {
    let mut tiles = vec![false; kernel.memories().len()];
    for kind in kernel.kinds() {
        if let OpKind::WarpgroupMulAdd(product) = kind {
            tiles[product.a.index()] = true;
            tiles[product.b.index()] = true;
        }
    }
    let mut end = 0u64;
    let place = |(m, tile): (&crate::ir::MemoryDecl, bool)| {
        let Space::Workgroup(n) = m.space else { return 0 };
        let layout = kernel.lay_out(m.ty);
        let least = if tile { u64::from(WarpgroupProduct::ALIGNMENT) } else { 16 };
        let at = end.next_multiple_of(u64::from(layout.align).max(least));
        end = at + u64::from(n) * u64::from(layout.stride());
        at
    };
    let offsets = kernel.memories().iter().zip(tiles).map(place).collect();
    (offsets, end)
}
