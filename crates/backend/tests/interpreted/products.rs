//! Products, convolutions and attention around the sizes of matrix units, with quantised weights too.

use impasto_graph::{DType, Fused, Op, Scores, Storage, Unary, Window};

use super::common::case::Case;
use super::common::exam::{Bar, Exam};
use super::common::rng::{Rng, cases};
use super::operands::{Operand, any_dtype, input, single, vector};

fn linear(m: usize, n: usize, k: usize, storage: Storage, rng: &mut Rng) -> Case {
    let fused =
        Fused { bias: rng.chance(50), activation: rng.chance(50).then_some(Unary::Silu), residual: rng.chance(50) };
    let mut operands = vec![input([m, k], rng), Operand::Param(vec![n, k], storage)];
    if fused.bias {
        operands.push(vector(n, rng));
    }
    if fused.residual {
        operands.push(input([m, n], rng));
    }
    let dtype = any_dtype(rng);
    Case::new(single(Op::Linear { fused, geglu: false }, operands, dtype, rng), rng)
}

#[test]
fn linear_layers_around_the_sizes_of_matrix_units() {
    let mut exam = Exam::new("linear");
    cases(5, |i, rng| {
        let [m, n, k] = [[1, 1, 1], [16, 8, 16], [17, 9, 33], [33, 40, 64], [3, 24, 96]][i];
        let storage = Storage::Dense(rng.pick(&[DType::F16, DType::BF16, DType::F32]));
        exam.check(&linear(m, n, k, storage, rng), Bar::TIGHT, rng);
    });
}

#[test]
fn linear_layers_of_quantised_weights() {
    let mut exam = Exam::new("linear, quantised");
    cases(3, |_, rng| {
        let storage = rng.pick(&[Storage::Q8_0, Storage::Q4_0, Storage::Q4_K, Storage::Q6_K, Storage::F8_E4M3]);
        exam.check(&linear(rng.between(1, 20), rng.between(1, 24), 256, storage, rng), Bar::TIGHT, rng);
    });
}

#[test]
fn convolutions_around_the_sizes_of_matrix_units() {
    let mut exam = Exam::new("conv2d");
    cases(4, |i, rng| {
        let [h, w, c, n] = [[1, 1, 1, 1], [5, 4, 16, 8], [4, 7, 17, 9], [6, 6, 8, 20]][i];
        let window = if i == 3 { Window::pad(1).stride(2) } else { Window::pad(1).upsample(1 + i % 2) };
        let mut graph = impasto_graph::Graph::new();
        let x = graph.input("x", [1, h, w, c], rng.pick(&[DType::F16, DType::F32])).expect("an input");
        let weights = graph.param("w", [n, c, 3, 3], Storage::Dense(DType::F16)).expect("a parameter");
        let bias = graph.param("b", [n], Storage::Dense(DType::F32)).expect("a parameter");
        let then = impasto_graph::Epilogue::new().bias(bias).activation(Unary::Silu);
        let y = graph.conv2d(x, weights, window, then).expect("it fits");
        graph.output("y", y).expect("the name is new");
        exam.check(&Case::new(graph, rng), Bar::TIGHT, rng);
    });
}

#[test]
fn attention_around_the_sizes_of_matrix_units() {
    let mut exam = Exam::new("attention");
    cases(3, |i, rng| {
        let [heads, tokens, keys, width] = [[2, 5, 7, 16], [1, 17, 33, 40], [2, 16, 16, 8]][i];
        let mut graph = impasto_graph::Graph::new();
        let dtype = rng.pick(&[DType::F16, DType::F32]);
        let mut of =
            |name: &str, tokens: usize| graph.input(name, [1, tokens, heads * width], dtype).expect("an input");
        let operands = [of("q", tokens), of("k", keys), of("v", keys)];
        let scores = Scores { scale: None, causal: i == 2, bias: None };
        let y = graph.grouped_attention(operands, [heads, heads], scores).expect("it fits");
        graph.output("y", y).expect("the name is new");
        exam.check(&Case::new(graph, rng), Bar { f32: 1e-5, bf16: 8e-3, exact: 3e-2 }, rng);
    });
}
