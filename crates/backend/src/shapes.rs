//! What ops are about, in numbers that every backend reads: windows over images, heads, boxes of elements. Nothing here knows how
//! anything is computed.

use impasto_graph::{DType, Fused, Graph, Op, TensorType, Value};

/// How many rows, one after the other, a norm gives the same scale and shift.
pub(crate) fn rows_together(graph: &Graph, value: Value) -> usize {
    let (node, ty) = (graph.node(value), graph.ty(value));
    let gamma = node.inputs.get(1).map_or(1, |&gamma| graph.ty(gamma).rows());
    (ty.rows() / gamma).max(1)
}

/// A convolution.
#[derive(Clone, Copy)]
pub(crate) struct Window {
    pub(crate) batch: usize,
    pub(crate) height: usize,
    pub(crate) width: usize,
    pub(crate) channels: usize,
    pub(crate) x_type: DType,
    pub(crate) out_height: usize,
    pub(crate) out_width: usize,
    pub(crate) n: usize,
    pub(crate) kernel: [usize; 2],
    pub(crate) stride: usize,
    /// Top and left, negative where pixels are taken away; what is needed below and to the right follows from the size of the result.
    pub(crate) padding: [isize; 2],
    pub(crate) upsample: usize,
    pub(crate) fused: Fused,
}

impl Window {
    pub(crate) fn of(graph: &Graph, value: Value) -> Window {
        let node = graph.node(value);
        let Op::Conv2d { stride, padding, upsample, fused } = node.op else { unreachable!("called for convolutions") };
        let (x, w, out) = (graph.ty(node.inputs[0]), graph.ty(node.inputs[1]), graph.ty(value));
        Window {
            batch: x.shape[0],
            height: x.shape[1],
            width: x.shape[2],
            channels: x.shape[3],
            x_type: x.dtype,
            out_height: out.shape[1],
            out_width: out.shape[2],
            n: w.shape[0],
            kernel: [w.shape[2], w.shape[3]],
            stride,
            padding: [padding[0], padding[1]],
            upsample,
            fused,
        }
    }

    pub(crate) fn taps(&self) -> usize {
        self.kernel[0] * self.kernel[1]
    }

    pub(crate) fn k(&self) -> usize {
        self.taps() * self.channels
    }

    /// Pixels of the enlarged, padded input under `n` of the result that follow each other down (0) or across (1).
    pub(crate) fn under(&self, n: usize, axis: usize) -> usize {
        (n - 1) * self.stride + self.kernel[axis]
    }

    /// A pixel of the enlarged, padded input as a pixel of the input.
    pub(crate) fn source(&self, y: usize, x: usize) -> Option<usize> {
        let row = y.checked_add_signed(-self.padding[0])? / self.upsample;
        let column = x.checked_add_signed(-self.padding[1])? / self.upsample;
        (row < self.height && column < self.width).then_some(row * self.width + column)
    }

    /// One pixel of the result for one of the input: a linear layer.
    pub(crate) fn is_pointwise(&self) -> bool {
        self.kernel == [1, 1]
            && self.stride == 1
            && self.padding == [0, 0]
            && self.upsample == 1
            && [self.out_height, self.out_width] == [self.height, self.width]
    }
}

/// Attention.
#[derive(Clone, Copy)]
pub(crate) struct Heads {
    pub(crate) batch: usize,
    pub(crate) heads: usize,
    /// Heads of keys and values, each for as many neighbouring heads of queries.
    pub(crate) kv_heads: usize,
    pub(crate) queries: usize,
    pub(crate) keys: usize,
    /// Width of a head of queries and keys, and of values.
    pub(crate) width: usize,
    pub(crate) value_width: usize,
    pub(crate) scale: f32,
    pub(crate) causal: bool,
    pub(crate) bias: Option<ScoreBias>,
}

/// What is added to the scores of attention. Keys lie beside each other.
#[derive(Clone, Copy)]
pub(crate) struct ScoreBias {
    pub(crate) dtype: DType,
    /// From one picture, one head and one query to the next.
    pub(crate) strides: [usize; 3],
}

impl Heads {
    pub(crate) fn of(graph: &Graph, value: Value) -> Heads {
        let node = graph.node(value);
        let Op::Attention { heads, kv_heads, scale, causal, bias } = node.op else {
            unreachable!("called for attention")
        };
        let [q, k, v] = [0, 1, 2].map(|i| graph.ty(node.inputs[i]));
        let bias = bias.then(|| {
            let shape = [q.shape[0], heads, q.shape[1], k.shape[1]];
            let ty = graph.ty(node.inputs[3]);
            let strides = broadcast_strides(&ty.shape, &shape);
            ScoreBias { dtype: ty.dtype, strides: [strides[0], strides[1], strides[2]] }
        });
        Heads {
            batch: q.shape[0],
            heads,
            kv_heads,
            queries: q.shape[1],
            keys: k.shape[1],
            width: q.shape[2] / heads,
            value_width: v.shape[2] / kv_heads,
            scale,
            causal,
            bias,
        }
    }
}

/// An image whose groups of channels are normed.
#[derive(Clone, Copy)]
pub(crate) struct Image {
    pub(crate) batch: usize,
    pub(crate) lines: usize,
    /// Pixels of a line.
    pub(crate) pixels: usize,
    pub(crate) channels: usize,
    pub(crate) groups: usize,
}

