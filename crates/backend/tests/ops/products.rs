//! Linear layers, matrix products, convolutions, attention.

use impasto_graph::{DType, Epilogue, Fused, Node, Op, Storage, Unary};

use super::common::case::{Case, any_blocks, blocks};
use super::common::exam::{Bar, Exam};
use super::common::rng::{Rng, cases};
use super::operands::{FLOATS, Operand, any_dtype, input, single, vector};

/// Softmax weights are rounded to bf16 on their way to the values, in an order that the reference does not know.
pub const ATTENTION: Bar = Bar { f32: 1e-5, bf16: 8e-3, exact: 3e-2 };

const M: [usize; 7] = [1, 2, 3, 17, 31, 67, 300];
const N: [usize; 8] = [1, 5, 15, 16, 33, 64, 130, 270];
const K: [usize; 8] = [1, 2, 7, 32, 33, 96, 333, 1100];

/// An epilogue and its operands, for a result of this shape.
fn epilogue(shape: &[usize], rng: &mut Rng) -> (Fused, Vec<Operand>) {
    let n = shape[shape.len() - 1];
    let activation = rng.chance(60).then(|| rng.pick(&Unary::ALL));
    // A root needs something positive to be taken of: the bias of `fill` lifts the sums.
    let bias = activation == Some(Unary::Sqrt) || rng.chance(60);
    let residual = rng.chance(50);
    let mut operands = vec![];
    if bias {
        operands.push(match shape.len() > 1 && rng.chance(50) {
            true => input([shape[0], n], rng),
            false => vector(n, rng),
        });
    }
    if residual {
        operands.push(input(shape, rng));
    }
    (Fused { bias, activation, residual }, operands)
}

/// An exponential makes the rounding of a large sum a large relative error.
fn bar(case: &Case) -> Bar {
    let grows = |n: &Node| matches!(n.op, Op::Linear { fused, .. } | Op::Conv2d { fused, .. } if fused.activation == Some(Unary::Exp));
    match case.graph.nodes().iter().any(grows) {
        true => Bar { exact: f64::INFINITY, ..Bar::TIGHT },
        false => Bar::TIGHT,
    }
}

/// Random numbers for a product; those under a root are positive.
fn fill(graph: impasto_graph::Graph, fused: Fused, rng: &mut Rng) -> Case {
    let mut case = Case::new(graph, rng);
    if fused.activation == Some(Unary::Sqrt) {
        let found = case.graph.inputs().chain(case.graph.params()).find(|(name, _)| *name == "x2");
        let n = case.graph.ty(found.expect("there is a bias").1).elements();
        case.set("x2", (0..n).map(|_| 20.0 + rng.normal()).collect::<Vec<_>>());
    }
    case
}

fn linear(rows: &[usize], n: usize, k: usize, storage: Storage, rng: &mut Rng) -> Case {
    let x = rng.pick(&FLOATS);
    linear_of(x, rows, n, k, storage, rng)
}

fn linear_of(x: DType, rows: &[usize], n: usize, k: usize, storage: Storage, rng: &mut Rng) -> Case {
    let shape: Vec<usize> = rows.iter().copied().chain([n]).collect();
    let x = Operand::Input(rows.iter().copied().chain([k]).collect(), x);
    let (fused, rest) = epilogue(&shape, rng);
    let mut operands = vec![x, Operand::Param(vec![n, k], storage)];
    operands.extend(rest);
    let dtype = any_dtype(rng);
    fill(single(Op::Linear { fused, geglu: false }, operands, dtype, rng), fused, rng)
}

fn dense(rng: &mut Rng) -> Storage {
    Storage::Dense(rng.pick(&FLOATS))
}

/// `m` rows as one dimension, as two, or as three.
fn rows(m: usize, rng: &mut Rng) -> Vec<usize> {
    let parts: Vec<usize> = (1..=m).filter(|d| m.is_multiple_of(*d)).collect();
    let part = rng.pick(&parts);
    match rng.below(4) {
        0 if m == 1 => vec![],
        0 | 1 => vec![m],
        2 => vec![part, m / part],
        _ => vec![m / part, 1, part],
    }
}

