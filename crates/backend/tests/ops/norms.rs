//! Group norm, layer norm, RMS norm and softmax.

use impasto_graph::{Op, Unary};

use super::common::case::Case;
use super::common::exam::{Bar, Exam};
use super::common::rng::{Rng, cases};
use super::operands::{Operand, any_dtype, input, single, vector};

const WIDTHS: [usize; 12] = [1, 2, 3, 5, 8, 15, 16, 17, 64, 77, 320, 1030];

/// Random numbers around a mean. Group norm of real pictures has means that are large compared with the deviation: a
/// variance that is computed as a difference of squares is then noise.
fn around(mean: f64, deviation: f64, case: &mut Case, rng: &mut Rng) {
    let x = case.graph.inputs().next().expect("x is an input").1;
    let n = case.graph.ty(x).elements();
    case.set("x0", (0..n).map(|_| mean + deviation * rng.normal()).collect::<Vec<_>>());
}

/// `x` is rounded before it gets here, but `x - mean` cannot be better than the rounding of the mean.
fn bar(mean: f64, deviation: f64) -> Bar {
    let f32 = 1e-5 + 3e-7 * mean.abs() / deviation;
    Bar { f32, bf16: f32, exact: f32 }
}

#[test]
fn group_norm_of_awkward_sizes() {
    let mut exam = Exam::new("group_norm");
    let nasty: [(&[usize], usize); 12] = [
        (&[1, 1], 1),
        (&[3, 1, 1, 32], 32),
        (&[2, 7, 32], 8),
        (&[1, 64, 64, 40], 8),
        (&[2, 33, 17, 96], 32),
        (&[1, 300, 3], 1),
        (&[2, 5, 3, 4, 12], 3),
        (&[1, 8, 8, 77], 7),
        (&[3, 130], 13),
        (&[1, 5, 1, 15], 5),
        (&[1, 1, 600, 16], 2),
        (&[2, 16, 16, 1030], 10),
    ];
    cases(3 * nasty.len() + 60, |i, rng| {
        let (shape, groups) = match nasty.get(i / 3) {
            Some(&(shape, groups)) => (shape.to_vec(), groups),
            None => {
                let (groups, width) = (rng.pick(&[1, 2, 3, 7, 32]), rng.pick(&[1, 2, 3, 5, 10, 11]));
                let mut shape = vec![rng.between(1, 3)];
                shape.extend((0..rng.below(4)).map(|_| rng.pick(&[1, 2, 5, 9, 16])));
                shape.push(groups * width);
                (shape, groups)
            }
        };
        let few = shape[1..].iter().product::<usize>() / groups < 16;
        let (mean, deviation) = match few {
            true => rng.pick(&[(0.0, 1.0), (0.0, 1e-3)]),
            false => rng.pick(&[(0.0, 1.0), (0.0, 1.0), (1000.0, 1.0), (-30.0, 0.5), (0.0, 1e-3), (0.0, 1e4)]),
        };
        let activation =
            rng.chance(60).then(|| rng.pick(&[Unary::Silu, Unary::Silu, Unary::Gelu, Unary::Tanh, Unary::Relu]));
        let op = Op::GroupNorm { groups, eps: rng.pick(&[1e-5, 1e-6]), activation };
        let c = shape[shape.len() - 1];
        // Half precision has no room for small deviations around a large mean.
        let x = if mean == 0.0 { input(shape, rng) } else { Operand::Input(shape, impasto_graph::DType::F32) };
        let operands = vec![x, vector(c, rng), vector(c, rng)];
        let dtype = any_dtype(rng);
        let mut case = Case::new(single(op, operands, dtype, rng), rng);
        around(mean, deviation, &mut case, rng);
        // A few numbers may happen to lie close together: then little but their rounding is left of them.
        exam.check(&case, if few { bar(3.0 * deviation, 1e-3) } else { bar(mean, deviation) }, rng);
    });
}

