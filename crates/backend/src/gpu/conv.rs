//! Convolutions over channels-last images, without unfolding the image: a product with a segment of `k` for each tap.

use super::kernels::gemm::{Gemm, Left};
use crate::shapes::Window;

/// A product whose left side is the pixels under a window.
pub(super) fn over_pixels(plain: Gemm, w: Window) -> Gemm {
    let left = if w.is_pointwise() { Left::Rows } else { Left::Window(w) };
    let m = (w.batch * w.out_height * w.out_width) as u32;
    Gemm { m, n: w.n as u32, segments: w.taps() as u32, depth: w.channels as u32, left, ..plain }
}