#[test]
fn linear_layers_of_awkward_sizes() {
    let mut exam = Exam::new("linear");
    let nasty = [
        [1, 1, 1],
        [1, 270, 1100],
        [300, 270, 1100],
        [3, 5, 7],
        [67, 130, 333],
        [17, 33, 96],
        [5, 257, 1025],
        [130, 300, 2100],
        [1, 1, 2100],
        [300, 1, 1],
        [1, 520, 31],
        [257, 17, 1024],
    ];
    cases(2 * nasty.len() + 90, |i, rng| {
        let [m, n, k] = match nasty.get(i / 2) {
            Some(&nasty) => nasty,
            None => [rng.pick(&M), rng.pick(&N), rng.pick(&K)],
        };
        let (rows, storage) = (rows(m, rng), dense(rng));
        let case = linear(&rows, n, k, storage, rng);
        exam.check(&case, bar(&case), rng);
    });
}

/// So deep that a part of the columns fills the second cache, and that sums wait for the next part of `k`; as the rows lie, and converted.
#[test]
fn linear_layers_of_great_depth() {
    let mut exam = Exam::new("linear, deep");
    let depths = [(DType::BF16, 270, 4096), (DType::F32, 270, 4200), (DType::BF16, 390, 1280), (DType::F32, 60, 2624)];
    cases(2 * depths.len(), |i, rng| {
        let ((x, n, k), storage) = (depths[i / 2], dense(rng));
        let case = linear_of(x, &[rng.pick(&[33, 150, 450])], n, k, storage, rng);
        exam.check(&case, bar(&case), rng);
    });
}

/// So large that results go past the caches, in whole lines of bf16 and of f32.
#[test]
fn linear_layers_with_large_results() {
    let mut exam = Exam::new("linear, large");
    // Rows that are held since they are long, and since they are converted.
    for (n, dtype, k, from) in [(2080, DType::BF16, 96, DType::F32), (1056, DType::F32, 1056, DType::BF16)] {
        cases(1, |_, rng| {
            let x = Operand::Input(vec![1030, k], from);
            let w = Operand::Param(vec![n, k], Storage::Dense(DType::BF16));
            let fused = Fused { bias: true, activation: None, residual: false };
            let operands = vec![x, w, vector(n, rng)];
            let case = Case::new(single(Op::Linear { fused, geglu: false }, operands, Some(dtype), rng), rng);
            exam.check(&case, Bar::TIGHT, rng);
        });
    }
}

#[test]
fn linear_layers_of_quantised_weights() {
    let mut exam = Exam::new("linear, quantised");
    // Each of them once, and so large that panels are decoded in several turns.
    cases(blocks().len(), |i, rng| {
        let case = linear(&rows(3, rng), 1037, if i % 4 == 0 { 4608 } else { 512 }, blocks()[i], rng);
        exam.check(&case, bar(&case), rng);
    });
    cases(24, |_, rng| {
        let (m, n, k) = (rng.pick(&M[..6]), rng.pick(&N), rng.pick(&[32, 96, 256, 320, 1120, 1536]));
        let (rows, storage) = (rows(m, rng), any_blocks(k, rng));
        let case = linear(&rows, n, k, storage, rng);
        exam.check(&case, bar(&case), rng);
    });
}

/// A linear layer that ends with GEGLU, with a result of `n` columns.
fn gated(x: DType, rows: &[usize], n: usize, k: usize, storage: Storage, rng: &mut Rng) -> Case {
    let of = |columns: usize| rows.iter().copied().chain([columns]).collect::<Vec<_>>();
    let mut operands = vec![Operand::Input(of(k), x), Operand::Param(vec![2 * n, k], storage)];
    let fused = Fused { bias: rng.chance(70), activation: None, residual: rng.chance(40) };
    if fused.bias {
        operands.push(match !rows.is_empty() && rng.chance(40) {
            true => input([rows[0], 2 * n], rng),
            false => vector(2 * n, rng),
        });
    }
    if fused.residual {
        operands.push(input(of(n), rng));
    }
    let dtype = any_dtype(rng);
    Case::new(single(Op::Linear { fused, geglu: true }, operands, dtype, rng), rng)
}

