//! What every op means, in 64-bit floats and plain loops, written from the documentation of the op table and not from
//! any kernel. Slow, and easy to believe.

use std::collections::HashMap;

use impasto_graph::{Binary, DType, Data, Fused, Graph, HIDDEN, HostTensor, Op, Pairs, TensorType, Unary, Value};

/// A tensor whose numbers are exact.
#[derive(Clone)]
struct Exact {
    shape: Vec<usize>,
    data: Vec<f64>,
}

/// Every value of the graph, by its place in the graph. Each is rounded to the element type that the graph keeps it in.
///
/// With `round_factors` the factors of products are rounded to bf16 first, as a machine does that multiplies bf16.
pub fn interpret(graph: &Graph, given: &HashMap<Value, HostTensor>, round_factors: bool) -> Vec<Vec<f64>> {
    let mut values: Vec<Exact> = vec![];
    for value in graph.values() {
        let node = graph.node(value);
        let data = match node.op.is_source() {
            true => numbers(&given[&value]),
            false => {
                let inputs: Vec<&Exact> = node.inputs.iter().map(|i| &values[i.index()]).collect();
                let data = compute(&node.op, &inputs, &node.ty, round_factors);
                data.into_iter().map(|x| rounded(x, node.ty.dtype)).collect()
            }
        };
        assert_eq!(data.len() as u64, node.ty.elements(), "{value} = {}", node.op.name());
        values.push(Exact { shape: node.ty.shape.clone(), data });
    }
    values.into_iter().map(|v| v.data).collect()
}

/// The elements of a tensor, exactly.
pub fn numbers(tensor: &HostTensor) -> Vec<f64> {
    match tensor.data() {
        Data::F32(v) => v.iter().map(|&x| x.into()).collect(),
        Data::F16(v) => v.iter().map(|&x| x.into()).collect(),
        Data::BF16(v) => v.iter().map(|&x| x.into()).collect(),
        Data::I32(v) => v.iter().map(|&x| x.into()).collect(),
    }
}

/// The nearest number that an element type holds.
pub fn rounded(x: f64, dtype: DType) -> f64 {
    match dtype {
        DType::F32 => x as f32 as f64,
        DType::F16 => to_bits(x, 10, -14, 65504.0),
        DType::BF16 => to_bits(x, 7, -126, 3.389_531_389_251_535_5e38),
        DType::I32 => x as i32 as f64,
    }
}

/// Nearest, ties to even, with this many bits behind the leading one.
fn to_bits(x: f64, bits: i32, smallest: i32, largest: f64) -> f64 {
    if x == 0.0 || !x.is_finite() {
        return x;
    }
    let exponent = (x.abs().to_bits() >> 52) as i32 - 1023;
    let step = 2f64.powi(exponent.max(smallest) - bits);
    let y = (x / step).round_ties_even() * step;
    if y.abs() > largest { y.signum() * f64::INFINITY } else { y }
}

