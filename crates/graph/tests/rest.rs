//! Values that rest in host memory, on random graphs. If one of these failed, a user would see a wrong picture (a value that is read before it came
//! back), or a budget that is not kept.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use crate::common::audit::audit;
use impasto_graph::{Binary, Capabilities, DType, Graph, Limits, Location, May, Op, Plan, PlanError, Used, Value};
use impasto_testkit::graph::random_graph::{Kind, random_graph};
use impasto_testkit::graph::rng::cases;

const MAY_REST: May = May { stream: false, rest: true };

/// A device whose answers depend on ops and types only, so that they are the same for the same op in two graphs.
#[derive(Clone, Copy, Debug)]
struct Device {
    memory: u64,
    host: u64,
}

impl Capabilities for Device {
    fn limits(&self) -> Limits {
        Limits { memory: self.memory, ..Limits::UNLIMITED }
    }

    fn alignment(&self) -> u64 {
        16
    }

    fn supports(&self, _: &Graph, _: Value) -> Result<(), String> {
        Ok(())
    }

    fn scratch_bytes(&self, graph: &Graph, value: Value) -> u64 {
        match graph.node(value).op {
            Op::Conv2d { .. } | Op::Attention { .. } => graph.ty(value).bytes() / 3,
            _ => 0,
        }
    }

    fn may_overwrite(&self, graph: &Graph, value: Value, operand: usize) -> bool {
        matches!(graph.node(value).op, Op::Unary(_) | Op::Binary(_) | Op::Affine { .. }) && operand == 0
    }

    fn param_bytes(&self, graph: &Graph, param: Value, _: Used) -> u64 {
        graph.ty(param).bytes()
    }

    fn host_memory(&self) -> u64 {
        self.host
    }
}

/// What each result means: a number made of all ops that lead to it. Where something lies means nothing.
fn meaning(graph: &Graph) -> HashMap<String, u64> {
    let mut numbers: Vec<u64> = vec![];
    for value in graph.values() {
        let node = graph.node(value);
        let operands: Vec<u64> = node.inputs.iter().map(|input| numbers[input.index()]).collect();
        numbers.push(if node.op.is_copy() {
            operands[0]
        } else {
            let mut hash = DefaultHasher::new();
            (format!("{:?} {}", node.op, node.ty), operands).hash(&mut hash);
            hash.finish()
        });
    }
    graph.outputs().iter().map(|output| (output.name.clone(), numbers[output.value.index()])).collect()
}

/// Bytes that must be there at once whatever rests: those of the largest step, all inputs, and results.
fn least(graph: &Graph, plan: &Plan, device: &Device) -> u64 {
    let bytes = |value: Value| match plan.place(value) {
        Location::Arena(_) => graph.ty(value).bytes().next_multiple_of(device.alignment()),
        _ => 0,
    };
    // A view keeps all that it is a view of.
    let root = |mut value: Value| {
        while plan.steps().iter().all(|step| step.value != value) && !graph.node(value).inputs.is_empty() {
            value = graph.node(value).inputs[0];
        }
        value
    };
    let step = |value: Value| {
        let operands: u64 = graph.node(value).inputs.iter().map(|&input| bytes(root(input))).sum();
        operands + bytes(value) + device.scratch_bytes(graph, value).next_multiple_of(device.alignment())
    };
    let steps = plan.steps().iter().map(|at| step(at.value)).max().unwrap_or(0);
    let inputs: u64 = graph.inputs().map(|(_, value)| bytes(value)).sum();
    let outputs: u64 = graph.outputs().iter().map(|output| bytes(root(output.value))).sum();
    steps + inputs + outputs
}

