//! The one table of operations: every op a graph may hold, its operands, its attributes and its cost.
//!
//! An op holds attributes only; its operands stand in the node, in the order that [`Op::roles`] names.

use crate::dtype::Storage;
use crate::tensor::TensorType;

/// A function of one number, applied to each element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the variants are the functions' names")]
pub enum Unary {
    Silu,
    Gelu,
    GeluTanh,
    QuickGelu,
    Relu,
    Sigmoid,
    Tanh,
    Exp,
    Neg,
    Abs,
    Sqrt,
    Square,
    Sin,
    Cos,
}

/// A function of two numbers, applied to each pair of elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the variants are the functions' names")]
pub enum Binary {
    Add,
    Sub,
    Mul,
    Div,
    Max,
    Min,
}

/// The least bias of [`Op::Attention`]: what hides a key.
///
/// A power of two, so that scaling it is exact. Where all keys so far are hidden it is the running maximum of the softmax, and `fma(score, scale,
/// -(max * scale))` must be 0 there: the rounding error of any other number of this size would overflow `exp2`.
pub const HIDDEN: f32 = -((1u128 << 100) as f32);

/// What a product does to each element before it is stored: `activation(sum + bias) + residual`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Fused {
    /// A bias operand follows the weights: `(n)`, or `(batch, n)` for one bias a picture.
    pub bias: bool,
    /// Applied after the bias.
    pub activation: Option<Unary>,
    /// The last operand is added at the end; it has the shape of the result.
    pub residual: bool,
}

/// How the two numbers of a rotated pair lie in a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pairs {
    /// `(0, 1), (2, 3), ...`
    Adjacent,
    /// `(0, d/2), (1, d/2 + 1), ...`
    Halves,
}

/// An operation. Each yields one tensor.
#[allow(missing_docs, reason = "the fields are named by the formula above them")]
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    // Sources: what comes from outside. They are not executed.
    /// A tensor given at each run.
    Input { name: String },
    /// A tensor of the model file.
    Param { name: String, storage: Storage },

    // Products: nearly all of the time is spent here.
    /// `x (.., k)` times the parameter `w (n, k)`, transposed: `(.., n)`. With `geglu`, `w (2n, k)` and a bias of `2n`: the first half of
    /// the columns times the exact GELU of the second half, without another activation.
    Linear { fused: Fused, geglu: bool },
    /// `a (.., m, k)` times `b (.., k, n)`, or `b (.., n, k)` transposed: `(.., m, n)`.
    MatMul { transpose_b: bool },
    /// `x (batch, h, w, c)` with the parameter `w (n, c, kh, kw)`: `(batch, h', w', n)`. The input is first enlarged
    /// `upsample` times (nearest), then padded (top, left, bottom, right); a negative padding takes pixels away.
    Conv2d { stride: usize, padding: [isize; 4], upsample: usize, fused: Fused },
    /// Softmax(scale q kᵀ + bias) v for each head: `q (batch, t, heads d)`, `k (batch, s, kv_heads d)`, `v (batch, s, kv_heads e)`:
    /// `(batch, t, heads e)`. `heads / kv_heads` neighbouring heads share keys and values. Causal: query `i` sees keys up to `i + s - t`.
    /// The bias is `(batch or 1, heads or 1, t or 1, s)`; below [`HIDDEN`] it counts as that, so that a key whose bias is negative
    /// infinity is not seen where another one is.
    Attention { heads: usize, kv_heads: usize, scale: f32, causal: bool, bias: bool },

    // Norms: statistics over a row or over an image.
    /// Over each group of channels of each picture, then scale and shift by channel: `x, gamma (c), beta (c)`.
    GroupNorm { groups: usize, eps: f32, activation: Option<Unary> },
    /// The statistics of group norm, by line: `x (batch, lines, .., c)`: `(batch, lines, groups, 2)`, the mean and the sum of squared
    /// distances from it.
    LineStatistics { groups: usize },
    /// What group norm does to each channel: `stats (batch, lines, groups, 2)` of lines of `pixels` pixels, combined in their order,
    /// `gamma (c), beta (c)`: `(batch, 3, c)`, mean, scale and shift.
    NormFactors { pixels: usize, eps: f32 },
    /// `activation((x - mean) scale + shift)`: `x (batch, .., c)`, `factors (batch, 3, c)`.
    Normalise { activation: Option<Unary> },
    /// Over the last dimension: `x (batch, .., c), gamma, beta`, both `(c)`, or `(batch, c)` for a scale and a shift of each picture's own.
    LayerNorm { eps: f32 },
    /// Over the last dimension, without the mean: `x (batch, .., c), gamma`, which is `(c)` or `(batch, c)`.
    RmsNorm { eps: f32 },
    /// Over the last dimension.
    Softmax,

    // Element-wise arithmetic.
    /// A function of each element.
    Unary(Unary),
    /// A function of each pair of elements; shapes broadcast from the right as in numpy.
    Binary(Binary),
    /// `x * scale + shift`.
    Affine { scale: f32, shift: f32 },
    /// `x (.., 2n)`: first half times the exact GELU of the second half: `(.., n)`.
    Geglu,
    /// The same values in another element type.
    Cast,

    // Movement: the same numbers in other places. Reshape, and slices and permutations that keep the order in memory, are views.
    /// Nearest-neighbour enlargement of an image.
    Upsample { factor: usize },
    /// Zeros before and after, for each dimension.
    Pad { before: Vec<usize>, after: Vec<usize> },
    /// One after the other along an axis.
    Concat { axis: usize },
    /// A part of an axis.
    Slice { axis: usize, start: usize, len: usize },
    /// The same elements in another shape.
    Reshape { shape: Vec<usize> },
    /// Axes in another order: axis `i` of the result is axis `axes[i]` of the operand.
    Permute { axes: Vec<usize> },

    // Lookups and encodings.
    /// Rows of `table (n, c)` by `ids`: `(.., c)`.
    Embedding,
    /// Cosines, then sines, of `t (batch)`: `(batch, dim)`; frequency `i` of `dim / 2` is `max_period ^ (-i / (dim / 2))`.
    TimestepEmbedding { dim: usize, max_period: f32 },
    /// Each pair of `x (batch, t, heads d)` turned by an angle given by `cos (t, d/2)` and `sin (t, d/2)`.
    Rotary { heads: usize, pairs: Pairs },

    // Between the device and the host, for values that nobody needs for a while.
    /// The same bytes in the host's memory. Only [`Op::Fetch`] reads them; they may be a result.
    Rest,
    /// What rests, on the device again.
    Fetch,
}