fn compute(op: &Op, inputs: &[&Exact], ty: &TensorType, round_factors: bool) -> Vec<f64> {
    let x = inputs.first().map_or(&[][..], |x| &x.data);
    let factor = |t: &Exact| -> Vec<f64> {
        t.data.iter().map(|&x| if round_factors { rounded(x, DType::BF16) } else { x }).collect()
    };
    match op {
        Op::Input { .. } | Op::Param { .. } => unreachable!("sources are given"),
        Op::Linear { fused, geglu } => {
            let (n, k) = (inputs[1].shape[0], inputs[1].shape[1]);
            let sums = times_transposed(&factor(inputs[0]), &factor(inputs[1]), n, k);
            match geglu {
                false => fuse(*fused, sums, inputs, ty),
                true => {
                    let columns: Vec<usize> = ty.shape[..ty.shape.len() - 1].iter().copied().chain([n]).collect();
                    let biased = Fused { residual: false, ..*fused };
                    let data = fuse(biased, sums, inputs, &TensorType::new(columns.clone(), DType::F32));
                    let gated = gated(&Exact { shape: columns, data });
                    fuse(Fused { bias: false, ..*fused }, gated, inputs, ty)
                }
            }
        }
        Op::MatMul { transpose_b } => matmul(inputs, ty, *transpose_b, &factor),
        Op::Conv2d { stride, padding, upsample, fused } => {
            let x = Exact { shape: inputs[0].shape.clone(), data: factor(inputs[0]) };
            let windows = windows(&x, &inputs[1].shape, ty, *stride, *padding, *upsample);
            let (n, k) = (inputs[1].shape[0], inputs[1].shape[1..].iter().product());
            let sums = times_transposed(&windows, &factor(inputs[1]), n, k);
            fuse(*fused, sums, inputs, ty)
        }
        Op::Attention { heads, kv_heads, scale, causal, .. } => {
            let [q, k, v] = [0, 1, 2].map(|i| Exact { shape: inputs[i].shape.clone(), data: factor(inputs[i]) });
            attention([&q, &k, &v], inputs.get(3).copied(), [*heads, *kv_heads], *scale as f64, *causal)
        }
        Op::GroupNorm { groups, eps, activation } => {
            let y = group_norm(inputs, *groups, *eps as f64);
            y.into_iter().map(|y| activation.map_or(y, |f| unary(f, y))).collect()
        }
        Op::LineStatistics { groups } => {
            let [batch, lines] = [0, 1].map(|i| inputs[0].shape[i]);
            let (line, c) = (inputs[0].data.len() / (batch * lines), inputs[0].shape[inputs[0].shape.len() - 1]);
            let group = |line: &[f64], g: usize| -> Vec<f64> {
                line.chunks(c).flat_map(|pixel| pixel[g * c / groups..(g + 1) * c / groups].to_vec()).collect()
            };
            let both = |of: Vec<f64>| {
                let (mean, variance) = moments(of.iter());
                [mean, variance * of.len() as f64]
            };
            x.chunks(line).flat_map(|line| (0..*groups).flat_map(move |g| both(group(line, g)))).collect()
        }
        Op::NormFactors { eps, pixels } => {
            let [batch, lines, groups, _] = inputs[0].shape[..] else {
                unreachable!("statistics have four dimensions")
            };
            let (gamma, beta) = (&inputs[1].data, &inputs[2].data);
            let count = (pixels * gamma.len() / groups) as f64;
            let one = |picture: usize| -> Vec<f64> {
                let stat = |g: usize, line: usize, i: usize| x[((picture * lines + line) * groups + g) * 2 + i];
                let mean = |g: usize| (0..lines).map(|l| stat(g, l, 0)).sum::<f64>() / lines as f64;
                let between = |g: usize, l: usize| count * (stat(g, l, 0) - mean(g)).powi(2);
                let squares = |g: usize| (0..lines).map(|l| stat(g, l, 1) + between(g, l)).sum::<f64>();
                let root = |g: usize| (squares(g) / (count * lines as f64) + *eps as f64).sqrt();
                let of = |c: usize| c * groups / gamma.len();
                let channels = 0..gamma.len();
                let means = channels.clone().map(|c| mean(of(c)));
                means.chain(channels.map(|c| gamma[c] / root(of(c)))).chain(beta.iter().copied()).collect()
            };
            (0..batch).flat_map(one).collect()
        }
        Op::Normalise { activation } => {
            let (c, picture) = (ty.shape[ty.shape.len() - 1], x.len() / ty.shape[0]);
            let factor = |i: usize, which: usize| inputs[1].data[(i / picture * 3 + which) * c + i % c];
            let y = x.iter().enumerate().map(|(i, x)| (x - factor(i, 0)) * factor(i, 1) + factor(i, 2));
            y.map(|y| activation.map_or(y, |f| unary(f, y))).collect()
        }
        Op::LayerNorm { eps } => by_picture(inputs, |row, factors| {
            let (mean, variance) = moments(row.iter());
            let root = (variance + *eps as f64).sqrt();
            scaled(row.iter().map(|x| (x - mean) / root), factors[0], Some(factors[1]))
        }),
        Op::RmsNorm { eps } => by_picture(inputs, |row, factors| {
            let squares: f64 = row.iter().map(|x| x * x).sum();
            let root = (squares / row.len() as f64 + *eps as f64).sqrt();
            scaled(row.iter().map(|x| x / root), factors[0], None)
        }),
        Op::Softmax => by_row(inputs[0], softmax),
        Op::Unary(f) => x.iter().map(|&x| unary(*f, x)).collect(),
        Op::Binary(f) => {
            let places = indices(&ty.shape);
            places.map(|at| binary(*f, broadcast(inputs[0], &at), broadcast(inputs[1], &at))).collect()
        }
        Op::Affine { scale, shift } => x.iter().map(|x| x * *scale as f64 + *shift as f64).collect(),
        Op::Geglu => gated(inputs[0]),
        Op::Cast | Op::Reshape { .. } => x.to_vec(),
        Op::Upsample { factor } => gather(inputs[0], ty, |at| Some(vec![at[0], at[1] / factor, at[2] / factor, at[3]])),
        Op::Pad { before, .. } => gather(inputs[0], ty, |at| {
            let inner = at.iter().zip(before).map(|(i, b)| i.checked_sub(*b)).collect::<Option<Vec<_>>>()?;
            inner.iter().zip(&inputs[0].shape).all(|(i, d)| i < d).then_some(inner)
        }),
        Op::Concat { axis } => concat(inputs, ty, *axis),
        Op::Slice { axis, start, .. } => gather(inputs[0], ty, |at| {
            let mut from = at.to_vec();
            from[*axis] += start;
            Some(from)
        }),
        Op::Permute { axes } => gather(inputs[0], ty, |at| {
            let mut from = vec![0; at.len()];
            axes.iter().zip(at).for_each(|(&axis, &i)| from[axis] = i);
            Some(from)
        }),
        Op::Embedding => {
            let (rows, width) = (inputs[0].shape[0], inputs[0].shape[1]);
            let row = |id: &f64| match *id >= 0.0 && *id < rows as f64 {
                true => x[*id as usize * width..][..width].to_vec(),
                false => vec![f64::NAN; width],
            };
            inputs[1].data.iter().flat_map(row).collect()
        }
        Op::TimestepEmbedding { dim, max_period } => {
            let half = dim / 2;
            let angle = |t: f64, i: usize| t * (*max_period as f64).powf(-(i as f64) / half as f64);
            let one = |t: &f64| -> Vec<f64> {
                let t = *t;
                (0..half).map(|i| angle(t, i).cos()).chain((0..half).map(|i| angle(t, i).sin())).collect()
            };
            x.iter().flat_map(one).collect()
        }
        Op::Rotary { heads, pairs } => rotary(inputs, *heads, *pairs),
        Op::Rest | Op::Fetch => inputs[0].data.clone(),
    }
}

