//! The planner on random graphs and made-up devices. If one of these failed, a user would see a wrong picture (two
//! tensors in the same bytes), a crash for want of memory that the plan promised, or a refusal with a wrong number.

use crate::common::audit::audit;
use crate::common::device::Device;
use impasto_graph::{Capabilities, Graph, Location, Plan, PlanError};
use impasto_testkit::graph::random_graph::{Kind, random_graph};
use impasto_testkit::graph::rng::{Rng, cases};

fn graph(i: usize, rng: &mut Rng) -> Graph {
    let kind = if rng.chance(50) { Kind::Tame } else { Kind::Wild };
    random_graph(rng, 1 + i / 30, kind)
}

/// Plan and have it checked twice.
fn plan(graph: &Graph, device: &Device) -> Result<Plan, PlanError> {
    let plan = Plan::new(graph, device)?;
    if let Err(problem) = plan.verify(graph, device) {
        panic!("verify: {problem}\n{device:?}\n{graph}");
    }
    let outcome = std::panic::catch_unwind(|| audit(graph, &plan, device));
    if outcome.is_err() {
        panic!("the audit failed (see above)\n{device:?}\n{graph}{plan:#?}");
    }
    Ok(plan)
}

/// The largest single piece of memory that a plan needs.
fn largest_piece(graph: &Graph, plan: &Plan) -> u64 {
    let roots = graph.values().filter(|&v| matches!(plan.place(v), Location::Arena(_)));
    let tensors = roots.map(|v| graph.ty(v).bytes()).max();
    let scratch = plan.steps().iter().filter_map(|s| s.scratch).map(|s| s.bytes).max();
    let weights = plan.weights().iter().map(|w| w.bytes).max();
    tensors.max(scratch).max(weights).unwrap_or(0)
}

#[test]
fn every_op_finds_its_operands_unharmed() {
    cases(3000, |i, rng| {
        let (graph, device) = (graph(i, rng), Device::random(rng));
        let first = plan(&graph, &device).expect("nothing is limited");
        assert_eq!(first, Plan::new(&graph, &device).expect("as before"), "the same question has the same answer");
    });
}

#[test]
fn the_arena_is_close_to_what_is_needed() {
    let (mut arena, mut bound) = (0, 0);
    cases(500, |i, rng| {
        let device = Device { alignment: 16, ..Device::random(rng) };
        let plan = plan(&graph(10 * i, rng), &device).expect("nothing is limited");
        arena += plan.arena_bytes();
        bound += plan.lower_bound();
    });
    let ratio = arena as f64 / bound as f64;
    println!("arenas are {ratio:.4} of their lower bounds");
    assert!(ratio < 1.05, "arenas are {ratio:.3} of their lower bounds");
}

#[test]
fn blocks_hold_whole_tensors_where_allocations_are_limited() {
    let mut split = 0;
    cases(2000, |i, rng| {
        let (graph, device) = (graph(i, rng), Device::random(rng));
        let largest = largest_piece(&graph, &plan(&graph, &device).expect("nothing is limited"));
        let limit = largest.next_multiple_of(device.alignment) + rng.below(500) as u64;
        let limited = plan(&graph, &device.max_allocation(limit)).expect("each piece fits a block");
        split += usize::from(limited.blocks().count() > 1);
    });
    assert!(split > 100, "only {split} plans had several blocks: the test tests nothing");
}

#[test]
fn an_allocation_limit_that_is_no_multiple_of_the_alignment_is_kept_too() {
    cases(2000, |i, rng| {
        let (graph, device) = (graph(i, rng), Device::random(rng));
        let largest = largest_piece(&graph, &plan(&graph, &device).expect("nothing is limited"));
        let limit = largest + rng.pick(&[0, 1, 5, 100]);
        // A refusal is fine where the last piece would not lie aligned; a wrong plan or a panic is not.
        match plan(&graph, &device.max_allocation(limit)) {
            Ok(_) => {}
            Err(PlanError::Allocation { need, limit: said, .. }) => assert!(said <= limit && need > said),
            Err(e) => panic!("another refusal was expected: {e}"),
        }
    });
}