impl Fused {
    fn roles(self, first: &[&'static str]) -> Vec<&'static str> {
        let mut roles = first.to_vec();
        roles.extend(self.bias.then_some("bias"));
        roles.extend(self.residual.then_some("residual"));
        roles
    }
}

impl Op {
    /// The name in the textual form.
    pub fn name(&self) -> &'static str {
        match self {
            Op::Input { .. } => "input",
            Op::Param { .. } => "param",
            Op::Linear { .. } => "linear",
            Op::MatMul { .. } => "matmul",
            Op::Conv2d { .. } => "conv2d",
            Op::Attention { .. } => "attention",
            Op::GroupNorm { .. } => "group_norm",
            Op::LineStatistics { .. } => "line_statistics",
            Op::NormFactors { .. } => "norm_factors",
            Op::Normalise { .. } => "normalise",
            Op::LayerNorm { .. } => "layer_norm",
            Op::RmsNorm { .. } => "rms_norm",
            Op::Softmax => "softmax",
            Op::Unary(u) => u.name(),
            Op::Binary(b) => b.name(),
            Op::Affine { .. } => "affine",
            Op::Geglu => "geglu",
            Op::Cast => "cast",
            Op::Upsample { .. } => "upsample",
            Op::Pad { .. } => "pad",
            Op::Concat { .. } => "concat",
            Op::Slice { .. } => "slice",
            Op::Reshape { .. } => "reshape",
            Op::Permute { .. } => "permute",
            Op::Embedding => "embedding",
            Op::TimestepEmbedding { .. } => "timestep_embedding",
            Op::Rotary { .. } => "rotary",
            Op::Rest => "rest",
            Op::Fetch => "fetch",
        }
    }

    /// The roles of the operands, in order; `None` for any number of them.
    pub fn roles(&self) -> Option<Vec<&'static str>> {
        Some(match self {
            Op::Input { .. } | Op::Param { .. } => vec![],
            Op::Linear { fused, .. } | Op::Conv2d { fused, .. } => fused.roles(&["x", "w"]),
            Op::MatMul { .. } | Op::Binary(_) => vec!["a", "b"],
            Op::Attention { bias, .. } => ["q", "k", "v"].into_iter().chain(bias.then_some("bias")).collect(),
            Op::GroupNorm { .. } | Op::LayerNorm { .. } => vec!["x", "gamma", "beta"],
            Op::RmsNorm { .. } => vec!["x", "gamma"],
            Op::NormFactors { .. } => vec!["stats", "gamma", "beta"],
            Op::Normalise { .. } => vec!["x", "factors"],
            Op::Concat { .. } => return None,
            Op::Embedding => vec!["table", "ids"],
            Op::TimestepEmbedding { .. } => vec!["t"],
            Op::Rotary { .. } => vec!["x", "cos", "sin"],
            Op::LineStatistics { .. }
            | Op::Softmax
            | Op::Unary(_)
            | Op::Affine { .. }
            | Op::Geglu
            | Op::Cast
            | Op::Upsample { .. }
            | Op::Pad { .. }
            | Op::Slice { .. }
            | Op::Reshape { .. }
            | Op::Permute { .. }
            | Op::Rest
            | Op::Fetch => vec!["x"],
        })
    }