/// Rows of `k` times `w (n, k)` transposed.
fn times_transposed(x: &[f64], w: &[f64], n: usize, k: usize) -> Vec<f64> {
    let columns: Vec<f64> = (0..k).flat_map(|i| (0..n).map(move |j| w[j * k + i])).collect(); // (k, n)
    times(x, &columns, n, k)
}

/// Rows of `k` times `w (k, n)`.
fn times(x: &[f64], w: &[f64], n: usize, k: usize) -> Vec<f64> {
    let mut out = vec![];
    for row in x.chunks(k) {
        let mut sums = vec![0.0; n];
        for (x, w) in row.iter().zip(w.chunks(n)) {
            sums.iter_mut().zip(w).for_each(|(s, w)| *s += x * w);
        }
        out.extend(sums);
    }
    out
}

/// `activation(sum + bias) + residual`; the bias is a vector, or one for each picture.
fn fuse(fused: Fused, sums: Vec<f64>, inputs: &[&Exact], ty: &TensorType) -> Vec<f64> {
    let n = ty.channels();
    let a_picture = sums.len() / ty.shape[0];
    let bias = fused.bias.then(|| inputs[2]);
    let residual = fused.residual.then(|| inputs[inputs.len() - 1]);
    let one = |(i, sum): (usize, f64)| {
        let bias = bias.map_or(0.0, |b| match b.shape.len() {
            1 => b.data[i % n],
            _ => b.data[i / a_picture * n + i % n],
        });
        let y = sum + bias;
        fused.activation.map_or(y, |f| unary(f, y)) + residual.map_or(0.0, |r| r.data[i])
    };
    sums.into_iter().enumerate().map(one).collect()
}

