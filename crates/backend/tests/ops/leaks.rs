//! One number that is none (NaN or infinity) among good ones: it reaches what depends on it, and nothing else. Kernels
//! work on whole vectors and tiles, and what they pad them with is multiplied too.

use impasto_graph::{DType, Fused, Op};

use super::common::case::Case;
use super::common::exam::{Bar, Exam};
use super::common::rng::{Rng, cases};
use super::operands::{Operand, single};

const ODD: [f64; 3] = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY];

/// Put one of the odd ones into one of the sources.
fn spoil(case: &mut Case, name: &str, odd: &[f64], rng: &mut Rng) {
    let found = case.graph.inputs().chain(case.graph.params()).find(|(n, _)| *n == name);
    let n = case.graph.ty(found.expect("the source is there").1).elements() as usize;
    let (at, odd) = (rng.below(n), rng.pick(odd));
    case.set(name, (0..n).map(|i| if i == at { odd } else { rng.normal() }).collect::<Vec<_>>());
}

#[test]
fn products_spread_no_odd_numbers() {
    let mut exam = Exam::new("products, odd numbers");
    let input = |shape: &[usize]| Operand::Input(shape.to_vec(), DType::F32);
    let param = |shape: &[usize]| Operand::Param(shape.to_vec(), impasto_graph::Storage::Dense(DType::F32));
    let fused = Fused::default();
    cases(75, |i, rng| {
        let (m, n, k) = (rng.pick(&[1, 5, 17, 67]), rng.pick(&[1, 5, 33, 270]), rng.pick(&[1, 7, 33, 96]));
        let (h, v) = (rng.pick(&[1, 5, 9]), rng.pick(&[1, 6, 17]));
        let conv = Op::Conv2d { stride: rng.between(1, 2), padding: [1; 4], upsample: rng.between(1, 2), fused };
        let (op, operands) = match i % 5 {
            0 => (Op::Linear { fused, geglu: false }, vec![input(&[m, k]), param(&[n, k])]),
            4 => (Op::Linear { fused, geglu: true }, vec![input(&[m, k]), param(&[2 * n, k])]),
            1 => (Op::MatMul { transpose_b: false }, vec![input(&[m, k]), input(&[k, n])]),
            2 => (Op::MatMul { transpose_b: true }, vec![input(&[m, k]), input(&[n, k])]),
            _ => (conv, vec![input(&[2, h, v, k]), param(&[n, k, 3, 3])]),
        };
        // A gate far below zero may or may not be zero, which decides what an infinite value becomes.
        let odd = if matches!(op, Op::Linear { geglu: true, .. }) { &ODD[..1] } else { &ODD };
        let mut case = Case::new(single(op, operands, None, rng), rng);
        spoil(&mut case, if rng.chance(50) { "x0" } else { "x1" }, odd, rng);
        exam.check(&case, Bar::TIGHT, rng);
    });
}

#[test]
fn rows_spread_no_odd_numbers() {
    let mut exam = Exam::new("rows, odd numbers");
    cases(40, |i, rng| {
        let (m, c) = (rng.pick(&[2, 5, 17]), 2 * rng.pick(&[1, 3, 16, 33]));
        let x = Operand::Input(vec![m, c], DType::F32);
        let [gamma, beta] = [0, 1].map(|_| Operand::Input(vec![c], DType::F32));
        let (op, operands) = match i % 4 {
            0 => (Op::LayerNorm { eps: 1e-5 }, vec![x, gamma, beta]),
            1 => (Op::RmsNorm { eps: 1e-5 }, vec![x, gamma]),
            2 => (Op::GroupNorm { groups: 2, eps: 1e-5, activation: None }, vec![x, gamma, beta]),
            _ => (Op::Geglu, vec![x]),
        };
        let mut case = Case::new(single(op, operands, None, rng), rng);
        spoil(&mut case, "x0", &ODD, rng);
        exam.check(&case, Bar { f32: 1e-3, bf16: 1e-3, exact: 1e-3 }, rng);
    });
}

/// A query that is no number spoils its own row of its own head.
#[test]
fn attention_spreads_no_odd_numbers() {
    let mut exam = Exam::new("attention, odd numbers");
    cases(20, |i, rng| {
        let (t, s, d) = (rng.pick(&[1, 17, 77]), rng.pick(&[1, 33, 130]), rng.pick(&[3, 8, 40]));
        let operands = [t, s, s].map(|tokens| Operand::Input(vec![2, tokens, 2 * d], DType::F32));
        let op = Op::Attention { heads: 2, kv_heads: 2, bias: false, scale: 0.3, causal: s >= t && i % 2 == 0 };
        let mut case = Case::new(single(op, operands.into(), None, rng), rng);
        let n = 2 * t * 2 * d;
        let at = rng.below(n);
        case.set("x0", (0..n).map(|j| if j == at { f64::NAN } else { rng.normal() }).collect::<Vec<_>>());
        exam.check(&case, Bar { bf16: 1e-2, ..Bar::TIGHT }, rng);
    });
}