#[test]
fn what_rests_comes_back_in_time_and_the_budget_is_kept() {
    let (mut rested, mut refused) = (0, 0);
    cases(3000, |i, rng| {
        let kind = if rng.chance(50) { Kind::Tame } else { Kind::Wild };
        let graph = random_graph(rng, 2 + i / 40, kind);
        let roomy = Device { memory: u64::MAX, host: u64::MAX };
        let whole = Plan::new(&graph, &roomy).expect("nothing is limited");
        let (weights, arena) = (whole.weight_bytes(), whole.arena_bytes());
        let room = (arena as f64 * (0.1 + rng.unit())) as u64;
        let device = Device { memory: weights + room, ..roomy };
        let (made, plan) = match Plan::fit(graph.clone(), &device, MAY_REST) {
            Ok(fitted) => fitted,
            Err(PlanError::Memory { need, limit, .. }) => {
                assert_eq!([need, limit], [weights + arena, device.memory], "it is said what the whole needs");
                let least = least(&graph, &whole, &roomy);
                assert!(room < 2 * least, "{room} bytes are refused, a step needs {least}\n{graph}");
                refused += 1;
                return;
            }
            Err(other) => panic!("{other}"),
        };
        plan.verify(&made, &device).unwrap_or_else(|problem| panic!("verify: {problem}\n{made}"));
        audit(&made, &plan, &device);
        assert!(plan.weight_bytes() + plan.arena_bytes() <= device.memory, "the budget is kept");
        assert_eq!(meaning(&made), meaning(&graph), "the same is computed\n{graph}\n{made}");
        let names = |graph: &Graph| graph.inputs().map(|(name, _)| name.to_owned()).collect::<Vec<_>>();
        assert_eq!(names(&made), names(&graph));
        if room >= arena {
            assert_eq!((made, plan), (graph, whole), "what fits is planned as ever");
            return;
        }
        // Another order may already do.
        if plan.host_bytes() == 0 {
            return;
        }
        rested += 1;
        assert!(plan.rested_bytes(&made) > 0);
        assert_eq!(plan.host_blocks().map(|block| block.bytes).sum::<u64>(), plan.host_bytes());
        let again: Graph = made.to_string().parse().expect("its own text");
        assert_eq!(again.to_string(), made.to_string());
        // Host memory is limited too.
        let poor = Device { host: plan.host_bytes() - 1, ..device };
        assert!(!matches!(Plan::fit(graph, &poor, MAY_REST), Ok((_, plan)) if plan.host_bytes() > poor.host));
    });
    println!("{rested} rested, {refused} were refused");
    assert!(rested > 300, "{rested} rested, {refused} were refused");
}

#[test]
fn weights_may_take_turns_as_well() {
    let mut both = 0;
    cases(2000, |i, rng| {
        let graph = random_graph(rng, 10 + i / 20, Kind::Tame);
        let roomy = Device { memory: u64::MAX, host: u64::MAX };
        let whole = Plan::new(&graph, &roomy).expect("nothing is limited");
        let all = whole.weight_bytes() + whole.arena_bytes();
        let device = Device { memory: (all as f64 * (0.1 + 0.8 * rng.unit())) as u64, ..roomy };
        let Ok((made, plan)) = Plan::fit(graph.clone(), &device, May { stream: true, rest: true }) else { return };
        plan.verify(&made, &device).unwrap_or_else(|problem| panic!("verify: {problem}\n{made}"));
        assert!(plan.device_weight_bytes() + plan.arena_bytes() <= device.memory, "the budget is kept");
        assert_eq!(meaning(&made), meaning(&graph));
        both += usize::from(plan.host_bytes() > 0 && plan.stream().is_some());
    });
    assert!(both > 3, "{both} did both");
}

/// The way down and up of a UNet: everything made on the way down is needed again on the way up.
#[test]
fn shortcuts_of_any_number_fit_the_room_of_a_few() {
    for depth in [5, 10, 100] {
        let mut graph = Graph::new();
        let mut made = vec![graph.input("x", [64, 64], DType::F32).expect("an input")];
        for i in 0..depth {
            made.push(graph.affine(made[i], 0.5, i as f32).expect("the same shape"));
        }
        let mut y = made[depth];
        for &before in made.iter().rev().skip(1) {
            y = graph.binary(Binary::Mul, y, before).expect("the same shape");
        }
        graph.output("y", y).expect("a result");
        let one = graph.ty(y).bytes();
        let device = Device { memory: 4 * one, host: u64::MAX };
        let refused = Plan::new(&graph, &device).expect_err("it is too much at once");
        assert!(matches!(refused, PlanError::Memory { .. }), "{refused}");
        let (made, plan) = Plan::fit(graph.clone(), &device, MAY_REST).expect("what rests makes room");
        plan.verify(&made, &device).expect("it is right");
        assert_eq!(meaning(&made), meaning(&graph));
        assert!(plan.arena_bytes() <= device.memory, "{}", plan.arena_bytes());
        // Each goes once and comes back once, but for the few that there is room for.
        assert!(plan.rested_bytes(&made) <= 2 * depth as u64 * one, "{}", plan.rested_bytes(&made));
    }
}

#[test]
fn only_what_rests_is_fetched_and_nothing_else_reads_it() {
    let mut graph = Graph::new();
    let x = graph.input("x", [4, 4], DType::F32).expect("an input");
    let rested = graph.rest(x).expect("it rests");
    let wrong = [graph.fetch(x), graph.affine(rested, 2.0, 0.0), graph.rest(rested)];
    for error in wrong {
        let text = error.expect_err("it is wrong").to_string();
        assert!(text.contains("rest"), "{text}");
    }
    let back = graph.fetch(rested).expect("it comes back");
    graph.output("y", back).expect("a result");
}
