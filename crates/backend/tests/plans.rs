//! Whole graphs, planned and executed. The ops are known to be right alone (`ops`); here they share an arena, take each
//! other's places and read views, and the result must still be that of the reference.

use std::sync::Barrier;

use crate::common::case::{Case, tensor};
use crate::common::cpus::machines;
use crate::common::exam::{Bar, compare};
use crate::common::machine::{Machine, same_bits};
use crate::common::networks::{tiny_networks, tiny_vae};
use crate::common::reference::interpret;
use crate::common::rng::{Rng, cases, seed};
use impasto_backend::cpu::{Cpu, CpuOptions, Isa, Precision};
use impasto_backend::{Backend, BackendError, ParamError, ParamInfo, Params, WeightSource};
use impasto_graph::{DType, Epilogue, Graph, GraphError, HostTensor, Plan, PlanError, Storage, Unary};
use impasto_model::{ElementTypes, vae_decoder};
use impasto_testkit::graph::random_graph::{Kind, random_graph};

/// After many ops little roundings have grown; bytes that were overwritten are off by far more.
const CHAIN: Bar = Bar { f32: 2e-3, bf16: 5e-2, exact: f64::INFINITY };

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

/// All results of a case on one machine against the reference.
fn check(case: &Case, machine: &Machine, results: &[HostTensor], reference: &[Vec<f64>], bar: f64) {
    for (output, got) in case.graph.outputs().iter().zip(results) {
        if let Err(problem) = compare(got, &reference[output.value.index()], bar, 1.0) {
            panic!("{machine}: output '{}' = {}: {problem}\n{}", output.name, output.value, case.graph);
        }
    }
}

#[test]
fn random_graphs_yield_what_the_reference_yields() {
    cases(5000, |i, rng| {
        let (case, exact) = tame_case(1 + i / 100, rng);
        let rounded = interpret(&case.graph, &case.given, true);
        for _ in 0..3 {
            let machine = &machines()[rng.below(machines().len())];
            let results = machine.run(&case);
            match machine.bf16() {
                true => check(&case, machine, &results, &rounded, CHAIN.bf16),
                false => check(&case, machine, &results, &exact, CHAIN.f32),
            }
        }
    });
}

#[test]
fn tiny_networks_yield_what_the_reference_yields() -> Result<(), GraphError> {
    let rng = &mut Rng::new(seed());
    for numbers in [ElementTypes::F32, ElementTypes::BF16] {
        for graph in tiny_networks(numbers)? {
            let case = Case::new(graph, rng);
            let [exact, rounded] = [false, true].map(|round| interpret(&case.graph, &case.given, round));
            for machine in machines().iter().filter(|m| m.threads == 2) {
                let results = machine.run(&case);
                let bar = if numbers == ElementTypes::F32 { 1e-4 } else { 2e-2 };
                match machine.bf16() {
                    true => check(&case, machine, &results, &rounded, 2e-2),
                    false => check(&case, machine, &results, &exact, bar),
                }
            }
        }
    }
    Ok(())
}

fn assert_same(a: &[HostTensor], b: &[HostTensor], what: &str) {
    assert!(same_bits(a, b), "{what}");
}

/// The same seed gives the same picture, on a machine with more cores too; and a run leaves nothing behind that the next
/// one could see.
#[test]
fn results_depend_neither_on_threads_nor_on_earlier_runs() -> Result<(), GraphError> {
    let rng = &mut Rng::new(seed());
    let mut all: Vec<Case> = vec![];
    for numbers in [ElementTypes::F32, ElementTypes::BF16] {
        all.extend(tiny_networks(numbers)?.into_iter().map(|graph| Case::new(graph, rng)));
    }
    all.extend((0..40).map(|i| tame_case(3 + i, rng).0));
    for (i, case) in all.iter().enumerate() {
        let mut first: Option<(String, Vec<HostTensor>)> = None;
        for machine in machines() {
            let mut session = machine.prepare(case);
            let mut run = || session.run_to_new(&case.inputs()).expect("the inputs are all there");
            let (one, two) = (run(), run());
            assert_same(&one, &two, &format!("{machine}, case {i}: the second run differs"));
            match &first {
                Some((path, results)) if *path == machine.path() => {
                    assert_same(results, &one, &format!("{machine}, case {i}: differs from one thread"));
                }
                _ => first = Some((machine.path(), one)),
            }
        }
    }
    Ok(())
}