fn matmul(inputs: &[&Exact], ty: &TensorType, transpose_b: bool, factor: &dyn Fn(&Exact) -> Vec<f64>) -> Vec<f64> {
    let rank = ty.shape.len();
    let (m, n, k) = (ty.shape[rank - 2], ty.shape[rank - 1], inputs[0].shape[rank - 1]);
    let (a, b) = (factor(inputs[0]), factor(inputs[1]));
    let one = |(a, b): (&[f64], &[f64])| if transpose_b { times_transposed(a, b, n, k) } else { times(a, b, n, k) };
    a.chunks(m * k).zip(b.chunks(k * n)).flat_map(one).collect()
}

/// For each pixel of the result what the kernel sees, in the order `(channel, row, column)` of the weights.
fn windows(x: &Exact, w: &[usize], ty: &TensorType, stride: usize, padding: [isize; 4], upsample: usize) -> Vec<f64> {
    let [batch, height, width, channels] = x.shape[..] else { unreachable!("x is an image") };
    let pixel = |b: usize, y: usize, v: usize, c: usize| {
        let y = y.checked_add_signed(-padding[0]).filter(|&y| y < height * upsample);
        let v = v.checked_add_signed(-padding[1]).filter(|&v| v < width * upsample);
        match (y, v) {
            (Some(y), Some(v)) => x.data[((b * height + y / upsample) * width + v / upsample) * channels + c],
            _ => 0.0,
        }
    };
    let mut out = vec![];
    for b in 0..batch {
        for (y, v) in (0..ty.shape[1]).flat_map(|y| (0..ty.shape[2]).map(move |v| (y, v))) {
            for c in 0..channels {
                for i in 0..w[2] {
                    out.extend((0..w[3]).map(|j| pixel(b, y * stride + i, v * stride + j, c)));
                }
            }
        }
    }
    out
}

fn attention(
    [q, k, v]: [&Exact; 3],
    bias: Option<&Exact>,
    [heads, kv_heads]: [usize; 2],
    scale: f64,
    causal: bool,
) -> Vec<f64> {
    let (batch, t, s) = (q.shape[0], q.shape[1], k.shape[1]);
    let (d, e) = (q.shape[2] / heads, v.shape[2] / kv_heads);
    // An axis of one place stretches.
    let added = |at: [usize; 4]| {
        bias.map_or(0.0, |bias| {
            let place = at.iter().zip(&bias.shape).fold(0, |place, (i, n)| place * n + if *n == 1 { 0 } else { *i });
            bias.data[place].max(HIDDEN as f64)
        })
    };
    let mut out = vec![];
    for (b, i) in (0..batch).flat_map(|b| (0..t).map(move |i| (b, i))) {
        for head in 0..heads {
            let query = part(q, [b, i, head], d);
            let seen = if causal { i + s - t + 1 } else { s };
            let shared = head / (heads / kv_heads);
            let dot = |j| query.iter().zip(part(k, [b, j, shared], d)).map(|(q, k)| q * k).sum::<f64>();
            let score = |j| scale * dot(j) + added([b, head, i, j]);
            let weights = softmax(&(0..seen).map(score).collect::<Vec<_>>());
            let mut sum = vec![0.0; e];
            for (j, w) in weights.iter().enumerate() {
                sum.iter_mut().zip(part(v, [b, j, shared], e)).for_each(|(s, v)| *s += w * v);
            }
            out.extend(sum);
        }
    }
    out
}

