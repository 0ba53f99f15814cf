//! Graphs in bands against the same graphs whole, bit by bit. If one of these failed, a picture that is too large for a device would not be the
//! picture that it should be.
//!
//! `IMPASTO_BAND_CASES=5000` makes the random ones a long test.

use std::sync::Arc;

use crate::common::banded::{check, random_cutting};
use crate::common::case::Case;
use crate::common::cpus::machines;
use crate::common::machine::{Factors, Machine};
use crate::common::rng::{Rng, cases, seed};
use impasto_backend::cpu::{Cpu, CpuOptions, Precision};
use impasto_graph::{Cutting, Graph, GraphError};
use impasto_model::{ElementTypes, Heads, UnetConfig, VaeConfig, unet, vae_decoder, vae_encoder};
use impasto_testkit::graph::random_graph::{Kind, random_graph};

fn long(usual: usize) -> usize {
    std::env::var("IMPASTO_BAND_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(usual)
}

#[test]
fn random_graphs_yield_the_same_bits_in_bands() {
    let mut cut = 0;
    cases(long(1500), |i, rng| {
        let case = Case::new(random_graph(rng, 1 + i % 40, Kind::Tame), rng);
        let machine = &machines()[rng.below(machines().len())];
        let cutting = random_cutting(&case, rng);
        cut += usize::from(check(&case, &cutting, machine) > 1);
    });
    assert!(cut > long(1500) / 3, "only {cut} graphs were cut: the test tests nothing");
}

/// The layouts of the models, as small as they can be.
fn vae() -> VaeConfig {
    VaeConfig { latent: 4, channels: vec![32, 32, 64, 64], resnets: 2, quant_conv: true }
}

fn sd1() -> UnetConfig {
    UnetConfig {
        in_channels: 4,
        out_channels: 4,
        channels: vec![32, 64, 64, 64],
        depth: vec![1, 1, 1, 0],
        mid_depth: 1,
        resnets: 2,
        heads: Heads::Count(2),
        context: 24,
        linear_projection: false,
        added: None,
    }
}

fn sdxl() -> UnetConfig {
    UnetConfig {
        channels: vec![32, 64, 64],
        depth: vec![0, 2, 3],
        mid_depth: 3,
        heads: Heads::Width(16),
        linear_projection: true,
        added: Some(10),
        ..sd1()
    }
}

/// Sizes of latents, odd ones among them.
const SIZES: [[usize; 2]; 20] = [
    [2, 2],
    [3, 2],
    [2, 5],
    [4, 4],
    [5, 3],
    [6, 4],
    [7, 7],
    [8, 3],
    [9, 4],
    [4, 9],
    [10, 5],
    [11, 3],
    [12, 4],
    [13, 2],
    [8, 8],
    [15, 3],
    [16, 4],
    [17, 2],
    [11, 7],
    [6, 13],
];

/// The path that this processor would use, in both precisions. One thread: how many there are decides nothing, and small networks spend
/// their time waiting for each other.
fn usual() -> [Machine; 2] {
    [(Precision::F32, Factors::F32), (Precision::Bf16, Factors::Bf16)].map(|(precision, factors)| {
        let options = CpuOptions { threads: Some(1), precision, ..CpuOptions::default() };
        let cpu = Cpu::new(&options).expect("nothing is forced");
        Machine { name: cpu.isa().to_string(), backend: Arc::new(cpu), factors, threads: 1, least: 0.0 }
    })
}

fn networks_in_bands(network: impl Fn([usize; 2], ElementTypes) -> Result<Graph, GraphError>) {
    let rng = &mut Rng::new(seed());
    let mut seen = vec![];
    for (i, size) in SIZES.into_iter().enumerate() {
        for machine in &usual() {
            let numbers = if machine.bf16() { ElementTypes::BF16 } else { ElementTypes::F32 };
            let graph = network(size, numbers).unwrap_or_else(|e| panic!("{e}"));
            let case = Case::new(graph, rng);
            seen.push(check(&case, &Cutting::bands(&case.graph, 2 + i as u64 % 15), machine));
        }
    }
    assert!(seen.iter().filter(|&&n| n > 1).count() * 10 >= seen.len() * 9, "few were cut: {seen:?}");
    assert!(seen.iter().any(|&n| n >= 12), "bands: {seen:?}");
}

#[test]
fn decoders_of_twenty_sizes() {
    networks_in_bands(|size, numbers| vae_decoder(&vae(), 1, size, numbers));
}

/// Sizes that no latent has, too: the encoder takes any picture.
#[test]
fn encoders_of_twenty_sizes() {
    networks_in_bands(|[h, w], numbers| vae_encoder(&vae(), 1, [8 * h + 5 * (h % 2), 8 * w + 3 * (w % 2)], numbers));
}

#[test]
fn unets_of_stable_diffusion_1_of_twenty_sizes() {
    // Among them some that cannot be halved at each level.
    let size = |[h, w]: [usize; 2]| [8 * h.div_ceil(2) - h % 4, 8 * w.div_ceil(2) - w % 3];
    networks_in_bands(|[h, w], numbers| unet(&sd1(), 1 + h % 2, size([h, w]), 5, numbers));
}

#[test]
fn unets_of_stable_diffusion_xl_of_twenty_sizes() {
    networks_in_bands(|[h, w], numbers| unet(&sdxl(), 1 + w % 2, [4 * h, 4 * w.div_ceil(2)], 7, numbers));
}
