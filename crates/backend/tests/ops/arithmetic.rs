//! Functions of each element, of pairs of elements, GEGLU, casts.

use impasto_graph::{Binary, DType, Graph, Op, Unary};

use super::common::case::Case;
use super::common::exam::{Bar, Exam};
use super::common::rng::{Rng, cases};
use super::operands::{FLOATS, Operand, any_dtype, input, single};

const LENGTHS: [usize; 10] = [1, 3, 8, 15, 16, 17, 33, 100, 1025, 5000];

#[test]
fn functions_of_each_element() {
    let mut exam = Exam::new("unary");
    cases(6 * Unary::ALL.len(), |i, rng| {
        let function = Unary::ALL[i % Unary::ALL.len()];
        let n = rng.pick(&LENGTHS);
        let shape = rng.pick(&[vec![n], vec![n, 1], vec![2, n], vec![1, n, 3], vec![]]);
        let (x, dtype) = (input(shape, rng), any_dtype(rng));
        let mut case = Case::new(single(Op::Unary(function), vec![x], dtype, rng), rng);
        let wide = rng.pick(&[0.01, 1.0, 5.0, 20.0]);
        let positive = function == Unary::Sqrt && i % 2 == 0;
        let total = case.inputs()[0].1.ty().elements();
        let x = (0..total).map(|_| wide * rng.normal()).map(|x| if positive { x.abs() } else { x });
        case.set("x0", x.collect::<Vec<_>>());
        exam.check(&case, Bar::TIGHT, rng);
    });
}

/// A network that went astray yields NaN, and whoever looks at it must see that: no function may turn it into a number.
/// Large numbers saturate or overflow as the function does.
#[test]
fn functions_of_odd_numbers() {
    let mut exam = Exam::new("unary, odd numbers");
    let odd =
        [f64::NAN, 1e-30, -1e-30, 88.0, -88.0, 89.5, -89.5, 104.0, -104.0, 1e4, -1e4, 3e38, -3e38, -0.0, 0.5, -0.5];
    cases(Unary::ALL.len(), |i, rng| {
        let function = Unary::ALL[i];
        // Turns of a circle are lost in numbers this large.
        let periodic = matches!(function, Unary::Sin | Unary::Cos);
        let odd: Vec<f64> = odd.into_iter().filter(|x| !periodic || x.is_nan() || x.abs() < 1e3).collect();
        // One at a time: a number that is far too large would hide an error in all others.
        for &odd in &odd {
            for n in [1, 16, 37] {
                let graph = single(Op::Unary(function), vec![Operand::Input(vec![n], DType::F32)], None, rng);
                let mut case = Case::new(graph, rng);
                case.set("x0", (0..n).map(|j| if j == n / 2 { odd } else { f64::NAN }).collect::<Vec<_>>());
                exam.check(&case, Bar::TIGHT, rng);
            }
        }
    });
}

#[test]
fn sines_and_cosines_of_large_angles() {
    let mut exam = Exam::new("sin, cos of large angles");
    cases(4, |i, rng| {
        let op = Op::Unary(if i % 2 == 0 { Unary::Sin } else { Unary::Cos });
        let mut case = Case::new(single(op, vec![Operand::Input(vec![5000], DType::F32)], None, rng), rng);
        case.set("x0", (0..5000).map(|_| 1000.0 * (2.0 * rng.unit() - 1.0)).collect::<Vec<_>>());
        exam.check(&case, Bar::TIGHT, rng);
    });
}