/// What one head has of a token.
fn part(x: &Exact, [b, token, head]: [usize; 3], width: usize) -> &[f64] {
    &x.data[(b * x.shape[1] + token) * x.shape[2] + head * width..][..width]
}

fn group_norm(inputs: &[&Exact], groups: usize, eps: f64) -> Vec<f64> {
    let x = inputs[0];
    let (batch, channels) = (x.shape[0], x.shape[x.shape.len() - 1]);
    let width = channels / groups;
    let mut out = x.data.clone();
    for picture in out.chunks_mut(x.data.len() / batch) {
        for group in 0..groups {
            let mine = |i: usize| i % channels / width == group;
            let (mean, variance) = moments(picture.iter().enumerate().filter(|(i, _)| mine(*i)).map(|(_, x)| x));
            let root = (variance + eps).sqrt();
            for (i, y) in picture.iter_mut().enumerate().filter(|(i, _)| mine(*i)) {
                *y = (*y - mean) / root * inputs[1].data[i % channels] + inputs[2].data[i % channels];
            }
        }
    }
    out
}

/// Mean and variance, in two passes.
fn moments<'a>(x: impl Iterator<Item = &'a f64> + Clone) -> (f64, f64) {
    let n = x.clone().count() as f64;
    let mean = x.clone().sum::<f64>() / n;
    (mean, x.map(|x| (x - mean).powi(2)).sum::<f64>() / n)
}

fn scaled(x: impl Iterator<Item = f64>, gamma: &[f64], beta: Option<&[f64]>) -> Vec<f64> {
    x.enumerate().map(|(i, x)| x * gamma[i] + beta.map_or(0.0, |b| b[i])).collect()
}

fn softmax(row: &[f64]) -> Vec<f64> {
    let largest = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let powers: Vec<f64> = row.iter().map(|x| (x - largest).exp()).collect();
    let sum: f64 = powers.iter().sum();
    powers.into_iter().map(|p| p / sum).collect()
}

fn by_row(x: &Exact, f: impl Fn(&[f64]) -> Vec<f64>) -> Vec<f64> {
    x.data.chunks(x.shape.last().copied().unwrap_or(1)).flat_map(f).collect()
}

/// Each row of the first operand with the row of each further one that belongs to its picture.
fn by_picture(inputs: &[&Exact], f: impl Fn(&[f64], &[&[f64]]) -> Vec<f64>) -> Vec<f64> {
    let (x, c) = (inputs[0], inputs[0].shape.last().copied().unwrap_or(1));
    let one = |(i, row): (usize, &[f64])| {
        let picture = i * (inputs[1].data.len() / c) / (x.data.len() / c);
        let factors: Vec<&[f64]> = inputs[1..].iter().map(|input| &input.data[picture * c..][..c]).collect();
        f(row, &factors)
    };
    x.data.chunks(c).enumerate().flat_map(one).collect()
}

fn gated(x: &Exact) -> Vec<f64> {
    by_row(x, |row| {
        let (value, gate) = row.split_at(row.len() / 2);
        value.iter().zip(gate).map(|(v, g)| v * unary(Unary::Gelu, *g)).collect()
    })
}

fn rotary(inputs: &[&Exact], heads: usize, pairs: Pairs) -> Vec<f64> {
    let (x, [cos, sin]) = (inputs[0], [1, 2].map(|i| &inputs[i].data));
    let (tokens, width) = (x.shape[1], x.shape[2]);
    let d = width / heads;
    let mut out = x.data.clone();
    for (row, token) in out.chunks_mut(width).zip((0..tokens).cycle()) {
        for head in row.chunks_mut(d) {
            for i in 0..d / 2 {
                let (first, second) = match pairs {
                    Pairs::Adjacent => (2 * i, 2 * i + 1),
                    Pairs::Halves => (i, i + d / 2),
                };
                let (c, s) = (cos[token * d / 2 + i], sin[token * d / 2 + i]);
                (head[first], head[second]) = (head[first] * c - head[second] * s, head[first] * s + head[second] * c);
            }
        }
    }
    out
}

