//! Bands against the whole: time, memory, and whether the picture is the same.

use std::time::Instant;

use impasto_backend::cpu::Cpu;
use impasto_backend::{Backend, Profile};
use impasto_graph::{Banded, Cutting, DType, HostTensor, Plan, Storage};
use impasto_model::{Numbers, VaeConfig, vae_decoder, vae_encoder};
use serde::Serialize;

use super::model::by_op;
use super::{RandomWeights, median, random_inputs, room_for_outputs};

/// A decode in bands beside the same decode whole.
#[derive(Clone, Debug, Serialize)]
pub struct BandsTime {
    /// Bands of the largest level.
    pub bands: usize,
    /// Seconds of the whole, the median of several runs.
    pub whole_seconds: f64,
    /// Seconds in bands, of runs in between.
    pub banded_seconds: f64,
    /// The median of the ratios of runs that followed each other.
    pub ratio: f64,
    /// Every number of the picture has the same bits.
    pub same_bits: bool,
    /// Bytes of activations and scratch, whole and in bands.
    pub arena_bytes: [u64; 2],
    /// Seconds by kind of op in the last run, whole and in bands, the longest first.
    pub profile: [Vec<(String, f64)>; 2],
}

/// Decode on random weights of true size for a picture of `size` by `size`, whole and in bands by turns.
pub fn bands_time(cpu: &Cpu, size: usize, bands: u64, runs: usize) -> anyhow::Result<BandsTime> {
    let numbers = Numbers { storage: Storage::Dense(DType::F16), activations: cpu.activations() };
    let graph = vae_decoder(&VaeConfig::sd(), 1, [size / 8, size / 8], numbers)?;
    let banded = Banded::new(&graph, &Cutting::bands(&graph, bands))?;
    let plans = [Plan::new(&graph, cpu)?, Plan::new(&banded.graph, cpu)?];
    let weights = cpu.pack(&graph, &plans[0], &RandomWeights::of(&graph))?;
    let mut sessions = [cpu.prepare(&graph, &plans[0], &weights)?, cpu.prepare(&banded.graph, &plans[1], &weights)?];
    let inputs = random_inputs(&*sessions[0])?;
    let inputs: Vec<(&str, &HostTensor)> = inputs.iter().map(|(n, t)| (n.as_str(), t)).collect();
    let mut outputs = [room_for_outputs(&*sessions[0]), room_for_outputs(&*sessions[1])];
    let mut times = [vec![], vec![]];
    for _ in 0..runs.max(1) {
        for i in 0..2 {
            let start = Instant::now();
            sessions[i].run(&inputs, &mut outputs[i])?;
            times[i].push(start.elapsed().as_secs_f64());
        }
    }
    let mut ratios: Vec<f64> = times[0].iter().zip(&times[1]).map(|(whole, banded)| banded / whole).collect();
    let bits = |t: &HostTensor| t.to_f32().into_iter().map(f32::to_bits).collect::<Vec<_>>();
    Ok(BandsTime {
        bands: banded.cuts.bands(),
        whole_seconds: median(&mut times[0]),
        banded_seconds: median(&mut times[1]),
        ratio: median(&mut ratios),
        same_bits: outputs[0].iter().zip(&outputs[1]).all(|(a, b)| bits(a) == bits(b)),
        arena_bytes: [plans[0].arena_bytes(), plans[1].arena_bytes()],
        profile: [by_op(&*sessions[0]), by_op(&*sessions[1])],
    })
}

/// The plan of a network in bands.
#[derive(Clone, Debug, Serialize)]
pub struct BandsMemory {
    /// The network, its size, and the element type between its layers.
    pub name: String,
    /// Bands of the largest level; 1 is the whole.
    pub bands: usize,
    /// Bytes of activations and scratch.
    pub arena_bytes: u64,
    /// The largest tensor that an op reads or writes.
    pub largest_binding: u64,
    /// Ops that are executed.
    pub steps: usize,
    /// Seconds that cutting and planning took.
    pub seconds: f64,
}

/// Plans of the autoencoder for pictures of `size` by `size`, from whole to many bands; `show` gets each line as it is ready.
pub fn bands_memory(cpu: &Cpu, size: usize, mut show: impl FnMut(&BandsMemory)) -> anyhow::Result<()> {
    let vae = VaeConfig::sd();
    for numbers in [Numbers::F32, Numbers::BF16] {
        let networks = [
            ("decoder", vae_decoder(&vae, 1, [size / 8, size / 8], numbers)?),
            ("encoder", vae_encoder(&vae, 1, [size, size], numbers)?),
        ];
        for (name, graph) in networks {
            for bands in [1, 2, 4, 8, 16, 32] {
                let start = Instant::now();
                let banded = Banded::new(&graph, &Cutting::bands(&graph, bands))?;
                let plan = Plan::new(&banded.graph, cpu)?;
                let dtype = if numbers.activations == DType::F32 { "f32" } else { "bf16" };
                show(&BandsMemory {
                    name: format!("{name} {size} {dtype}"),
                    bands: banded.cuts.bands(),
                    arena_bytes: plan.arena_bytes(),
                    largest_binding: plan.largest_binding(),
                    steps: plan.steps().len(),
                    seconds: start.elapsed().as_secs_f64(),
                });
            }
        }
    }
    Ok(())
}