/// A query's result is its own: where others are cut off, its bits stay. Scores rise and fall over the keys, by row in its own way, so
/// that running maxima change in different places, and some rows are of another size than their neighbours.
#[test]
fn a_row_of_attention_does_not_depend_on_its_neighbours() {
    let (queries, keys, width) = (75, 300, 40);
    cases(9, |i, rng| {
        let factors: &[f64] = [&[1.0][..], &[0.1, 1.0], &[0.1, 1.0, 1.0, 1.0, 3e5]][i % 3];
        let sizes: Vec<f64> = (0..queries).map(|i| (1 + i % 7) as f64 * rng.pick(factors)).collect();
        let q: Vec<f64> = (0..queries * width).map(|i| sizes[i / width] * rng.normal()).collect();
        let k: Vec<f64> = (0..keys * width).map(|i| (i / width) as f64 * 0.02 * rng.normal()).collect();
        let v: Vec<f64> = (0..keys * width).map(|_| rng.normal()).collect();
        let case = |first: usize, rng: &mut Rng| -> Result<Case, GraphError> {
            let mut graph = Graph::new();
            let q_in = graph.input("q", [1, queries - first, width], DType::F32)?;
            let [k_in, v_in] = ["k", "v"].map(|name| graph.input(name, [1, keys, width], DType::F32));
            let out = graph.attention(q_in, k_in?, v_in?, 1, false)?;
            graph.output("y", out)?;
            let mut case = Case::new(graph, rng);
            case.set("q", q[first * width..].iter().copied());
            case.set("k", k.iter().copied());
            case.set("v", v.iter().copied());
            Ok(case)
        };
        let first = rng.between(1, queries - 1);
        let (whole, part) = (case(0, rng).expect("it fits"), case(first, rng).expect("it fits"));
        for machine in machines() {
            let [whole, part] = [&whole, &part].map(|case| machine.run(case).remove(0).to_f32());
            assert!(whole.iter().all(|x| x.is_finite()));
            let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            assert!(bits(&whole[first * width..]) == bits(&part), "{machine}: without the first {first} others differ");
        }
    });
}

/// Two modules on one device, driven by two threads: each gets its own result.
#[test]
fn two_sessions_on_one_cpu_may_run_at_the_same_time() {
    let rng = &mut Rng::new(seed());
    let pairs: Vec<[Case; 2]> = (0..6).map(|_| [0, 1].map(|_| tame_case(20, rng).0)).collect();
    for machine in machines().iter().filter(|m| m.threads > 1) {
        for pair in &pairs {
            let alone = pair.each_ref().map(|case| machine.run(case));
            let start = Barrier::new(2);
            std::thread::scope(|scope| {
                for (case, alone) in pair.iter().zip(&alone) {
                    scope.spawn(|| {
                        let mut session = machine.prepare(case);
                        start.wait();
                        for _ in 0..20 {
                            let results = session.run_to_new(&case.inputs()).expect("the inputs are all there");
                            assert_same(
                                &results,
                                alone,
                                &format!("{machine}: differs from a run alone\n{}", case.graph),
                            );
                        }
                    });
                }
            });
        }
    }
}