/// Every place of a tensor, in the order of memory.
fn indices(shape: &[usize]) -> impl Iterator<Item = Vec<usize>> + use<> {
    let shape = shape.to_vec();
    (0..shape.iter().product::<usize>()).map(move |mut n| {
        let mut at = vec![0; shape.len()];
        for (i, d) in at.iter_mut().zip(&shape).rev() {
            (*i, n) = (n % d, n / d);
        }
        at
    })
}

fn element(x: &Exact, at: &[usize]) -> f64 {
    x.data[at.iter().zip(&x.shape).fold(0, |n, (i, d)| n * d + i)]
}

/// The element that a place of a larger tensor reads, by numpy's rule.
fn broadcast(x: &Exact, at: &[usize]) -> f64 {
    let own = &at[at.len() - x.shape.len()..];
    element(x, &own.iter().zip(&x.shape).map(|(&i, &d)| if d == 1 { 0 } else { i }).collect::<Vec<_>>())
}

/// A tensor whose elements come from other places, or are zero.
fn gather(x: &Exact, ty: &TensorType, from: impl Fn(&[usize]) -> Option<Vec<usize>>) -> Vec<f64> {
    indices(&ty.shape).map(|at| from(&at).map_or(0.0, |from| element(x, &from))).collect()
}

fn concat(inputs: &[&Exact], ty: &TensorType, axis: usize) -> Vec<f64> {
    let part = |mut at: Vec<usize>| {
        for x in inputs {
            if at[axis] < x.shape[axis] {
                return element(x, &at);
            }
            at[axis] -= x.shape[axis];
        }
        unreachable!("the parts fill the result")
    };
    indices(&ty.shape).map(part).collect()
}

fn unary(f: Unary, x: f64) -> f64 {
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    match f {
        Unary::Silu => x * sigmoid(x),
        Unary::Gelu => 0.5 * x * (1.0 + erf(x / std::f64::consts::SQRT_2)),
        Unary::GeluTanh => {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
            0.5 * x * (1.0 + inner.tanh())
        }
        Unary::QuickGelu => x * sigmoid(1.702 * x),
        Unary::Relu if x.is_nan() => x,
        Unary::Relu => x.max(0.0),
        Unary::Sigmoid => sigmoid(x),
        Unary::Tanh => x.tanh(),
        Unary::Exp => x.exp(),
        Unary::Neg => -x,
        Unary::Abs => x.abs(),
        Unary::Sqrt => x.sqrt(),
        Unary::Square => x * x,
        Unary::Sin => x.sin(),
        Unary::Cos => x.cos(),
    }
}

fn binary(f: Binary, a: f64, b: f64) -> f64 {
    match f {
        Binary::Add => a + b,
        Binary::Sub => a - b,
        Binary::Mul => a * b,
        Binary::Div => a / b,
        Binary::Max | Binary::Min if a.is_nan() || b.is_nan() => f64::NAN,
        Binary::Max => a.max(b),
        Binary::Min => a.min(b),
    }
}

/// The error function: a series without cancellation, 2/sqrt(pi) exp(-x²) sum 2^n x^(2n+1) / (1 3 5 ... (2n+1)).
pub fn erf(x: f64) -> f64 {
    if x.is_nan() || x.abs() > 6.0 {
        return if x.is_nan() { x } else { x.signum() };
    }
    let (mut term, mut sum, mut n) = (x, x, 0.0);
    while term.abs() > 1e-18 * sum.abs() {
        n += 1.0;
        term *= 2.0 * x * x / (2.0 * n + 1.0);
        sum += term;
    }
    2.0 / std::f64::consts::PI.sqrt() * (-x * x).exp() * sum
}
