//! Random graphs, whole, in bands and with streamed weights.

use std::sync::Arc;

use impasto_backend::{DeviceOptions, Precision, SharedSource};
use impasto_graph::{Epilogue, Graph, GraphError, Plan, Storage};

use super::common::banded::{check as check_bands, random_cutting};
use super::common::case::Case;
use super::common::cpus::{machines, open};
use super::common::exam::compare;
use super::common::machine::{Factors, same_bits};
use super::common::reference::interpret;
use super::common::rng::{Rng, cases, seed};
use impasto_testkit::graph::random_graph::{Kind, random_graph};

/// A random graph that stays among ordinary numbers, with what the reference says of it.
fn tame_case(ops: usize, rng: &mut Rng) -> (Case, Vec<Vec<f64>>) {
    loop {
        let case = Case::new(random_graph(rng, ops, Kind::Tame), rng);
        let values = interpret(&case.graph, &case.given, false);
        if values.iter().flatten().all(|x| x.abs() < 300.0) {
            return (case, values);
        }
    }
}

#[test]
fn random_graphs_yield_what_the_reference_yields() {
    cases(12, |i, rng| {
        let (case, exact) = tame_case(1 + i, rng);
        for machine in machines() {
            // After many ops little roundings have grown; bytes that were overwritten are off by far more.
            let bar = if machine.factors == Factors::F32 { 2e-3 } else { 5e-2 };
            let results = machine.run(&case);
            for (output, got) in case.graph.outputs().iter().zip(&results) {
                if let Err(problem) = compare(got, &exact[output.value.index()], bar, 1.0) {
                    panic!("{machine}: output '{}': {problem}\n{}", output.name, case.graph);
                }
            }
        }
    });
}

#[test]
fn random_graphs_yield_the_same_bits_in_bands() {
    cases(4, |i, rng| {
        let case = Case::new(random_graph(rng, 3 + i, Kind::Tame), rng);
        let cutting = random_cutting(&case, rng);
        check_bands(&case, &cutting, &machines()[rng.below(machines().len())]);
    });
}

/// Layers whose weights do not fit together.
fn layers(count: usize, width: usize) -> Result<Graph, GraphError> {
    let mut graph = Graph::new();
    let mut x = graph.input("x", [3, width], impasto_graph::DType::F32)?;
    for i in 0..count {
        let w = graph.param(&format!("w{i}"), [width, width], Storage::Dense(impasto_graph::DType::F32))?;
        x = graph.linear(x, w, Epilogue::new())?;
    }
    graph.output("y", x)?;
    Ok(graph)
}

#[test]
fn streamed_weights_yield_the_same_bits_within_the_budget() -> Result<(), GraphError> {
    let case = Case::new(layers(6, 64)?, &mut Rng::new(seed()));
    let whole = machines()[0].run(&case);
    let limited = |memory| open(&DeviceOptions { precision: Precision::F32, memory, ..DeviceOptions::default() });
    let plan = Plan::new(&case.graph, &*limited(None).profile()).expect("it fits");
    let need = plan.weight_bytes() * 2 / 3 + plan.arena_bytes();
    let budget = need + limited(Some(need)).profile().fixed_bytes();
    let device = limited(Some(budget));
    let plan = Plan::streamed(&case.graph, &*device.profile()).expect("it fits");
    assert!(plan.stream().is_some(), "nothing is streamed");
    let host: SharedSource = Arc::new(device.pack_on_host(&case.graph, &plan, &case).expect("it packs"));
    let weights = device.pack(&case.graph, &plan, &*host).expect("it packs").fed_by(host);
    let mut session = device.prepare(&case.graph, &plan, &weights).expect("it is prepared");
    for _ in 0..3 {
        assert!(same_bits(&whole, &session.run_to_new(&case.inputs()).expect("it runs")), "other bits");
    }
    assert!(device.meter().peak() <= budget, "{} of {budget} bytes", device.meter().peak());
    Ok(())
}
