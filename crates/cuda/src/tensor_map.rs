//! Tensor maps: how Hopper's copy engine finds the boxes of a tensor.

use crate::driver::CudaDriver;
use crate::error::CudaError;

/// Elements of a tensor that is copied by maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TensorElement {
    /// Bytes.
    U8,
    /// 32-bit integers.
    U32,
    /// Half floats.
    F16,
    /// Floats.
    F32,
    /// Brain floats.
    Bf16,
}

/// How 16-byte chunks of a box are exchanged in shared memory, by the bytes of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the variants are the bytes")]
pub enum TensorSwizzle {
    None,
    B32,
    B64,
    B128,
}

/// A tensor and the box of it that a copy takes. The first dimension is the one whose elements lie side by side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorMapLayout {
    /// The elements.
    pub element: TensorElement,
    /// Where the tensor begins, a multiple of 16.
    pub address: u64,
    /// Elements in each dimension, 1 to 5 of them.
    pub sizes: Vec<u64>,
    /// Bytes from one element to the next in each dimension but the first, multiples of 16.
    pub strides: Vec<u64>,
    /// Elements of a box in each dimension, at most 256.
    pub extent: Vec<u32>,
    /// Each which element is taken in each dimension, 1 to 8.
    pub steps: Vec<u32>,
    /// How a box lies in shared memory.
    pub swizzle: TensorSwizzle,
}

/// A map as kernels take it, by value.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorMap(pub [u64; 16]);

impl TensorMap {
    /// Its bytes, as a parameter of a launch.
    pub fn bytes(&self) -> Vec<u8> {
        self.0.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }
}

impl CudaDriver {
    /// Encodes a map. What lies outside of the tensor reads as zeros.
    pub fn tensor_map(&self, layout: &TensorMapLayout) -> Result<TensorMap, CudaError> {
        let rank = layout.sizes.len();
        if !(1..=5).contains(&rank)
            || layout.strides.len() + 1 != rank
            || [layout.extent.len(), layout.steps.len()] != [rank; 2]
        {
            return Err(CudaError::Wrong("a tensor map has 1 to 5 dimensions, and as many sizes of boxes"));
        }
        let element = match layout.element {
            TensorElement::U8 => 0,
            TensorElement::U32 => 2,
            TensorElement::F16 => 6,
            TensorElement::F32 => 7,
            TensorElement::Bf16 => 9,
        };
        const PROMOTE_256: i32 = 3;
        let mut map = TensorMap([0; 16]);
        // SAFETY: the map is 128 bytes at a multiple of 64, and each list has an entry for each dimension, which was just checked.
        unsafe {
            self.0.tensor_map_tiled(
                std::ptr::from_mut(&mut map).cast(),
                element,
                rank as u32,
                layout.address,
                layout.sizes.as_ptr(),
                layout.strides.as_ptr(),
                layout.extent.as_ptr(),
                layout.steps.as_ptr(),
                0,
                layout.swizzle as i32,
                PROMOTE_256,
                0,
            )
        }?;
        Ok(map)
    }
}