/// Values and gates lie side by side in tiles: halves of every width must find each other.
#[test]
fn linear_layers_with_geglu() {
    let mut exam = Exam::new("linear, geglu");
    let nasty = [
        [1, 1, 1],
        [1, 15, 31],
        [31, 16, 320],
        [33, 17, 31],
        [300, 40, 320],
        [67, 97, 333],
        [130, 320, 96],
        [2, 160, 1280],
        [1, 257, 1100],
        [300, 1, 2],
    ];
    cases(nasty.len() + 35, |i, rng| {
        let [m, n, k] = match nasty.get(i) {
            Some(&nasty) => nasty,
            None => [rng.pick(&[1, 2, 17, 31, 33, 67, 300]), rng.pick(&[1, 5, 15, 16, 17, 40, 64, 97]), rng.pick(&K)],
        };
        let (x, rows) = (rng.pick(&FLOATS), rows(m, rng));
        let storage = match k.is_multiple_of(32) && rng.chance(60) {
            true => any_blocks(k, rng),
            false => dense(rng),
        };
        exam.check(&gated(x, &rows, n, k, storage, rng), Bar::TIGHT, rng);
    });
}

/// So deep that sums wait for the next part of `k`, and so large that rows come in several blocks and columns in several tasks.
#[test]
fn large_linear_layers_with_geglu() {
    let mut exam = Exam::new("linear, geglu, large");
    let sizes = [
        (DType::BF16, 70, 100, 4096),
        (DType::F32, 33, 40, 2700),
        (DType::BF16, 100, 190, 1280),
        (DType::BF16, 290, 130, 320),
    ];
    cases(sizes.len(), |i, rng| {
        let ((x, m, n, k), storage) = (sizes[i], dense(rng));
        exam.check(&gated(x, &[m], n, k, storage, rng), Bar::TIGHT, rng);
    });
}

/// The same weights with gates and without: each use has a layout of its own.
#[test]
fn weights_with_gates_and_without() {
    let mut exam = Exam::new("linear, geglu and plain");
    cases(12, |_, rng| {
        let (m, n, k) = (rng.pick(&[1, 5, 40]), rng.pick(&[1, 17, 48]), rng.pick(&[3, 32, 70]));
        let mut graph = impasto_graph::Graph::new();
        let mut build = || {
            let x = graph.input("x", [m, k], rng.pick(&FLOATS))?;
            let w = graph.param("w", [2 * n, k], dense(rng))?;
            for (name, then) in [("plain", Epilogue::new()), ("gated", Epilogue::new().geglu())] {
                let y = graph.linear(x, w, then.dtype(DType::F32))?;
                graph.output(name, y)?;
            }
            graph.output("w", w)
        };
        build().expect("the graph is sane");
        exam.check(&Case::new(graph, rng), Bar::TIGHT, rng);
    });
}

#[test]
fn matrix_products_of_awkward_sizes() {
    let mut exam = Exam::new("matmul");
    let nasty = [[1, 1, 1], [67, 270, 1100], [300, 33, 333], [1, 130, 1100], [17, 16, 32], [3, 300, 7]];
    cases(2 * nasty.len() + 70, |i, rng| {
        let [m, n, k] = match nasty.get(i / 2) {
            Some(&nasty) => nasty,
            None => [rng.pick(&M), rng.pick(&N), rng.pick(&K[..7])],
        };
        let transpose_b = i % 2 == 0;
        let batch = rng.pick(&[vec![], vec![1], vec![2], vec![3, 2]]);
        let shape = |rows: usize, columns: usize| batch.iter().copied().chain([rows, columns]).collect::<Vec<_>>();
        let b = if transpose_b { shape(n, k) } else { shape(k, n) };
        let operands = vec![input(shape(m, k), rng), input(b, rng)];
        let dtype = any_dtype(rng);
        let case = Case::new(single(Op::MatMul { transpose_b }, operands, dtype, rng), rng);
        exam.check(&case, Bar::TIGHT, rng);
    });
}

/// A convolution to be.
#[derive(Clone, Debug)]
struct Conv {
    batch: usize,
    size: [usize; 2],
    channels: [usize; 2],
    kernel: [usize; 2],
    stride: usize,
    padding: [isize; 4],
    upsample: usize,
}

