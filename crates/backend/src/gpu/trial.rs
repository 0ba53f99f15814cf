//! Whether matrix units compute what they should: a driver's compiler can be wrong.

use half::f16;
use impasto_graph::DType;
use impasto_kernel::{Kernel, KernelError};

use super::kernels::gemm::Gemm;
use super::kernels::matrices::Units;
use super::kernels::warpgroup::MatrixProduct;

/// Rows, columns and depth of the product that is tried.
const SIZE: [usize; 3] = [80, 72, 104];

/// A product of whole numbers, of which sums are exact in any order, as the units of a device would compute it.
pub(crate) struct UnitsTrial {
    pub(crate) kernel: Kernel,
    pub(crate) groups: [u32; 3],
}

impl UnitsTrial {
    /// For these units, if products are written for them.
    pub(crate) fn new(units: Units) -> Result<Option<UnitsTrial>, KernelError> {
        let gemm = Gemm { right_transposed: false, ..Gemm::of_rows(SIZE.map(|n| n as u32), [DType::F16; 2]) };
        let Some(product) = MatrixProduct::new(&gemm, units) else { return Ok(None) };
        let (kernel, groups) = product.kernel()?;
        Ok(Some(UnitsTrial { kernel, groups }))
    }

    fn number(i: usize, by: usize) -> f32 {
        ((i * by + i / 7) % 15) as f32 - 7.0
    }

    /// The left and the right factor.
    pub(crate) fn factors() -> [Vec<u8>; 2] {
        let [m, n, depth] = SIZE;
        let halves = |n: usize, by: usize| -> Vec<u8> {
            (0..n).flat_map(|i| f16::from_f32(UnitsTrial::number(i, by)).to_le_bytes()).collect()
        };
        [halves(m * depth, 11), halves(depth * n, 5)]
    }

    /// Bytes of the result.
    pub(crate) fn result_bytes() -> usize {
        4 * SIZE[0] * SIZE[1]
    }

    /// Whether this is the result.
    pub(crate) fn is_right(got: &[u8]) -> bool {
        let [m, n, depth] = SIZE;
        let got = got.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        let expected = (0..m * n).map(|i| -> f32 {
            let (row, column) = (i / n, i % n);
            (0..depth).map(|d| UnitsTrial::number(row * depth + d, 11) * UnitsTrial::number(d * n + column, 5)).sum()
        });
        got.eq(expected)
    }
}