/// Group norm in its three parts, as bands take it: each against the reference, and together bit by bit the op in one piece.
#[test]
fn group_norm_in_parts() {
    let mut exam = Exam::new("group_norm in parts");
    cases(24, |i, rng| {
        if !i.is_multiple_of(super::common::cpus::every(true)) {
            return;
        }
        let (groups, width) = (rng.pick(&[1, 2, 3, 7, 32]), rng.pick(&[1, 2, 3, 5, 10, 11]));
        let (mut shape, c) = (vec![rng.between(1, 3), rng.pick(&[1, 2, 5, 33])], groups * width);
        shape.extend((0..rng.below(3)).map(|_| rng.pick(&[1, 2, 9, 16])));
        shape.push(c);
        let pixels = shape[2..shape.len() - 1].iter().product();
        let (eps, dtype) = (rng.pick(&[1e-3, 1e-5]), any_dtype(rng));
        let activation = rng.chance(60).then(|| rng.pick(&[Unary::Silu, Unary::Gelu]));
        let mut graph = impasto_graph::Graph::new();
        let x = graph.input("x0", shape, rng.pick(&super::operands::FLOATS)).expect("x is sane");
        let [gamma, beta] =
            ["gamma", "beta"].map(|name| graph.input(name, [c], impasto_graph::DType::F32).expect("a vector"));
        let stats = graph.push(Op::LineStatistics { groups }, &[x], None).expect("the groups fit");
        let factors = graph.push(Op::NormFactors { pixels, eps }, &[stats, gamma, beta], None).expect("they fit");
        let parts = graph.push(Op::Normalise { activation }, &[x, factors], dtype).expect("they fit");
        let whole = graph.push(Op::GroupNorm { groups, eps, activation }, &[x, gamma, beta], dtype).expect("they fit");
        for (name, value) in [("stats", stats), ("factors", factors), ("parts", parts), ("whole", whole)] {
            graph.output(name, value).expect("the name is new");
        }
        let mut case = Case::new(graph, rng);
        let (mean, deviation) = rng.pick(&[(0.0, 1.0), (-30.0, 0.5), (0.0, 1e2)]);
        around(mean, deviation, &mut case, rng);
        for machine in super::common::cpus::machines() {
            let results = machine.run(&case);
            assert!(super::common::machine::same_bits(&results[2..3], &results[3..]), "{machine}\n{}", case.graph);
        }
        exam.check(&case, bar(3.0 + 3.0 * mean.abs(), if c * pixels < 64 { 1e-3 } else { 0.1 }), rng);
    });
}

#[test]
fn norms_of_rows_of_awkward_widths() {
    let mut exam = Exam::new("layer_norm, rms_norm");
    cases(120, |_, rng| {
        let c = rng.pick(&WIDTHS);
        let shape = rng.pick(&[vec![c], vec![1, c], vec![67, c], vec![2, 5, c], vec![2, 3, 4, c]]);
        let eps = rng.pick(&[1e-5, 1e-6, 1e-3]);
        // A picture may have a scale and a shift of its own.
        let batch = (shape.len() > 1).then(|| shape[0]);
        let (mean, deviation) = rng.pick(&[(0.0, 1.0), (if c < 16 { 0.0 } else { 100.0 }, 1.0), (0.0, 1e-2)]);
        let x = if mean == 0.0 { input(shape, rng) } else { Operand::Input(shape, impasto_graph::DType::F32) };
        let (mut gamma, mut beta, dtype) = (vector(c, rng), vector(c, rng), any_dtype(rng));
        if let Some(batch) = batch.filter(|_| rng.chance(50)) {
            [gamma, beta] = [0; 2].map(|_| input([batch, c], rng));
        }
        let graph = match rng.chance(60) {
            true => single(Op::LayerNorm { eps }, vec![x, gamma, beta], dtype, rng),
            false => single(Op::RmsNorm { eps }, vec![x, gamma], dtype, rng),
        };
        let mut case = Case::new(graph, rng);
        around(mean, deviation, &mut case, rng);
        exam.check(&case, bar(mean, deviation), rng);
    });
}

#[test]
fn softmax_of_small_and_huge_numbers() {
    let mut exam = Exam::new("softmax");
    cases(90, |_, rng| {
        let c = rng.pick(&WIDTHS);
        let shape = rng.pick(&[vec![c], vec![1, c], vec![67, c], vec![2, 5, c]]);
        let (mean, deviation) = rng.pick(&[(0.0, 1.0), (0.0, 30.0), (1e4, 100.0), (-1e4, 1.0), (0.0, 1e4)]);
        let (x, dtype) = (input(shape, rng), any_dtype(rng));
        let mut case = Case::new(single(Op::Softmax, vec![x], dtype, rng), rng);
        around(mean, deviation, &mut case, rng);
        exam.check(&case, Bar::TIGHT, rng);
    });
}

/// A mask of minus infinity hides what it covers; a row of nothing but masks is no number, and harms no other row.
#[test]
fn softmax_of_masked_rows() {
    let mut exam = Exam::new("softmax, masked");
    cases(10, |_, rng| {
        let (rows, c) = (9, rng.pick(&[5, 16, 77]));
        let mut case = Case::new(single(Op::Softmax, vec![input([rows, c], rng)], None, rng), rng);
        let seen: Vec<usize> = (0..rows).map(|_| rng.between(1, c)).collect();
        let x = (0..rows * c).map(|i| if i % c < seen[i / c] { rng.normal() } else { f64::NEG_INFINITY });
        case.set("x0", x.collect::<Vec<_>>());
        exam.check(&case, Bar::TIGHT, rng);
    });
}