impl Conv {
    fn random(rng: &mut Rng) -> Conv {
        let channels = [1, 3, 4, 32, 40, 64, 96];
        let kernel = rng.pick(&[[1, 1], [3, 3], [3, 3], [5, 3], [2, 2], [1, 7]]);
        let padding = match rng.below(3) {
            0 => [kernel[0] / 2, kernel[1] / 2, kernel[0] / 2, kernel[1] / 2].map(|n: usize| n as isize),
            1 => [0, 0, 1, 1],
            // A negative padding takes pixels away.
            _ => std::array::from_fn(|_| rng.below(6) as isize - 2),
        };
        Conv {
            batch: rng.between(1, 3),
            size: [rng.pick(&[1, 3, 7, 8, 16]), rng.pick(&[1, 5, 8, 16, 17, 33, 64])],
            channels: [rng.pick(&channels), rng.pick(&channels)],
            kernel,
            stride: rng.pick(&[1, 1, 1, 2, 3]),
            padding,
            upsample: rng.pick(&[1, 1, 1, 2, 3]),
        }
    }

    /// The image that comes out, if one does.
    fn result(&self) -> Option<[usize; 4]> {
        let side = |i: usize| {
            let padded = (self.size[i] * self.upsample).checked_add_signed(self.padding[i] + self.padding[i + 2])?;
            Some(padded.checked_sub(self.kernel[i])? / self.stride + 1)
        };
        Some([self.batch, side(0)?, side(1)?, self.channels[1]])
    }

    fn cost(&self) -> usize {
        let per_pixel = self.channels[0] * self.kernel[0] * self.kernel[1];
        self.result().map_or(usize::MAX, |shape| shape.iter().product::<usize>() * per_pixel)
    }

    fn case(&self, storage: Storage, rng: &mut Rng) -> Case {
        let shape = self.result().expect("the kernel fits the image");
        let ([h, v], [c, n], [kh, kw]) = (self.size, self.channels, self.kernel);
        let (fused, rest) = epilogue(&shape, rng);
        let mut operands = vec![input([self.batch, h, v, c], rng), Operand::Param(vec![n, c, kh, kw], storage)];
        operands.extend(rest);
        let op = Op::Conv2d { stride: self.stride, padding: self.padding, upsample: self.upsample, fused };
        let dtype = any_dtype(rng);
        fill(single(op, operands, dtype, rng), fused, rng)
    }
}

/// Stride 1 around a 3x3 kernel.
fn same(batch: usize, size: [usize; 2], channels: [usize; 2]) -> Conv {
    Conv { batch, size, channels, kernel: [3, 3], stride: 1, padding: [1; 4], upsample: 1 }
}

