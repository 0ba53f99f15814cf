//! Attention where matrix tiles and vectors are at their edges: widths and numbers of keys around tiles, scores of every size, and numbers
//! that are none.

use impasto_graph::{DType, Op};

use super::common::case::Case;
use super::common::exam::{Bar, Exam};
use super::common::rng::cases;
use super::operands::{Operand, any_dtype, input, single};
use super::products::ATTENTION;

#[test]
fn sizes_around_tiles() {
    let mut exam = Exam::new("attention around tiles");
    let tokens = [1, 2, 3, 7, 15, 16, 31, 32, 33, 61, 64, 65, 97];
    let widths = [1, 7, 15, 16, 17, 31, 32, 33, 40, 47, 48, 63, 64, 65, 80, 95, 96];
    cases(60, |i, rng| {
        let (t, s) = (rng.pick(&tokens), rng.pick(&tokens));
        // Each width of values comes up.
        let (d, e) = (rng.pick(&widths), widths[i % widths.len()]);
        let heads = rng.between(1, 3);
        let operands = [(t, d), (s, d), (s, e)].map(|(tokens, width)| input([1, tokens, heads * width], rng));
        let scale = rng.pick(&[1.0, -0.5, 0.0, 4.0]) / (d as f32).sqrt();
        let op = Op::Attention { heads, kv_heads: heads, bias: false, scale, causal: s >= t && rng.chance(50) };
        let case = Case::new(single(op, operands.into(), any_dtype(rng), rng), rng);
        exam.check(&case, ATTENTION, rng);
    });
}

/// Scores that are small whole numbers, times a power of two that each query has of its own: exact on every path, however large they are. So each
/// row knows which keys are the largest, and equal ones have equal weights.
#[test]
fn scores_of_every_size() {
    let mut exam = Exam::new("attention, scores of every size");
    cases(24, |i, rng| {
        let (t, s, d) = (rng.pick(&[1, 33, 70]), rng.pick(&[1, 13, 77, 300]), rng.pick(&[1, 40, 64]));
        let operands = vec![input([1, t, d], rng), input([1, s, d], rng), input([1, s, d], rng)];
        let scale = rng.pick(&[1.0, 1.0 / 16.0, 64.0]);
        let op = Op::Attention { heads: 1, kv_heads: 1, bias: false, scale, causal: s >= t && rng.chance(50) };
        let mut case = Case::new(single(op, operands, None, rng), rng);
        // Powers that all rows have alike, or rows of all kinds beside each other.
        let powers = [vec![-14], vec![0], vec![6], vec![14], vec![-14, -3, 0, 2, 5, 9, 14]][i % 5].clone();
        let sizes: Vec<f64> = (0..t).map(|_| f64::powi(2.0, rng.pick(&powers))).collect();
        // All of a query and of a key is in one number, at any place.
        let place = rng.below(d);
        let at = |j: usize, x: f64| if j % d == place { x } else { 0.0 };
        case.set("x0", (0..t * d).map(|j| at(j, rng.pick(&[1.0, -1.0]) * sizes[j / d])).collect::<Vec<_>>());
        let most = rng.pick(&[0, 1, 8]);
        case.set("x1", (0..s * d).map(|j| at(j, rng.between(0, 2 * most) as f64 - most as f64)).collect::<Vec<_>>());
        exam.check(&case, ATTENTION, rng);
    });
}

/// A query or key that is no number, or infinite, spoils the rows that depend on it; a value its own column.
#[test]
fn odd_numbers_in_every_operand() {
    let mut exam = Exam::new("attention, odd numbers everywhere");
    cases(40, |i, rng| {
        let (t, s, d) = (rng.pick(&[1, 17, 77]), rng.pick(&[1, 33, 130]), rng.pick(&[3, 16, 40, 64]));
        let operands = [t, s, s].map(|tokens| Operand::Input(vec![2, tokens, 2 * d], DType::F32));
        let name = ["x0", "x1", "x2"][i % 3];
        // What is hidden still meets the values, with a weight of zero.
        let causal = s >= t && name != "x2" && rng.chance(50);
        let op = Op::Attention { heads: 2, kv_heads: 2, bias: false, scale: 0.3, causal };
        let mut case = Case::new(single(op, operands.into(), None, rng), rng);
        let n = 2 * if name == "x0" { t } else { s } * 2 * d;
        let (at, odd) = (rng.below(n), rng.pick(&[f64::NAN, f64::INFINITY, f64::NEG_INFINITY]));
        case.set(name, (0..n).map(|j| if j == at { odd } else { rng.normal() }).collect::<Vec<_>>());
        exam.check(&case, Bar { bf16: 1e-2, ..ATTENTION }, rng);
    });
}