#[test]
fn a_tensor_larger_than_one_allocation_is_refused_with_its_size() {
    cases(2000, |i, rng| {
        let (graph, device) = (graph(i, rng), Device::random(rng));
        let roomy = plan(&graph, &device).expect("nothing is limited");
        let largest = largest_piece(&graph, &roomy);
        let limit = rng.pick(&[0, 1, device.alignment - 1, largest - 1, largest / 2]).min(largest - 1);
        match plan(&graph, &device.max_allocation(limit)) {
            Err(e @ PlanError::Allocation { need, limit: said, .. }) => {
                assert!(need > limit && need <= largest && said == limit, "{e} (limit {limit}, largest {largest})");
                assert!(e.to_string().contains(&need.to_string()) && e.to_string().contains(&limit.to_string()));
            }
            other => panic!("{largest} bytes do not fit {limit}: {other:?}\n{graph}"),
        }
    });
}

#[test]
fn the_memory_limit_is_exact_to_the_byte() {
    cases(1000, |i, rng| {
        let (graph, device) = (graph(i, rng), Device::random(rng));
        let roomy = plan(&graph, &device).expect("nothing is limited");
        let all = roomy.arena_bytes() + roomy.weight_bytes();
        assert_eq!(plan(&graph, &device.memory(all)).expect("it fits"), roomy);
        match plan(&graph, &device.memory(all - 1)) {
            Err(PlanError::Memory { need, weights, arena, limit, label, .. }) => {
                assert_eq!([need, limit], [all, all - 1]);
                assert_eq!([weights, arena], [roomy.weight_bytes(), roomy.arena_bytes()]);
                assert!(!label.is_empty());
            }
            other => panic!("{all} bytes do not fit {}: {other:?}", all - 1),
        }
    });
}

#[test]
fn a_binding_limit_is_exact_to_the_byte() {
    cases(1000, |i, rng| {
        let (graph, device) = (graph(i, rng), Device::random(rng));
        let largest = plan(&graph, &device).expect("nothing is limited").largest_binding();
        if largest == 0 {
            return; // Nothing is executed.
        }
        plan(&graph, &device.max_binding(largest)).expect("it fits");
        match plan(&graph, &device.max_binding(largest - 1)) {
            Err(PlanError::Binding { need, limit, .. }) => assert_eq!([need, limit], [largest, largest - 1]),
            other => panic!("{largest} bytes cannot be bound: {other:?}"),
        }
    });
}

#[test]
fn an_op_that_the_device_lacks_is_named() {
    cases(500, |i, rng| {
        let (graph, device) = (graph(i, rng), Device::random(rng));
        let steps = plan(&graph, &device).expect("nothing is limited").steps().to_vec();
        if steps.is_empty() {
            return;
        }
        let lacking = rng.pick(&steps).value;
        match plan(&graph, &Device { lacks: Some(lacking.index()), ..device }) {
            Err(PlanError::Unsupported { op, reason, .. }) => {
                assert_eq!((op, reason.as_str()), (graph.node(lacking).op.name(), "it is too old"));
            }
            other => panic!("{lacking} cannot be executed: {other:?}"),
        }
    });
}

#[test]
fn verify_finds_plans_that_were_made_for_another_device() {
    let (mut scratch, mut overwrites, mut alignments) = (0, 0, 0);
    cases(1000, |i, rng| {
        let (graph, device) = (graph(i, rng), Device::random(rng));
        let plan = plan(&graph, &device).expect("nothing is limited");
        if !plan.steps().is_empty() {
            let needs_more = Device { more_scratch: 64, ..device };
            plan.verify(&graph, &needs_more).expect_err("the scratch memory is too small");
            scratch += 1;
        }
        let in_place = plan.steps().iter().any(|s| {
            let inputs = &graph.node(s.value).inputs;
            inputs.iter().any(|&i| plan.place(i) == plan.place(s.value))
        });
        let never = Device { overwrites: false, ..device };
        assert_eq!(plan.verify(&graph, &never).is_err(), in_place, "results that take the place of operands");
        overwrites += usize::from(in_place);

        let coarse = Device { alignment: 2 * device.alignment, ..device };
        let executed = graph
            .values()
            .filter(|&v| plan.steps().iter().any(|s| s.value == v) || graph.inputs().any(|(_, i)| i == v));
        let offsets = executed.filter_map(|v| match plan.place(v) {
            Location::Arena(span) => Some(span.offset),
            _ => None,
        });
        let all = offsets.chain(plan.steps().iter().filter_map(|s| Some(s.scratch?.offset)));
        let misaligned = all.into_iter().any(|o| !o.is_multiple_of(coarse.alignment()));
        assert_eq!(plan.verify(&graph, &coarse).is_err(), misaligned, "tensors that are not aligned");
        alignments += usize::from(misaligned);
    });
    assert!(
        scratch.min(overwrites).min(alignments) > 100,
        "{scratch}, {overwrites}, {alignments}: too few to mean much"
    );
}