    /// Whether the tensor comes from outside.
    pub fn is_source(&self) -> bool {
        matches!(self, Op::Input { .. } | Op::Param { .. })
    }

    /// Whether it only copies between the device and the host, which needs no memory beside its result.
    pub fn is_copy(&self) -> bool {
        matches!(self, Op::Rest | Op::Fetch)
    }

    /// Useful floating-point operations of a product (multiplications and additions), 0 for the rest.
    pub fn flops(&self, inputs: &[&TensorType], out: &TensorType) -> u64 {
        match self {
            Op::Linear { .. } => 2 * out.rows() as u64 * inputs[1].elements(),
            Op::MatMul { .. } => 2 * out.elements() * inputs[0].channels() as u64,
            Op::Conv2d { .. } => 2 * out.elements() * inputs[1].shape[1..].iter().product::<usize>() as u64,
            Op::Attention { .. } => {
                let scores = inputs[0].rows() as u64 * inputs[1].shape[1] as u64;
                2 * scores * (inputs[0].channels() + out.channels()) as u64
            }
            _ => 0,
        }
    }
}

impl Unary {
    /// Every function, in the order of this enum.
    pub const ALL: [Unary; 14] = [
        Unary::Silu,
        Unary::Gelu,
        Unary::GeluTanh,
        Unary::QuickGelu,
        Unary::Relu,
        Unary::Sigmoid,
        Unary::Tanh,
        Unary::Exp,
        Unary::Neg,
        Unary::Abs,
        Unary::Sqrt,
        Unary::Square,
        Unary::Sin,
        Unary::Cos,
    ];

    /// The name in the textual form.
    pub const fn name(self) -> &'static str {
        match self {
            Unary::Silu => "silu",
            Unary::Gelu => "gelu",
            Unary::GeluTanh => "gelu_tanh",
            Unary::QuickGelu => "quick_gelu",
            Unary::Relu => "relu",
            Unary::Sigmoid => "sigmoid",
            Unary::Tanh => "tanh",
            Unary::Exp => "exp",
            Unary::Neg => "neg",
            Unary::Abs => "abs",
            Unary::Sqrt => "sqrt",
            Unary::Square => "square",
            Unary::Sin => "sin",
            Unary::Cos => "cos",
        }
    }

    /// The function of this name.
    pub fn named(name: &str) -> Option<Unary> {
        Unary::ALL.into_iter().find(|u| u.name() == name)
    }
}

impl Binary {
    /// Every function, in the order of this enum.
    pub const ALL: [Binary; 6] = [Binary::Add, Binary::Sub, Binary::Mul, Binary::Div, Binary::Max, Binary::Min];

    /// The name in the textual form.
    pub const fn name(self) -> &'static str {
        match self {
            Binary::Add => "add",
            Binary::Sub => "sub",
            Binary::Mul => "mul",
            Binary::Div => "div",
            Binary::Max => "max",
            Binary::Min => "min",
        }
    }

    /// The function of this name.
    pub fn named(name: &str) -> Option<Binary> {
        Binary::ALL.into_iter().find(|b| b.name() == name)
    }
}
