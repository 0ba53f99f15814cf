//! Results against the reference, on every machine.

use std::collections::BTreeMap;

use impasto_graph::{DType, HostTensor, Op};

use super::case::Case;
use super::cpus::{every, machines};
use super::machine::{Factors, same_bits};
use super::reference::{interpret, numbers};
use super::rng::{Rng, seed};

/// How far a result may be from the reference: relative error in the L2 norm.
#[derive(Clone, Copy)]
pub struct Bar {
    /// Where products are computed in f32.
    pub f32: f64,
    /// Where factors are bf16, against a reference that rounds them too.
    pub bf16: f64,
    /// Where factors are bf16, against a reference that knows nothing of that.
    pub exact: f64,
}

impl Bar {
    /// Rounding in f32 is all that may be seen.
    pub const TIGHT: Bar = Bar { f32: 1e-5, bf16: 1e-5, exact: 2e-2 };
}

/// Cases with more operations than this are tried with two numbers of threads only.
const EXPENSIVE: u64 = 4_000_000;

/// One op under examination; prints at the end how far the f32 results of each path were off at worst.
pub struct Exam {
    what: &'static str,
    worst: BTreeMap<String, [f64; 2]>,
    /// Cases so far. It begins anywhere, so that where not all are tried each run tries others.
    seen: usize,
}

impl Exam {
    pub fn new(what: &'static str) -> Exam {
        Exam { what, worst: BTreeMap::new(), seen: seed() as usize }
    }

    /// Run the case on every path and precision and compare all of its results.
    pub fn check(&mut self, case: &Case, bar: Bar, rng: &mut Rng) {
        self.seen = self.seen.wrapping_add(1);
        if !self.seen.is_multiple_of(every(case.graph.flops() > 0)) {
            return;
        }
        let exact = interpret(&case.graph, &case.given, false);
        let rounded = (case.graph.flops() > 0).then(|| interpret(&case.graph, &case.given, true));
        let left_out = if case.graph.flops() > EXPENSIVE { rng.pick(&[1, 3]) } else { 0 };
        let mut path: Option<(String, Vec<HostTensor>)> = None;
        for machine in machines().iter().filter(|m| m.threads != left_out) {
            let results = machine.run(case);
            // The number of threads decides nothing: the reference need not be asked twice.
            match &path {
                Some((known, first)) if *known == machine.path() => {
                    let same = same_bits(first, &results);
                    assert!(same, "{machine}: differs from another number of threads\n{}", case.graph);
                    continue;
                }
                _ => path = Some((machine.path(), results.clone())),
            }
            for (output, got) in case.graph.outputs().iter().zip(&results) {
                let (want, at) = (&exact[output.value.index()], output.value.index());
                let checks = match (&rounded, machine.factors) {
                    (Some(rounded), Factors::Bf16) => vec![(&rounded[at], bar.bf16), (want, bar.exact)],
                    (Some(_), Factors::F16) => vec![(want, 2e-2)],
                    _ => vec![(want, bar.f32.max(machine.least))],
                };
                // The sum of a few products may happen to be almost nothing: its error is measured against one.
                let few = want.len() < 64;
                let floor = if few { 1.0 } else { size_of_means(case) };
                for (i, (want, bar)) in checks.into_iter().enumerate().filter(|(i, _)| *i == 0 || !few) {
                    match compare(got, want, bar, floor) {
                        Ok(_) if got.ty().dtype != DType::F32 => {}
                        Ok(error) => {
                            let worst = self.worst.entry(machine.path()).or_default();
                            worst[i] = worst[i].max(error);
                        }
                        Err(problem) => {
                            panic!("{machine}: output '{}': {problem}\n{}", output.name, case.graph)
                        }
                    }
                }
            }
        }
    }
}

impl Drop for Exam {
    fn drop(&mut self) {
        for (path, [error, exact]) in &self.worst {
            let exact = if *exact > 0.0 { format!("  ({exact:.1e} with exact factors)") } else { String::new() };
            println!("worst error of {:20} on {path:16} {error:.1e}{exact}", self.what);
        }
    }
}

/// Attention takes means of values that are about one. Where all queries take nearly the same mean, all of the result may happen to be almost
/// nothing, and what rounding the weights does to it is not: errors are measured against twice the size that means of so many have.
fn size_of_means(case: &Case) -> f64 {
    let keys = case.graph.nodes().iter().filter(|node| matches!(node.op, Op::Attention { .. }));
    keys.map(|node| 2.0 / (case.graph.ty(node.inputs[1]).shape[1] as f64).sqrt()).fold(0.0, f64::max)
}

/// The relative error of a result, or what is wrong with it. Elements that are smaller than `floor` on average are
/// compared as if they were that large.
pub fn compare(got: &HostTensor, want: &[f64], bar: f64, floor: f64) -> Result<f64, String> {
    // The reference is rounded to the element type as well: now and then it falls to the other side.
    let (mean_flip, step) = match got.ty().dtype {
        DType::F32 | DType::I32 => (0.0, 0.0),
        DType::F16 => (5e-4, 1e-3),
        DType::BF16 => (4e-3, 8e-3),
    };
    let got = numbers(got);
    let at = |i: usize| format!("element {i} of {} is {}, it should be {}", want.len(), got[i], want[i]);
    let odd = |x: f64| if x.is_finite() { None } else { Some(x.to_string()) };
    if let Some(i) = (0..want.len()).find(|&i| odd(got[i]) != odd(want[i])) {
        return Err(at(i));
    }
    let finite: Vec<usize> = (0..want.len()).filter(|&i| want[i].is_finite()).collect();
    let sum = |f: &dyn Fn(usize) -> f64| finite.iter().map(|&i| f(i).powi(2)).sum::<f64>();
    let (norm, off) = (sum(&|i| want[i]).sqrt(), sum(&|i| got[i] - want[i]).sqrt());
    let root = (finite.len().max(1) as f64).sqrt();
    // Near the smallest floats there is no relative precision.
    let size = (norm / root).max(floor) + 1e-30;
    let error = off / root / size;
    // One wrong element among millions hardly moves a norm.
    let distance = |i: usize| (got[i] - want[i]).abs() / (want[i].abs() + size);
    let farthest = finite.iter().copied().max_by(|&a, &b| distance(a).total_cmp(&distance(b)));
    match farthest {
        Some(i) if error > bar + mean_flip => {
            Err(format!("relative error {error:.2e}, {bar:.0e} is allowed; {}", at(i)))
        }
        Some(i) if distance(i) > 30.0 * bar + step => Err(format!("{} (relative error {error:.2e} in all)", at(i))),
        _ => Ok(error),
    }
}