#[test]
fn convolutions_of_awkward_sizes() {
    let mut exam = Exam::new("conv2d");
    let nasty = [
        // Several blocks of rows, of columns and of depth.
        same(1, [33, 40], [96, 96]),
        same(2, [17, 17], [160, 270]),
        same(1, [64, 64], [32, 40]),
        same(1, [1, 1], [128, 300]),
        same(1, [3, 600], [4, 5]),
        same(3, [1, 1], [1, 1]),
        Conv { upsample: 2, ..same(2, [8, 8], [64, 32]) },
        Conv { upsample: 3, stride: 2, padding: [0, 3, 2, 1], ..same(1, [5, 17], [40, 33]) },
        Conv { stride: 2, padding: [0, 0, 1, 1], ..same(1, [32, 32], [32, 64]) },
        Conv { stride: 3, padding: [2, 0, 0, 2], kernel: [5, 3], ..same(2, [16, 33], [3, 40]) },
        // Larger than the second cache: cut into lines, cut across, and so deep that sums wait.
        same(1, [18, 32], [512, 20]),
        same(1, [40, 36], [512, 3]),
        Conv { stride: 2, ..same(1, [9, 513], [256, 5]) },
        // So many channels that all taps of a line go through some of them before the next.
        same(1, [6, 16], [640, 20]),
        same(2, [8, 8], [576, 33]),
        Conv { kernel: [2, 5], padding: [1, 2, 0, 2], ..same(1, [5, 32], [1152, 16]) },
        Conv { kernel: [3, 1], padding: [1, 0, 1, 0], ..same(1, [5, 16], [640, 16]) },
        // Many bands.
        same(1, [65, 80], [128, 20]),
        Conv { upsample: 2, ..same(2, [33, 40], [128, 33]) },
        Conv { stride: 2, padding: [0, 0, 1, 1], ..same(1, [64, 160], [128, 16]) },
        // 1x1: a linear layer, unless it steps, pads or enlarges.
        Conv { kernel: [1, 1], padding: [0; 4], ..same(2, [17, 16], [96, 270]) },
        Conv { kernel: [1, 1], padding: [1, 2, 0, 1], ..same(2, [5, 8], [40, 32]) },
        Conv { kernel: [1, 1], padding: [0; 4], stride: 2, ..same(1, [17, 16], [64, 64]) },
        Conv { kernel: [1, 1], padding: [0; 4], upsample: 2, ..same(1, [8, 5], [32, 40]) },
        Conv { kernel: [1, 1], padding: [0; 4], ..same(1, [8, 8], [1100, 33]) },
        // More padding than image: whole rows and columns see nothing.
        Conv { padding: [4, 5, 6, 3], ..same(1, [2, 2], [32, 16]) },
        Conv { padding: [3, 3, 3, 3], stride: 2, ..same(1, [1, 1], [3, 3]) },
        // Less than the image.
        Conv { upsample: 2, padding: [-1, 1, -1, 1], ..same(1, [8, 17], [32, 64]) },
        Conv { padding: [-2, -3, 1, -1], ..same(2, [9, 12], [40, 33]) },
        // Small pictures that are multiplied together, with depths that are cut and that are not.
        same(2, [8, 8], [160, 50]),
        same(3, [8, 8], [160, 70]),
        same(3, [7, 8], [320, 70]),
        same(2, [8, 8], [320, 33]),
        // The kernel is the image.
        Conv { kernel: [7, 5], padding: [0; 4], ..same(2, [7, 5], [16, 33]) },
    ];
    cases(nasty.len() + 100, |i, rng| {
        let conv = nasty.get(i).cloned().unwrap_or_else(|| {
            loop {
                let conv = Conv::random(rng);
                if conv.cost() < 20_000_000 {
                    return conv;
                }
            }
        });
        let storage = dense(rng);
        let case = conv.case(storage, rng);
        exam.check(&case, bar(&case), rng);
    });
}

#[test]
fn convolutions_of_quantised_weights() {
    let mut exam = Exam::new("conv2d, quantised");
    // Blocks that end with a filter, and blocks that do not.
    cases(12, |_, rng| {
        let channels = rng.pick(&[[32, 5], [64, 32], [4, 32], [3, 64], [40, 4], [256, 9]]);
        let kernel = rng.pick(&[[1, 1], [3, 3]]);
        let conv = Conv { kernel, ..same(1, [5, 9], channels) };
        let filters = channels[0] * channels[1] * kernel[0] * kernel[1];
        let case = conv.case(any_blocks(filters, rng), rng);
        exam.check(&case, bar(&case), rng);
    });
}

struct Attention {
    batch: usize,
    heads: usize,
    /// Queries and keys.
    tokens: [usize; 2],
    /// Of a query and of a value, in a head.
    width: [usize; 2],
    causal: bool,
}

#[test]
fn attention_of_awkward_sizes() {
    let mut exam = Exam::new("attention");
    let nasty = [
        (1, 1, [1, 1], [1, 1], false),
        (1, 2, [700, 700], [40, 40], false),
        (2, 3, [300, 77], [64, 64], false),
        (1, 1, [300, 300], [512, 512], false),
        (1, 2, [77, 77], [64, 64], true),
        (2, 1, [300, 700], [80, 40], true),
        (1, 8, [5, 77], [160, 8], false),
        (3, 1, [1, 700], [64, 1], true),
        (1, 2, [700, 1], [8, 160], false),
        (1, 1, [700, 700], [1, 64], true),
    ];
    cases(nasty.len() + 70, |i, rng| {
        let a = match nasty.get(i) {
            Some(&(batch, heads, tokens, width, causal)) => Attention { batch, heads, tokens, width, causal },
            None => {
                let tokens = [1, 5, 16, 17, 77, 130, 300];
                let (t, s) = (rng.pick(&tokens), rng.pick(&tokens));
                let widths = [1, 3, 8, 40, 64, 80, 160];
                let d = rng.pick(&widths);
                Attention {
                    batch: rng.between(1, 3),
                    heads: rng.between(1, 5),
                    tokens: [t, s],
                    width: if rng.chance(60) { [d, d] } else { [d, rng.pick(&widths)] },
                    causal: s >= t && rng.chance(50),
                }
            }
        };
        let shape = |tokens: usize, width: usize| [a.batch, tokens, a.heads * width];
        let ([t, s], [d, e]) = (a.tokens, a.width);
        let operands = vec![input(shape(t, d), rng), input(shape(s, d), rng), input(shape(s, e), rng)];
        let scale = rng.pick(&[1.0, 1.0, 3.0, 0.1]) / (d as f32).sqrt();
        let op = Op::Attention { heads: a.heads, kv_heads: a.heads, bias: false, scale, causal: a.causal };
        let dtype = any_dtype(rng);
        let case = Case::new(single(op, operands, dtype, rng), rng);
        exam.check(&case, ATTENTION, rng);
    });
}