impl Image {
    pub(crate) fn of(graph: &Graph, value: Value) -> Image {
        let node = graph.node(value);
        let groups = match node.op {
            Op::GroupNorm { groups, .. } | Op::LineStatistics { groups } => groups,
            Op::NormFactors { pixels, .. } => {
                let [batch, lines, groups, _] = graph.ty(node.inputs[0]).shape[..] else {
                    unreachable!("statistics have four dimensions")
                };
                return Image { batch, lines, pixels, channels: node.ty.channels(), groups };
            }
            // Each channel by itself.
            _ => node.ty.channels(),
        };
        let x = &graph.ty(node.inputs[0]).shape;
        let middle = &x[1..x.len() - 1];
        Image {
            batch: x[0],
            lines: middle.first().copied().unwrap_or(1),
            pixels: middle.iter().skip(1).product(),
            channels: x[x.len() - 1],
            groups,
        }
    }
}

/// A product's operands after the weights: bias, then residual, where there are such.
pub(crate) fn epilogue(graph: &Graph, value: Value, fused: Fused) -> (Option<Value>, Option<Value>) {
    let mut rest = graph.node(value).inputs[2..].iter().copied();
    let bias = if fused.bias { rest.next() } else { None };
    let residual = if fused.residual { rest.next() } else { None };
    (bias, residual)
}

/// Columns and depth of a product's weights: `(n, k)` or `(n, c, kh, kw)`.
pub(crate) fn product_shape(ty: &TensorType) -> (usize, usize) {
    (ty.shape[0], ty.shape[1..].iter().product())
}

/// A copy of a box of elements. Strides are in elements.
#[derive(Clone)]
pub(crate) struct Copy {
    pub(crate) shape: Vec<usize>,
    pub(crate) from: usize,
    pub(crate) from_strides: Vec<usize>,
    pub(crate) to: usize,
    pub(crate) to_strides: Vec<usize>,
}

fn dense(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; shape.len()];
    for i in (1..shape.len()).rev() {
        strides[i - 1] = strides[i] * shape[i];
    }
    strides
}

/// What a mover does: a copy for each operand. A padded result is cleared first.
pub(crate) fn copies(graph: &Graph, value: Value) -> Vec<Copy> {
    let node = graph.node(value);
    let out_strides = dense(&node.ty.shape);
    let mut along = 0;
    let mut all = vec![];
    for &input in &node.inputs {
        let shape = &graph.ty(input).shape;
        let strides = dense(shape);
        let plain = Copy {
            shape: shape.clone(),
            from: 0,
            from_strides: strides.clone(),
            to: 0,
            to_strides: out_strides.clone(),
        };
        let copy = match &node.op {
            Op::Concat { axis } => {
                let to = along * out_strides[*axis];
                along += shape[*axis];
                Copy { to, ..plain }
            }
            Op::Pad { before, .. } => Copy { to: before.iter().zip(&out_strides).map(|(b, s)| b * s).sum(), ..plain },
            Op::Slice { axis, start, .. } => {
                Copy { shape: node.ty.shape.clone(), from: start * strides[*axis], ..plain }
            }
            Op::Permute { axes } => {
                Copy { shape: node.ty.shape.clone(), from_strides: axes.iter().map(|&a| strides[a]).collect(), ..plain }
            }
            // Each pixel is read `factor` times along two further axes.
            Op::Upsample { factor } => Copy {
                shape: vec![shape[0], shape[1], *factor, shape[2], *factor, shape[3]],
                from_strides: vec![strides[0], strides[1], 0, strides[2], 0, 1],
                to_strides: vec![
                    out_strides[0],
                    factor * out_strides[1],
                    out_strides[1],
                    factor * out_strides[2],
                    out_strides[2],
                    1,
                ],
                ..plain
            },
            _ => Copy { to_strides: strides, ..plain },
        };
        all.push(copy.simplified());
    }
    all
}

impl Copy {
    /// With axes merged that both sides walk through without a gap, so that runs become long.
    fn simplified(self) -> Copy {
        let (shape, mut strides) = merge(&self.shape, &[&self.from_strides, &self.to_strides]);
        let (to_strides, from_strides) = (strides.pop().unwrap_or_default(), strides.pop().unwrap_or_default());
        Copy { shape, from_strides, to_strides, ..self }
    }
}

/// An operand seen in the shape of the result: elements to move for one step along each axis, 0 where it stretches.
pub(crate) fn broadcast_strides(operand: &[usize], shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![0; shape.len()];
    let mut step = 1;
    for (axis, &d) in operand.iter().enumerate().rev() {
        let at = axis + shape.len() - operand.len();
        strides[at] = if d == 1 { 0 } else { step };
        step *= d;
    }
    strides
}

/// Neighbouring axes that all sides walk through without a gap, merged, so that rows become long. There is at least one axis.
pub(crate) fn merge(shape: &[usize], sides: &[&[usize]]) -> (Vec<usize>, Vec<Vec<usize>>) {
    let (mut merged, mut strides): (Vec<usize>, Vec<Vec<usize>>) = (vec![], vec![vec![]; sides.len()]);
    for (axis, &d) in shape.iter().enumerate().filter(|(_, d)| **d != 1) {
        let last = merged.len().wrapping_sub(1);
        if !merged.is_empty() && strides.iter().zip(sides).all(|(s, side)| s[last] == side[axis] * d) {
            merged[last] *= d;
            strides.iter_mut().zip(sides).for_each(|(s, side)| s[last] = side[axis]);
        } else {
            merged.push(d);
            strides.iter_mut().zip(sides).for_each(|(s, side)| s.push(side[axis]));
        }
    }
    if merged.is_empty() { (vec![1], vec![vec![1]; sides.len()]) } else { (merged, strides) }
}
