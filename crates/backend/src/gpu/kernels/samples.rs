//! The kernels to look at: each for a shape that Stable Diffusion 1 has.

use impasto_graph::{Binary, DType, Fused, Op, Pairs, Unary};
use impasto_kernel::{Kernel, KernelError};

use super::elementwise::{Term, Walked};
use super::gemm::{Bias, Gemm, Left};
use super::{attention, elementwise, lookup, movement, norm};
use crate::shapes::{Copy, Heads, Image, Window};

/// A kernel for one shape.
#[derive(Clone, Debug)]
pub struct Sample {
    /// The name by which it is asked for.
    pub name: &'static str,
    /// What it computes.
    pub about: &'static str,
    /// The kernel as it is written.
    pub kernel: Kernel,
}

/// One of each kind.
pub fn samples() -> Result<Vec<Sample>, KernelError> {
    let (f32, f16) = (DType::F32, DType::F16);
    let image = Image { batch: 2, lines: 64, pixels: 64, channels: 320, groups: 32 };
    let sample = |name, about, kernel: Result<Kernel, KernelError>| Ok(Sample { name, about, kernel: kernel? });
    [
        sample("linear", "a linear layer, 8192 x 320 x 320, with bias and residual", linear().kernel()),
        sample("conv", "a convolution 3x3 of 320 channels at 64x64, with bias and SiLU", conv().kernel()),
        sample("attention", "attention, 8 heads of 40, 4096 tokens", attention::attention(&heads(), [f16; 4])),
        sample("line_statistics", "mean and deviation of the lines of an image", norm::line_statistics(&image, f32)),
        sample("combine", "mean and deviation of an image from those of its lines", norm::combine(&image, 1e-5)),
        sample("group_norm", "group norm with SiLU", norm::group_norm(&image, Some(Unary::Silu), [f32, f16, f16, f16])),
        sample("norm_factors", "mean, scale and shift of each channel", norm::norm_factors(&image, [f16; 2])),
        sample("normalise", "each pixel by these, with SiLU", norm::normalise(&image, Some(Unary::Silu), f32, f16)),
        sample("layer_norm", "layer norm of 8192 rows of 320", by_row(&Op::LayerNorm { eps: 1e-5 }, &[f32, f16, f16])),
        sample("rms_norm", "RMS norm of 8192 rows of 320", by_row(&Op::RmsNorm { eps: 1e-6 }, &[f32, f16])),
        sample("softmax", "softmax of 8192 rows of 320", by_row(&Op::Softmax, &[f32])),
        sample("chain", "a vector added to each row, then GELU", chain()),
        sample("geglu", "one half times GELU of the other", elementwise::gated_gelu(8192, 1280, f16, None, f16)),
        sample("transpose", "channels last to channels first", movement::strided_copy(&to_channels_first(), f32)),
        sample("clear", "zeros", movement::clear(1 << 20, f16)),
        sample("embedding", "rows of a table of 49408", lookup::embedding(77, 768, 49_408, 0..49_408, [f16, f32])),
        sample("timestep", "cosines and sines of a time", lookup::timestep(2, 320, 10_000.0, [f32, f32])),
        sample(
            "rotary",
            "pairs turned by angles",
            lookup::rotary([1, 4096, 24, 128], Pairs::Halves, [f16, f32, f32, f16]),
        ),
    ]
    .into_iter()
    .collect()
}

fn linear() -> Gemm {
    Gemm {
        batch: 1,
        m: 8192,
        n: 320,
        segments: 1,
        depth: 320,
        left: Left::Rows,
        left_type: DType::F16,
        right_type: DType::F16,
        right_transposed: true,
        geglu: false,
        scale: 1.0,
        bias: Some(Bias { dtype: DType::F16, rows: None }),
        activation: None,
        residual: Some(DType::F32),
        out: DType::F32,
    }
}

fn conv() -> Gemm {
    let activation = Some(Unary::Silu);
    let window = Window {
        batch: 2,
        height: 64,
        width: 64,
        channels: 320,
        x_type: DType::F16,
        out_height: 64,
        out_width: 64,
        n: 320,
        kernel: [3, 3],
        stride: 1,
        padding: [1, 1],
        upsample: 1,
        fused: Fused { bias: true, activation, residual: false },
    };
    Gemm { segments: 9, left: Left::Window(window), residual: None, activation, ..linear() }
}

fn heads() -> Heads {
    Heads {
        batch: 2,
        heads: 8,
        queries: 4096,
        keys: 4096,
        width: 40,
        value_width: 40,
        scale: 0.158_113_88,
        causal: false,
        kv_heads: 8,
        bias: None,
    }
}

fn to_channels_first() -> Copy {
    Copy {
        shape: vec![2, 320, 4096],
        from: 0,
        from_strides: vec![320 * 4096, 1, 320],
        to: 0,
        to_strides: vec![320 * 4096, 4096, 1],
    }
}

fn chain() -> Result<Kernel, KernelError> {
    let leaf = |n: usize| Box::new(Term::Leaf(n));
    let sum = Box::new(Term::Binary(Binary::Add, [leaf(0), leaf(1)]));
    let walked = [vec![320, 1], vec![0, 1]].map(|strides| Walked { dtype: DType::F32, strides });
    elementwise::chain(&Term::Map(Op::Unary(Unary::Gelu), sum), &[8192, 320], &walked, DType::F16)
}

fn by_row(op: &Op, types: &[DType]) -> Result<Kernel, KernelError> {
    norm::by_row(op, [8192, 320, 8192], types, DType::F16)
}