/// The parameters of a model are loaded once, and serve plans for several sizes.
#[test]
fn plans_of_one_model_share_their_weights() -> Result<(), Box<dyn std::error::Error>> {
    let rng = &mut Rng::new(seed());
    let vae = tiny_vae();
    let small = Case::new(vae_decoder(&vae, 1, [3, 5], ElementTypes::F32)?, rng);
    let large = vae_decoder(&vae, 2, [8, 6], ElementTypes::F32)?;
    for machine in machines().iter().filter(|m| m.threads == 2) {
        let plans =
            [Plan::new(&small.graph, &*machine.backend.profile())?, Plan::new(&large, &*machine.backend.profile())?];
        let weights = machine.backend.pack(&small.graph, &plans[0], &small)?;
        let mut session = machine.backend.prepare(&large, &plans[1], &weights)?;
        let mut own = Case::new(large.clone(), rng);
        for (name, value) in small.graph.params() {
            let same = large.params().find(|(n, _)| *n == name).expect("the same model");
            own.put(same.1, small.given[&value].clone());
        }
        let shared = session.run_to_new(&own.inputs())?;
        assert_same(&shared, &machine.run(&own), &format!("{machine}: shared weights differ from own ones"));
    }
    Ok(())
}

fn cpu() -> Cpu {
    let options = CpuOptions { threads: Some(2), precision: Precision::F32, ..CpuOptions::default() };
    Cpu::untried(Isa::Portable, &options).expect("the portable path is everywhere")
}

/// `y = silu(x w + b)`, and an input that nothing reads.
fn layer() -> Result<Graph, GraphError> {
    let mut graph = Graph::new();
    let x = graph.input("x", [3, 4], DType::F32)?;
    graph.input("unused", [2], DType::I32)?;
    let w = graph.param("w", [5, 4], Storage::Dense(DType::F16))?;
    let b = graph.param("b", [5], Storage::Dense(DType::F32))?;
    let y = graph.linear(x, w, Epilogue::new().bias(b).activation(Unary::Silu))?;
    graph.output("y", y)?;
    Ok(graph)
}

#[test]
fn wrong_inputs_and_outputs_are_named() -> Result<(), Box<dyn std::error::Error>> {
    let rng = &mut Rng::new(seed());
    let (cpu, case) = (cpu(), Case::new(layer()?, rng));
    let plan = Plan::new(&case.graph, &cpu)?;
    let mut session = cpu.prepare(&case.graph, &plan, &cpu.pack(&case.graph, &plan, &case)?)?;
    let good = session.run_to_new(&case.inputs())?;

    let of = |shape: &[usize], dtype| tensor(shape, dtype, (0..shape.iter().product()).map(|i| i as f64));
    let (x, unused) = (of(&[3, 4], DType::F32), of(&[2], DType::I32));
    let (turned, half, whole) = (of(&[4, 3], DType::F32), of(&[3, 4], DType::F16), of(&[3, 4], DType::I32));
    let wrong: [(&str, Vec<(&str, &HostTensor)>); 7] = [
        ("x", vec![]),
        ("x", vec![("unused", &unused)]),
        ("unused", vec![("x", &x)]),
        ("x", vec![("x", &turned), ("unused", &unused)]),
        ("x", vec![("x", &half), ("unused", &unused)]),
        ("x", vec![("x", &whole), ("unused", &unused)]),
        ("z", vec![("x", &x), ("unused", &unused), ("z", &x)]),
    ];
    for (culprit, inputs) in wrong {
        match session.run_to_new(&inputs) {
            Err(BackendError::Io { kind: "input", name, problem }) => {
                assert!(name == culprit && !problem.is_empty(), "{name}: {problem}");
            }
            other => panic!("the input '{culprit}' is wrong: {other:?}"),
        }
    }
    let y = of(&[3, 5], DType::F32);
    let wrong_rooms =
        [vec![], vec![y.clone(), y.clone()], vec![of(&[5, 3], DType::F32)], vec![of(&[3, 5], DType::BF16)]];
    for mut room in wrong_rooms {
        let result = session.run(&case.inputs(), &mut room);
        assert!(matches!(result, Err(BackendError::Io { kind: "output", .. })), "{result:?}");
    }
    // None of that has harmed the session.
    assert_same(&good, &session.run_to_new(&case.inputs())?, "after errors the result differs");
    Ok(())
}

