//! Convolutions over channels-last images, without unfolding the image: a product with a segment of `k` for each tap.

use impasto_graph::Value;

use super::kernels::gemm::{Gemm, Left};
use super::linear::{bias_of, product};
use super::session::{Env, Runs};
use crate::shapes::{Window, epilogue};

pub(super) fn prepare(env: &Env, value: Value) -> Runs {
    let w = Window::of(env.graph, value);
    let (right, right_type) = env.packed(env.operand(value, 1));
    let (bias, residual) = epilogue(env.graph, value, w.fused);
    let pixels = w.out_height * w.out_width;
    let gemm = Gemm {
        batch: 1,
        m: (w.batch * pixels) as u32,
        n: w.n as u32,
        segments: w.taps() as u32,
        depth: w.channels as u32,
        left: if w.is_pointwise() { Left::Rows } else { Left::Window(w) },
        left_type: w.x_type,
        right_type,
        right_transposed: false,
        bias: bias.map(|b| bias_of(env, b, pixels)),
        activation: w.fused.activation,
        residual: residual.map(|r| env.ty(r).dtype),
        out: env.ty(value).dtype,
    };
    product(env, value, &gemm, right, [bias, residual])
}
