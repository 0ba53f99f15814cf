//! Text encoders on a Vulkan device against the CPU, which is held to transformers; with weights as they are, and with weights that make more of a text
//! between the two products of a layer than a half can be, as T5-XXL and Qwen do.

use impasto_backend::cpu::{Cpu, CpuOptions, Precision};
use impasto_backend::{Backend, Params};
use impasto_graph::{DType, Graph, HostTensor, Plan, Storage};
use impasto_model::{ElementTypes, Inputs, Llm, LlmConfig, LlmLayout, LlmStates, T5, T5Config, T5Layout};

use super::common::cpus::machines;
use super::common::machine::Factors;
use super::common::rng::{Rng, seed};

fn run(backend: &dyn Backend, build: &Build, params: &Params, inputs: &Inputs) -> Vec<f32> {
    let activations = backend.profile().activations();
    let graph = build(ElementTypes { storage: Storage::Dense(DType::F32), activations });
    let plan = Plan::new(&graph, &*backend.profile()).expect("it fits");
    let weights = backend.pack(&graph, &plan, params).expect("weights");
    let mut session = backend.prepare(&graph, &plan, &weights).expect("a session");
    let inputs: Vec<(&str, &HostTensor)> = inputs.iter().map(|(name, tensor)| (*name, tensor)).collect();
    session.run_to_new(&inputs).expect("a result").remove(0).to_f32()
}

type Build<'a> = dyn Fn(ElementTypes) -> Graph + 'a;

/// Weights that keep the size of what they multiply; those of a gated layer's first products make it `large` times as large.
fn params(graph: &Graph, large: f64, rng: &mut Rng) -> Params {
    let mut params = Params::new();
    for (name, value) in graph.params() {
        let shape = &graph.ty(value).shape;
        let fan_in: usize = shape.iter().skip(1).product();
        let gated = ["wi_0", "wi_1", "gate_proj", "up_proj"].iter().any(|layer| name.contains(layer));
        let number = |rng: &mut Rng| match shape.len() {
            1 if name.ends_with("weight") => 1.0 + 0.1 * rng.normal(),
            1 => 0.1 * rng.normal(),
            _ => (if gated { large } else { 1.0 }) * rng.normal() / (fan_in as f64).sqrt(),
        };
        let numbers = (0..graph.ty(value).elements()).map(|_| number(rng) as f32).collect();
        params.insert(name, HostTensor::f32(shape.clone(), numbers).expect("a parameter"));
    }
    params
}

fn check(what: &str, build: &Build, inputs: &Inputs) {
    let mut rng = Rng::new(seed());
    let cpu = |precision| Cpu::new(&CpuOptions { precision, ..CpuOptions::default() }).expect("there is a CPU");
    let (exact, narrow) = (cpu(Precision::F32), cpu(Precision::Bf16));
    // The largest half is 65504: the product of two factors of 400 is above it at every place.
    for large in [1.0, 400.0] {
        let params = params(&build(ElementTypes::F32), large, &mut rng);
        let want = run(&exact, build, &params, inputs);
        assert!(want.iter().all(|x| x.is_finite()));
        let others = machines().iter().map(|m| (&*m.backend, m.name.as_str(), m.factors == Factors::F32));
        for (backend, name, f32) in others.chain([(&narrow as &dyn Backend, "CPU in bf16", false)]) {
            let got = run(backend, build, &params, inputs);
            let square = |x: f32| f64::from(x) * f64::from(x);
            let apart: f64 = want.iter().zip(&got).map(|(a, b)| square(a - b)).sum();
            let error = (apart / want.iter().map(|a| square(*a)).sum::<f64>()).sqrt();
            println!("{what}, weights times {large}, {name}: {error:.1e}");
            assert!(error < if f32 { 1e-4 } else { 4e-2 }, "{what}, weights times {large}, {name}: {error}");
        }
    }
}

fn ids([batch, tokens]: [usize; 2]) -> HostTensor {
    HostTensor::i32([batch, tokens], (0..batch * tokens).map(|i| (i * 37 % 90) as i32).collect()).expect("ids")
}

#[test]
fn t5_whose_values_no_half_holds() {
    let config = T5Config { vocabulary: 90, width: 64, layers: 2, heads: 8, head: 4, inner: 96, buckets: 32 };
    let t5 = T5 { config, layout: T5Layout::Transformers };
    let inputs = t5.inputs(ids([2, 19]), Some(&[19, 6])).expect("inputs");
    check("T5", &|numbers| t5.graph([2, 19], true, numbers).expect("it builds"), &inputs);
}

#[test]
fn a_language_model_whose_values_no_half_holds() {
    let config = LlmConfig {
        vocabulary: 90,
        width: 64,
        layers: 2,
        heads: [4, 2],
        head: 16,
        inner: 96,
        // As no model has both: one graph with all that they have.
        biases: true,
        ..LlmConfig::qwen3_4b()
    };
    let llm = Llm { config, layout: LlmLayout::Transformers };
    let states = LlmStates { after: vec![1, 2], norm: true, masked: true };
    let inputs = llm.inputs(ids([2, 19]), &[19, 6], &states).expect("inputs");
    check("language model", &|numbers| llm.graph([2, 19], &states, numbers).expect("it builds"), &inputs);
}
