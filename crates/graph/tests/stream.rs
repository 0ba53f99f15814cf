//! Weights that take turns, on random graphs and made-up devices. If one of these failed, a user would see a wrong picture (a step that reads
//! weights which are not there), or a budget that is not kept.

use std::collections::HashSet;

use crate::common::device::Device;
use impasto_graph::{Graph, Location, Plan, PlanError, Value};
use impasto_testkit::graph::random_graph::{Kind, random_graph};
use impasto_testkit::graph::rng::cases;

/// The parameters that a step reads, by the plan.
fn reads(graph: &Graph, plan: &Plan, step: Value) -> HashSet<Value> {
    let place = |&operand: &Value| match plan.place(operand) {
        Location::Weight(param) => Some(param),
        _ => None,
    };
    graph.node(step).inputs.iter().filter_map(place).collect()
}

#[test]
fn every_step_finds_its_weights_within_the_budget() {
    let (mut streamed, mut refused) = (0, 0);
    cases(2000, |i, rng| {
        let kind = if rng.chance(50) { Kind::Tame } else { Kind::Wild };
        let graph = random_graph(rng, 2 + i / 40, kind);
        let device = Device::random(rng);
        let whole = Plan::new(&graph, &device).expect("nothing is limited");
        let (weights, arena) = (whole.weight_bytes(), whole.arena_bytes());
        let memory = arena + (weights as f64 * rng.unit() * 1.1) as u64;
        let device = device.memory(memory);
        let plan = match Plan::streamed(&graph, &device) {
            Ok(plan) => plan,
            Err(PlanError::Memory { need, limit, .. }) => {
                assert!(weights + arena > memory && need == weights + arena && limit == memory);
                refused += 1;
                return;
            }
            Err(other) => panic!("{other}"),
        };
        assert!(plan.device_weight_bytes() + plan.arena_bytes() <= memory, "the budget is kept");
        assert_eq!((plan.weight_bytes(), plan.arena_bytes(), plan.steps()), (weights, arena, whole.steps()));
        let Some(stream) = plan.stream() else {
            assert_eq!(plan, whole, "what fits is planned as ever");
            return;
        };
        streamed += 1;
        assert!(weights + arena > memory, "nothing takes turns that has room");
        let stays: HashSet<Value> = plan.resident().iter().map(|weight| weight.value).collect();
        let mut at = 0;
        let mut slots = vec![];
        for segment in stream.segments() {
            assert_eq!(segment.steps.start, at, "segments follow each other");
            assert!(!segment.steps.is_empty() && segment.slot < stream.slots());
            at = segment.steps.end;
            let mut end = 0;
            for piece in &segment.pieces {
                assert!(
                    piece.offset >= end && piece.offset.is_multiple_of(device.alignment),
                    "pieces lie apart, aligned"
                );
                end = piece.offset + piece.weight.bytes;
            }
            assert!(end <= stream.slot_bytes(), "a segment fits its slot");
            let brought: HashSet<Value> = segment.pieces.iter().map(|piece| piece.weight.value).collect();
            assert!(brought.is_disjoint(&stays));
            let mut used = HashSet::new();
            for step in &plan.steps()[segment.steps.clone()] {
                let read = reads(&graph, &plan, step.value);
                assert!(read.iter().all(|param| stays.contains(param) || brought.contains(param)), "{}", step.value);
                used.extend(read);
            }
            assert!(brought.is_subset(&used), "nothing is brought for nothing");
            if !segment.pieces.is_empty() {
                slots.push(segment.slot);
            }
        }
        assert_eq!(at, plan.steps().len(), "every step has its segment");
        assert!(slots.windows(2).all(|pair| stream.slots() == 1 || pair[0] != pair[1]), "slots take turns: {slots:?}");
        for output in graph.outputs() {
            if let Location::Weight(param) = plan.place(output.value) {
                assert!(stays.contains(&param), "a result stays");
            }
        }
    });
    println!("{streamed} with weights that take turns, {refused} refused");
    assert!(streamed > 100 && refused > 20);
}