/// Heads that share keys and values, biases of every shape, and keys that a bias hides: the first ones, as padding on the left does, the last
/// ones, or any but one.
#[test]
fn attention_with_shared_heads_and_biases() {
    let mut exam = Exam::new("attention, shared heads and biases");
    let tokens = [1, 5, 16, 33, 77, 130, 300];
    cases(32, |i, rng| {
        let (batch, t, s) = (rng.between(1, 2), rng.pick(&tokens), rng.pick(&tokens));
        let (d, e) = (rng.pick(&[8, 16, 40, 64, 128]), rng.pick(&[7, 16, 64, 128]));
        let kv_heads = rng.between(1, 3);
        let heads = kv_heads * rng.pick(&[1, 2, 4]);
        let mut operands = vec![
            input([batch, t, heads * d], rng),
            input([batch, s, kv_heads * d], rng),
            input([batch, s, kv_heads * e], rng),
        ];
        let mut or_one = |n: usize| if rng.chance(50) { n } else { 1 };
        let shape = [or_one(batch), or_one(heads), or_one(t), s];
        let bias = i % 4 > 0;
        if bias {
            operands.push(input(shape, rng));
        }
        // Where keys are hidden, every query still sees one.
        let causal = s >= t && rng.chance(50);
        let op = Op::Attention { heads, kv_heads, bias, scale: 1.0 / (d as f32).sqrt(), causal };
        let mut case = Case::new(single(op, operands, any_dtype(rng), rng), rng);
        if bias && i % 4 > 1 {
            // Half of the time as late as can be: more keys are hidden before it than are looked at together.
            let last = if causal { s - t } else { s - 1 };
            let seen = if rng.chance(50) { last } else { rng.below(last + 1) };
            let kind = rng.below(3);
            let hidden = |key: usize, rng: &mut Rng| match kind {
                0 => key < seen,
                1 => key > seen,
                _ => key != seen && rng.chance(70),
            };
            let n = shape.iter().product();
            let value = |j: usize| if hidden(j % s, rng) { f64::NEG_INFINITY } else { rng.normal() };
            case.set("x3", (0..n).map(value).collect::<Vec<_>>());
        }
        exam.check(&case, ATTENTION, rng);
    });
}

/// Scores far apart: a running softmax must forget what it has seen before a much larger score, and not overflow.
#[test]
fn attention_with_scores_far_apart() {
    let mut exam = Exam::new("attention, far scores");
    cases(6, |i, rng| {
        let (t, s, d) = (33, 300, 40);
        let operands = vec![input([1, t, d], rng), input([1, s, d], rng), input([1, s, d], rng)];
        let op = Op::Attention { heads: 1, kv_heads: 1, bias: false, scale: 1.0, causal: i % 2 == 1 };
        let mut case = Case::new(single(op, operands, None, rng), rng);
        // The scores of later keys are larger and larger, or smaller and smaller.
        let sign = if i < 3 { 1.0 } else { -1.0 };
        case.set("x0", (0..t * d).map(|_| 1.0 + 0.1 * rng.normal()).collect::<Vec<_>>());
        case.set("x1", (0..s * d).map(|j| sign * (j / d) as f64 * 0.05 + 0.1 * rng.normal()).collect::<Vec<_>>());
        // Scores reach hundreds; the rounding of a score is a relative error of the result.
        exam.check(&case, Bar { f32: 1e-4, bf16: 1e-2, exact: f64::INFINITY }, rng);
    });
}