#[test]
fn pairs_of_elements_broadcast() {
    let mut exam = Exam::new("binary");
    let pairs: [(&[usize], &[usize]); 22] = [
        (&[], &[]),
        (&[], &[7]),
        (&[1], &[1]),
        (&[17], &[17]),
        (&[17], &[1]),
        (&[1], &[17]),
        (&[5, 33], &[5, 33]),
        (&[5, 33], &[33]),
        (&[33], &[5, 33]),
        (&[5, 33], &[5, 1]),
        (&[5, 1], &[5, 33]),
        (&[5, 1], &[1, 33]),
        (&[1, 33], &[5, 1]),
        (&[2, 8, 9, 40], &[40]),
        (&[2, 8, 9, 40], &[2, 1, 1, 40]),
        (&[2, 8, 9, 40], &[2, 8, 9, 1]),
        (&[2, 8, 9, 40], &[8, 1, 1]),
        (&[2, 1, 9, 1], &[1, 8, 1, 40]),
        (&[1, 8, 1, 40], &[2, 1, 9, 1]),
        (&[3, 1, 5], &[3, 4, 5]),
        (&[2, 2, 2, 2, 2, 2, 2, 2], &[2, 1, 2, 1, 2, 1, 2]),
        (&[1, 1, 1, 3], &[5, 3]),
    ];
    cases(pairs.len() * Binary::ALL.len(), |i, rng| {
        let (a, b) = pairs[i % pairs.len()];
        let function = Binary::ALL[i / pairs.len()];
        let (operands, dtype) = (vec![input(a, rng), input(b, rng)], any_dtype(rng));
        let mut case = Case::new(single(Op::Binary(function), operands, dtype, rng), rng);
        if function == Binary::Div {
            let n: usize = b.iter().product();
            case.set("x1", (0..n).map(|_| 2.0 + rng.unit()).collect::<Vec<_>>());
        }
        exam.check(&case, Bar::TIGHT, rng);
    });
}

/// Long rows and whole tensors, where the inner loops are more than one vector long.
#[test]
fn pairs_of_long_rows() {
    let mut exam = Exam::new("binary, long");
    cases(40, |_, rng| {
        let (rows, n) = (rng.pick(&[1, 2, 67]), rng.pick(&LENGTHS));
        let shapes = [vec![rows, n], vec![1, n], vec![n], vec![rows, 1], vec![1]];
        let (a, b) = (rng.pick(&shapes), rng.pick(&shapes));
        let functions = [Binary::Add, Binary::Sub, Binary::Mul, Binary::Max, Binary::Min];
        let op = Op::Binary(rng.pick(&functions));
        let (operands, dtype) = (vec![input(a, rng), input(b, rng)], any_dtype(rng));
        let case = Case::new(single(op, operands, dtype, rng), rng);
        exam.check(&case, Bar::TIGHT, rng);
    });
}

#[test]
fn pairs_with_something_that_is_no_number() {
    let mut exam = Exam::new("binary, NaN");
    cases(Binary::ALL.len(), |i, rng| {
        let n = 37;
        let operands = (0..2).map(|_| Operand::Input(vec![n], DType::F32)).collect();
        let mut case = Case::new(single(Op::Binary(Binary::ALL[i]), operands, None, rng), rng);
        let odd = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1.0, -2.0];
        case.set("x0", (0..n).map(|j| odd[j % 5]).collect::<Vec<_>>());
        case.set("x1", (0..n).map(|j| odd[j / 5 % 5]).collect::<Vec<_>>());
        exam.check(&case, Bar::TIGHT, rng);
    });
}

#[test]
fn scale_and_shift() {
    let mut exam = Exam::new("affine");
    cases(20, |_, rng| {
        let op = Op::Affine { scale: rng.normal() as f32, shift: 3.0 * rng.normal() as f32 };
        let (operands, dtype) = (vec![input([3, rng.pick(&LENGTHS)], rng)], any_dtype(rng));
        let case = Case::new(single(op, operands, dtype, rng), rng);
        exam.check(&case, Bar::TIGHT, rng);
    });
}

#[test]
fn geglu_of_awkward_widths() {
    let mut exam = Exam::new("geglu");
    cases(40, |_, rng| {
        let n = 2 * rng.pick(&[1, 3, 16, 17, 33, 640, 1025]);
        let shape = rng.pick(&[vec![n], vec![67, n], vec![2, 5, n], vec![2, 3, 4, n]]);
        let (operands, dtype) = (vec![input(shape, rng)], any_dtype(rng));
        let case = Case::new(single(Op::Geglu, operands, dtype, rng), rng);
        exam.check(&case, Bar::TIGHT, rng);
    });
}

