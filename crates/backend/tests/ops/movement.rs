//! The same numbers in other places: nothing is computed, so that nothing may change.

use impasto_graph::{DType, Op};

use super::common::case::Case;
use super::common::exam::{Bar, Exam};
use super::common::rng::{Rng, cases};
use super::operands::{Operand, single};

/// Not a bit may differ.
const SAME: Bar = Bar { f32: 0.0, bf16: 0.0, exact: 0.0 };

/// An operand of any type, integers too.
fn anything(shape: &[usize], rng: &mut Rng) -> Operand {
    Operand::Input(shape.to_vec(), rng.pick(&DType::ALL))
}

fn check(exam: &mut Exam, op: Op, operands: Vec<Operand>, rng: &mut Rng) {
    let case = Case::new(single(op, operands, None, rng), rng);
    exam.check(&case, SAME, rng);
}

fn shape(rank: usize, rng: &mut Rng) -> Vec<usize> {
    (0..rank).map(|_| rng.pick(&[1, 2, 3, 5, 16, 17])).collect()
}

#[test]
fn enlarged_images() {
    let mut exam = Exam::new("upsample");
    cases(30, |_, rng| {
        let shape = [rng.between(1, 3), rng.pick(&[1, 3, 8]), rng.pick(&[1, 5, 16]), rng.pick(&[1, 3, 16, 33])];
        let factor = rng.between(1, 3);
        let operands = vec![anything(&shape, rng)];
        check(&mut exam, Op::Upsample { factor }, operands, rng);
    });
}

#[test]
fn zeros_around() {
    let mut exam = Exam::new("pad");
    cases(60, |_, rng| {
        let rank = rng.between(1, 5);
        let shape = shape(rank, rng);
        let mut amounts = || (0..rank).map(|_| rng.pick(&[0, 0, 1, 3])).collect::<Vec<_>>();
        let (before, after) = (amounts(), amounts());
        let operands = vec![anything(&shape, rng)];
        check(&mut exam, Op::Pad { before, after }, operands, rng);
    });
}

#[test]
fn one_after_the_other_along_every_axis() {
    let mut exam = Exam::new("concat");
    cases(60, |i, rng| {
        let rank = 1 + i % 4;
        let axis = rng.below(rank);
        let whole = shape(rank, rng);
        let dtype = rng.pick(&DType::ALL);
        let parts = (0..rng.between(1, 4)).map(|_| {
            let mut part = whole.clone();
            part[axis] = rng.pick(&[1, 2, 16, 19]);
            Operand::Input(part, dtype)
        });
        let parts = parts.collect();
        check(&mut exam, Op::Concat { axis }, parts, rng);
    });
}

/// A tensor beside itself, and many parts: each part is one operand.
#[test]
fn the_same_part_twice() {
    let mut exam = Exam::new("concat, twice");
    cases(8, |axis, rng| {
        let mut graph = impasto_graph::Graph::new();
        let x = graph.input("x", [2, 3, 4, 16], rng.pick(&super::operands::FLOATS)).expect("x is sane");
        let y = graph.concat(axis % 4, &[x, x, x]).expect("the parts fit");
        graph.output("y", y).expect("the name is new");
        exam.check(&Case::new(graph, rng), SAME, rng);
    });
}

#[test]
fn parts_of_every_axis() {
    let mut exam = Exam::new("slice");
    cases(80, |i, rng| {
        let rank = 1 + i % 4;
        let mut shape = shape(rank, rng);
        let axis = rng.below(rank);
        // Without anything slower than it, a slice is a view where it begins at an address that fits.
        if rng.chance(50) {
            shape[..axis].fill(1);
        }
        let len = rng.between(1, shape[axis]);
        let start = rng.below(shape[axis] - len + 1);
        let operands = vec![anything(&shape, rng)];
        check(&mut exam, Op::Slice { axis, start, len }, operands, rng);
    });
}

#[test]
fn the_same_elements_in_another_shape() {
    let mut exam = Exam::new("reshape");
    cases(20, |_, rng| {
        let shape = rng.pick(&[vec![24], vec![1, 24], vec![2, 3, 4], vec![4, 3, 2, 1], vec![24, 1, 1]]);
        let operands = vec![anything(&rng.pick(&[vec![6, 4], vec![24], vec![2, 2, 2, 3]]), rng)];
        check(&mut exam, Op::Reshape { shape }, operands, rng);
    });
}

/// All orders of this many axes.
fn orders(rank: usize) -> Vec<Vec<usize>> {
    let mut orders: Vec<Vec<usize>> = vec![vec![]];
    for _ in 0..rank {
        let with = |order: &Vec<usize>, axis: usize| order.iter().copied().chain([axis]).collect::<Vec<_>>();
        let longer = orders.iter().flat_map(|o| (0..rank).filter(|a| !o.contains(a)).map(|a| with(o, a)));
        orders = longer.collect();
    }
    orders
}

#[test]
fn every_order_of_axes() {
    let mut exam = Exam::new("permute");
    let every: Vec<Vec<usize>> = (0..=4).flat_map(orders).collect();
    assert_eq!(every.len(), 1 + 1 + 2 + 6 + 24);
    cases(2 * every.len() + 10, |i, rng| {
        let axes = every.get(i / 2).cloned().unwrap_or_else(|| rng.pick(&orders(6)));
        let shape = if axes.len() == 6 { vec![2, 3, 1, 2, 5, 3] } else { shape(axes.len(), rng) };
        let operands = vec![anything(&shape, rng)];
        check(&mut exam, Op::Permute { axes }, operands, rng);
    });
}
