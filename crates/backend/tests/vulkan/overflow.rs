//! Networks whose values are larger than a half can be, as those of the autoencoder of Stable Diffusion XL are.

use impasto_backend::cpu::{Cpu, CpuOptions, Precision};
use impasto_backend::{Backend, Params};
use impasto_graph::{DType, Graph, HostTensor, Plan, Storage};
use impasto_model::{CheckpointLayout, ElementTypes, VaeConfig, ZImage, ZImageConfig, vae_decoder};

use super::common::cpus::machines;
use super::common::rng::{Rng, seed};

fn run(backend: &dyn Backend, graph: &Graph, params: &Params, inputs: &[(&str, HostTensor)]) -> Vec<f32> {
    let plan = Plan::new(graph, &*backend.profile()).expect("it fits");
    let weights = backend.pack(graph, &plan, params).expect("weights");
    let mut session = backend.prepare(graph, &plan, &weights).expect("a session");
    let inputs: Vec<(&str, &HostTensor)> = inputs.iter().map(|(name, tensor)| (*name, tensor)).collect();
    session.run_to_new(&inputs).expect("a result").remove(0).to_f32()
}

/// Random parameters; those that `large` names are so many times larger.
fn parameters(graph: &Graph, large: impl Fn(&str) -> Option<f64>, rng: &mut Rng) -> Params {
    let mut params = Params::new();
    for (name, value) in graph.params() {
        let shape = &graph.ty(value).shape;
        let fan_in: usize = shape.iter().skip(1).product();
        let scale = large(name).unwrap_or(1.0) / (fan_in as f64).sqrt();
        let numbers = (0..graph.ty(value).elements()).map(|_| (scale * rng.normal()) as f32);
        params.insert(name, HostTensor::f32(shape.clone(), numbers.collect()).expect("a parameter"));
    }
    params
}

/// The exact result, and that of every device with what it keeps between layers.
fn compare(graph: &dyn Fn(DType) -> Graph, params: &Params, inputs: &[(&str, HostTensor)]) {
    let cpu = Cpu::new(&CpuOptions { precision: Precision::F32, ..CpuOptions::default() }).expect("there is a CPU");
    let want = run(&cpu, &graph(DType::F32), params, inputs);
    assert!(want.iter().all(|x| x.is_finite()));
    for machine in machines() {
        let got = run(&*machine.backend, &graph(machine.backend.profile().activations()), params, inputs);
        let square = |x: f64| x * x;
        let apart: f64 = want.iter().zip(&got).map(|(&a, &b)| square(f64::from(a - b))).sum();
        let all: f64 = want.iter().map(|&a| square(f64::from(a))).sum();
        println!("{}: {:.1e}", machine.name, (apart / all).sqrt());
        assert!((apart / all).sqrt() < 2e-2, "{}: {}", machine.name, (apart / all).sqrt());
    }
}

/// What lies between the two products of Z-Image's feed-forward layers is some hundred thousand here: more than a half holds (65,504), and far
/// below what it holds of numbers divided by 64. Scales of norms are random too, so that a few tokens have some ten times the others' values.
#[test]
fn a_transformer_whose_products_no_half_holds() {
    let mut rng = Rng::new(seed());
    let config = ZImageConfig {
        channels: 16,
        width: 64,
        head: 32,
        inner: 96,
        blocks: 2,
        refiners: 1,
        text: 32,
        time: 64,
        time_inner: 64,
    };
    let z = ZImage { config, layout: CheckpointLayout::Diffusers };
    let graph = |activations| {
        let numbers = ElementTypes { storage: Storage::Dense(DType::F32), activations };
        z.graph(1, [32, 32], numbers).expect("a transformer")
    };
    let large = |name: &str| (name.contains("feed_forward.w1") || name.contains("feed_forward.w3")).then_some(100.0);
    let params = parameters(&graph(DType::F32), large, &mut rng);
    let mut random = |shape: &[usize]| {
        let numbers = (0..shape.iter().product::<usize>()).map(|_| rng.normal() as f32).collect();
        HostTensor::f32(shape.to_vec(), numbers).expect("it fits")
    };
    let [cos, sin] = z.tables(32, [4, 8]).expect("tables");
    let zeros = |shape: &[usize]| HostTensor::f32(shape.to_vec(), vec![0.0; 64]).expect("it fits");
    let inputs = [
        ("tokens", random(&[1, 32, 16])),
        ("text", random(&[1, 32, 32])),
        ("time", HostTensor::f32([1], vec![400.0]).expect("it fits")),
        ("filled", zeros(&[1, 64, 1])),
        ("hidden", zeros(&[1, 1, 1, 64])),
        ("cos", cos),
        ("sin", sin),
    ];
    compare(&graph, &params, &inputs);
}

impasto_testkit::trial! {
    long fn a_decoder_whose_values_no_half_holds() {
        let mut rng = Rng::new(seed());
        let config = VaeConfig { latent: 4, channels: vec![32, 64], resnets: 1, quant_conv: true };
        let graph = |activations| {
            let numbers = ElementTypes { storage: Storage::Dense(DType::F32), activations };
            vae_decoder(&config, 1, [6, 5], numbers).expect("a decoder")
        };
        // What comes out of these convolutions is a few hundred thousand: a norm follows, or it is the residual stream. Weights themselves are halves in every
        // model.
        let large = |name: &str| (name.ends_with("conv1.weight") || name.ends_with("conv_in.weight")).then_some(5e4);
        let params = parameters(&graph(DType::F32), large, &mut rng);
        let latent = (0..4 * 6 * 5).map(|_| 5.0 * rng.normal() as f32);
        let latent = HostTensor::f32([1, 6, 5, 4], latent.collect()).expect("a latent");
        compare(&graph, &params, &[("latent", latent)]);
    }
}
