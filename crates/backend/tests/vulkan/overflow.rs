//! Networks whose values are larger than a half can be, as those of the autoencoder of Stable Diffusion XL are.

use impasto_backend::cpu::{Cpu, CpuOptions, Precision};
use impasto_backend::{Backend, Params};
use impasto_graph::{DType, Graph, HostTensor, Plan, Storage};
use impasto_model::{ElementTypes, VaeConfig, vae_decoder};

use super::common::cpus::machines;
use super::common::rng::{Rng, seed};

fn run(backend: &dyn Backend, graph: &Graph, params: &Params, latent: &HostTensor) -> Vec<f32> {
    let plan = Plan::new(graph, &*backend.profile()).expect("it fits");
    let weights = backend.pack(graph, &plan, params).expect("weights");
    let mut session = backend.prepare(graph, &plan, &weights).expect("a session");
    let name = session.inputs()[0].0.clone();
    session.run_to_new(&[(name.as_str(), latent)]).expect("a result").remove(0).to_f32()
}

#[test]
fn a_decoder_whose_values_no_half_holds() {
    let mut rng = Rng::new(seed());
    let config = VaeConfig { latent: 4, channels: vec![32, 64], resnets: 1, quant_conv: true };
    let graph = |activations| {
        let numbers = ElementTypes { storage: Storage::Dense(DType::F32), activations };
        vae_decoder(&config, 1, [6, 5], numbers).expect("a decoder")
    };
    let exact = graph(DType::F32);
    let mut params = Params::new();
    for (name, value) in exact.params() {
        let shape = &exact.ty(value).shape;
        let fan_in: usize = shape.iter().skip(1).product();
        // What comes out of these convolutions is a few hundred thousand: a norm follows, or it is the residual stream. Weights themselves
        // are halves in every model.
        let large = name.ends_with("conv1.weight") || name.ends_with("conv_in.weight");
        let scale = if large { 5e4 } else { 1.0 } / (fan_in as f64).sqrt();
        let numbers = (0..exact.ty(value).elements()).map(|_| (scale * rng.normal()) as f32);
        params.insert(name, HostTensor::f32(shape.clone(), numbers.collect()).expect("a parameter"));
    }
    let latent = (0..4 * 6 * 5).map(|_| 5.0 * rng.normal() as f32);
    let latent = HostTensor::f32([1, 6, 5, 4], latent.collect()).expect("a latent");
    let cpu = Cpu::new(&CpuOptions { precision: Precision::F32, ..CpuOptions::default() }).expect("there is a CPU");
    let want = run(&cpu, &exact, &params, &latent);
    assert!(want.iter().all(|x| x.is_finite()));
    for machine in machines() {
        let got = run(&*machine.backend, &graph(machine.backend.profile().activations()), &params, &latent);
        let square = |x: f64| x * x;
        let apart: f64 = want.iter().zip(&got).map(|(&a, &b)| square(f64::from(a - b))).sum();
        let all: f64 = want.iter().map(|&a| square(f64::from(a))).sum();
        assert!((apart / all).sqrt() < 2e-2, "{}: {}", machine.name, (apart / all).sqrt());
    }
}