#[test]
fn casts_between_all_types() {
    let mut exam = Exam::new("cast");
    for from in DType::ALL {
        for to in DType::ALL {
            cases(3, |_, rng| {
                let n = rng.pick(&LENGTHS);
                let graph = single(Op::Cast, vec![Operand::Input(vec![n], from)], Some(to), rng);
                let mut case = Case::new(graph, rng);
                // Not halfway between two integers, and small enough for half precision.
                let number = |_| (60.0 * rng.normal()).round() + 0.25;
                case.set("x0", (0..n).map(number).collect::<Vec<_>>());
                exam.check(&case, Bar { f32: 1e-7, bf16: 1e-7, exact: 1e-7 }, rng);
            });
        }
    }
}

/// Numbers that the other type does not hold end as Rust's `as` ends: at the largest, at infinity, NaN at 0.
#[test]
fn casts_of_numbers_that_do_not_fit() {
    let mut exam = Exam::new("cast, odd numbers");
    let odd =
        [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 3e9, -3e9, 2147483648.0, -2147483648.0, 1e30, 65519.0, 65520.0];
    cases(FLOATS.len() * 4, |i, rng| {
        let (from, to) = (FLOATS[i / 4], DType::ALL[i % 4]);
        for odd in odd {
            let graph = single(Op::Cast, vec![Operand::Input(vec![19], from)], Some(to), rng);
            let mut case = Case::new(graph, rng);
            case.set("x0", (0..19).map(|_| odd).collect::<Vec<_>>());
            exam.check(&case, Bar { f32: 1e-7, bf16: 1e-7, exact: 1e-7 }, rng);
        }
    });
    cases(3, |i, rng| {
        let graph = single(Op::Cast, vec![Operand::Input(vec![19], DType::I32)], Some(FLOATS[i]), rng);
        let mut case = Case::new(graph, rng);
        let large = [i32::MAX, i32::MIN, 16_777_217, 65_504, -65_505, 70_000];
        case.set("x0", (0..19).map(|j| large[j % large.len()].into()).collect::<Vec<_>>());
        exam.check(&case, Bar { f32: 1e-7, bf16: 1e-7, exact: 1e-7 }, rng);
    });
}

/// Ops that follow each other, of shapes that stretch and element types that change: a backend may compute them at once, and must not notice
/// that a result lies where an operand lay.
#[test]
fn chains_of_functions() {
    let mut exam = Exam::new("chains");
    cases(40, |_, rng| {
        let shape = vec![1 + rng.below(3), 1 + rng.below(40), 1 + rng.below(9)];
        let mut graph = Graph::new();
        let input = |graph: &mut Graph, i: usize, shape: &[usize], rng: &mut Rng| {
            graph.input(&format!("x{i}"), shape, rng.pick(&[DType::F32, DType::F16])).expect("a new name")
        };
        let mut x = input(&mut graph, 0, &shape, rng);
        for i in 1..2 + rng.below(5) {
            x = match rng.below(5) {
                0 => graph.unary(rng.pick(&[Unary::Silu, Unary::Tanh, Unary::Square, Unary::Neg]), x),
                1 => graph.affine(x, 0.5, -0.25),
                2 => graph.cast(x, rng.pick(&[DType::F32, DType::F16])),
                _ => {
                    let stretched: Vec<usize> = shape.iter().map(|&d| if rng.below(3) == 0 { 1 } else { d }).collect();
                    let other = match rng.below(5) {
                        0 => x,
                        _ => input(&mut graph, i, &stretched, rng),
                    };
                    let pair = if rng.below(2) == 0 { [x, other] } else { [other, x] };
                    graph.binary(rng.pick(&[Binary::Add, Binary::Mul, Binary::Max]), pair[0], pair[1])
                }
            }
            .expect("it fits");
            if rng.below(8) == 0 {
                graph.output(&format!("y{i}"), x).expect("a new name");
            }
        }
        graph.output("y", x).expect("a new name");
        exam.check(&Case::new(graph, rng), Bar { f32: 1e-3, ..Bar::TIGHT }, rng);
    });
}