/// Parameters of which one is changed.
struct Changed<'a>(&'a Case, &'a (dyn Fn(&str, &mut ParamInfo) + Sync));

impl WeightSource for Changed<'_> {
    fn describe(&self, name: &str) -> Result<ParamInfo, ParamError> {
        let mut info = self.0.describe(name)?;
        (self.1)(name, &mut info);
        Ok(info)
    }

    fn read_into(&self, name: &str, offset: u64, out: &mut [u8]) -> Result<(), ParamError> {
        self.0.read_into(name, offset, out)
    }
}

#[test]
fn wrong_parameters_are_named() -> Result<(), Box<dyn std::error::Error>> {
    let rng = &mut Rng::new(seed());
    let (cpu, case) = (cpu(), Case::new(layer()?, rng));
    let plan = Plan::new(&case.graph, &cpu)?;
    let changes: [&(dyn Fn(&mut ParamInfo) + Sync); 6] = [
        &|p| p.shape.reverse(),
        &|p| p.shape.push(1),
        &|p| p.storage = Storage::Dense(DType::I32),
        &|p| p.storage = Storage::Q8_0,
        &|p| p.bytes = 7,
        &|p| p.bytes += 2,
    ];
    for (i, change) in changes.into_iter().enumerate() {
        let source = Changed(&case, &|name, bytes| {
            if name == "w" {
                change(bytes)
            }
        });
        match cpu.pack(&case.graph, &plan, &source) {
            Err(BackendError::Param { name, problem }) => assert!(name == "w" && !problem.is_empty()),
            Err(other) => panic!("change {i}: {other}"),
            Ok(_) => panic!("change {i} went unnoticed"),
        }
    }
    let mut params = Params::new();
    params.insert("w", tensor(&[5, 4], DType::F16, (0..20).map(f64::from)));
    match cpu.pack(&case.graph, &plan, &params) {
        Err(BackendError::Param { name, .. }) => assert_eq!(name, "b"),
        other => panic!("'b' is missing: {:?}", other.err()),
    }
    Ok(())
}

#[test]
fn weights_of_another_model_or_precision_are_refused() -> Result<(), Box<dyn std::error::Error>> {
    let rng = &mut Rng::new(seed());
    let (cpu, case) = (cpu(), Case::new(layer()?, rng));
    let plan = Plan::new(&case.graph, &cpu)?;
    let weights = cpu.pack(&case.graph, &plan, &case)?;

    let bf16 = CpuOptions { precision: Precision::Bf16, threads: Some(2), ..CpuOptions::default() };
    let other = Cpu::untried(Isa::Portable, &bf16).expect("the portable path is everywhere");
    let refused = other.prepare(&case.graph, &Plan::new(&case.graph, &other)?, &weights);
    assert!(matches!(refused.err(), Some(BackendError::Param { name, .. }) if name == "w"));

    let mut graph = Graph::new();
    let x = graph.input("x", [3, 4], DType::F32)?;
    let w = graph.param("another", [5, 4], Storage::Dense(DType::F16))?;
    let y = graph.linear(x, w, Epilogue::new())?;
    graph.output("y", y)?;
    let refused = cpu.prepare(&graph, &Plan::new(&graph, &cpu)?, &weights);
    assert!(matches!(refused.err(), Some(BackendError::Param { name, .. }) if name == "another"));
    Ok(())
}

/// Memory that the machine does not have is an error, not an abort.
#[test]
fn memory_that_is_not_there_is_refused() -> Result<(), Box<dyn std::error::Error>> {
    let mut graph = Graph::new();
    let x = graph.input("x", [1 << 24, 1 << 20], DType::F32)?; // 64 TiB
    let y = graph.unary(Unary::Neg, x)?;
    graph.output("y", y)?;
    // By default the plan is refused; whoever says that there is more memory than there is hears it from the system.
    assert!(matches!(Plan::new(&graph, &cpu()), Err(PlanError::Memory { .. })), "no machine has 64 TiB");
    let cpu = Cpu::new(&CpuOptions { memory: Some(u64::MAX), ..CpuOptions::default() })?;
    let plan = Plan::new(&graph, &cpu)?;
    let weights = cpu.pack(&graph, &plan, &Params::new())?;
    match cpu.prepare(&graph, &plan, &weights) {
        Err(BackendError::Exhausted { bytes, .. }) => assert_eq!(bytes, plan.arena_bytes()),
        Err(other) => panic!("{other}"),
        Ok(_) => println!("this machine has, or promises, {} bytes", plan.arena_bytes()),
    }
    Ok(())
}

#[test]
fn a_plan_over_the_memory_that_may_be_used_is_refused() -> Result<(), GraphError> {
    let options = |memory| CpuOptions { memory: Some(memory), threads: Some(1), ..CpuOptions::default() };
    let with = |memory| Cpu::untried(Isa::Portable, &options(memory)).expect("the portable path is everywhere");
    let graph = layer()?;
    let plan = Plan::new(&graph, &with(u64::MAX)).expect("nothing is limited");
    let need = plan.arena_bytes() + plan.weight_bytes();
    assert_eq!(Plan::new(&graph, &with(need)).as_ref(), Ok(&plan));
    match Plan::new(&graph, &with(need - 1)) {
        Err(PlanError::Memory { need: said, limit, .. }) => assert_eq!([said, limit], [need, need - 1]),
        other => panic!("{need} bytes do not fit: {other:?}"),
    }
    Ok(())
}

#[test]
fn unknown_settings_are_explained() {
    for text in ["", "AVX2", "sse", "amx "] {
        match text.parse::<Isa>() {
            Err(BackendError::Setting(message)) => {
                assert!(Isa::ALL.iter().all(|isa| message.contains(isa.name())), "{message}");
            }
            other => panic!("'{text}': {other:?}"),
        }
        assert!(matches!(text.parse::<Precision>(), Err(BackendError::Setting(_))));
    }
    for isa in Isa::ALL {
        assert_eq!(isa.name().parse::<Isa>(), Ok(isa));
    }
}

/// A path that kills the process on a lying processor is tried out in a child first; this program has no hook for that.
#[test]
fn without_a_trial_amx_is_not_used() {
    let chosen = Cpu::new(&CpuOptions::default()).expect("some path can be used");
    assert_ne!(chosen.isa(), Isa::Amx);
    match Cpu::new(&CpuOptions { isa: Some(Isa::Amx), ..CpuOptions::default() }) {
        Err(BackendError::Setting(message)) => assert!(message.contains("amx"), "{message}"),
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("AMX is used and was not tried"),
    }
}

#[test]
fn an_unknown_path_in_the_environment_is_an_error() {
    // In a child: the environment belongs to all threads of a process.
    let program = std::env::current_exe().expect("this program has a name");
    let child = std::process::Command::new(program)
        .args(["--ignored", "--exact", "plans::child_with_an_unknown_path"])
        .env("IMPASTO_CPU", "mmx")
        .output()
        .expect("the child starts");
    let said = String::from_utf8_lossy(&child.stdout);
    assert!(child.status.success() && said.contains("1 passed"), "{said}");
}

#[test]
#[ignore = "started as a child by another test"]
fn child_with_an_unknown_path() {
    match CpuOptions::from_env() {
        Err(BackendError::Setting(message)) => {
            assert!(["IMPASTO_CPU", "mmx", "portable"].iter().all(|part| message.contains(part)), "{message}");
        }
        other => panic!("{other:?}"),
    }
}
