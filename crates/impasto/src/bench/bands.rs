//! Bands against the whole: time, memory, and whether the picture is the same.

use std::time::Instant;

use impasto_backend::cpu::Cpu;
use impasto_backend::vulkan::{VulkanOptions, VulkanProfile};
use impasto_backend::{Backend, Profile};
use impasto_generate::place::imagine;
use impasto_graph::{Banded, Capabilities, Cutting, DType, Graph, HostTensor, Limits, May, Plan, Storage};
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

/// The smallest memory of a GPU, weights and all, in which bands still work.
#[derive(Clone, Debug, Serialize)]
pub struct BandsLeast {
    /// The network and its size.
    pub name: String,
    /// Bytes of the device that the whole needs, without limits.
    pub whole_bytes: u64,
    /// Bytes that bands need if all of them stay on the device, and their number.
    pub on_the_device: Option<(u64, usize)>,
    /// The same where they may rest in host memory.
    pub resting: Option<(u64, usize)>,
    /// With a third of what the whole needs: bands, bytes in host memory, and bytes that are copied.
    pub third: Option<(usize, u64, u64)>,
    /// Seconds of all this planning.
    pub seconds: f64,
}

/// A card with so much memory, of which a piece has at most `largest` bytes. It need not be here: plans need no driver.
fn card(memory: u64, largest: u64) -> anyhow::Result<VulkanProfile> {
    let info = imagine("vulkan0:memory=1GiB").map_err(anyhow::Error::msg)?;
    let features = info.vulkan.ok_or_else(|| anyhow::anyhow!("it is no Vulkan device"))?;
    let limits = Limits { memory, max_allocation: largest, max_binding: largest };
    Ok(VulkanProfile::new(&info.name, &info.label, limits, &features, &VulkanOptions::default())?)
}

/// The least memory for decoding a picture of `size` by `size` on a card whose largest buffer is 256 MiB.
pub fn bands_least(size: usize) -> anyhow::Result<BandsLeast> {
    const LARGEST: u64 = 256 << 20;
    let start = Instant::now();
    let unlimited = card(u64::MAX, u64::MAX)?;
    let numbers = Numbers { storage: Storage::Dense(DType::F16), activations: unlimited.activations() };
    let graph = vae_decoder(&VaeConfig::sd(), 1, [size / 8, size / 8], numbers)?;
    let whole = Plan::new(&graph, &unlimited)?;
    let whole_bytes = whole.weight_bytes() + whole.arena_bytes() + unlimited.fixed_bytes();
    let third = match Banded::fit(&graph, &card(whole_bytes / 3, LARGEST)?, 2, May { rest: true, ..May::default() }) {
        Ok((banded, plan)) => Some((banded.cuts.bands(), plan.host_bytes(), plan.rested_bytes(&banded.graph))),
        Err(_) => None,
    };
    Ok(BandsLeast {
        name: format!("decoder {size} {}", numbers.activations),
        whole_bytes,
        on_the_device: least(&graph, LARGEST, whole_bytes, false)?,
        resting: least(&graph, LARGEST, whole_bytes, true)?,
        third,
        seconds: start.elapsed().as_secs_f64(),
    })
}

/// To a hundredth: the least memory, and the bands in it.
fn least(graph: &Graph, largest: u64, most: u64, rest: bool) -> anyhow::Result<Option<(u64, usize)>> {
    let bands = |memory: u64| -> anyhow::Result<Option<usize>> {
        let fitted = Banded::fit(graph, &card(memory, largest)?, 2, May { rest, ..May::default() });
        Ok(fitted.ok().map(|(banded, _)| banded.cuts.bands()))
    };
    let Some(mut found) = bands(most)? else { return Ok(None) };
    let (mut too_little, mut enough) = (0, most);
    while enough - too_little > enough / 100 {
        let middle = too_little + (enough - too_little) / 2;
        match bands(middle)? {
            Some(bands) => (enough, found) = (middle, bands),
            None => too_little = middle,
        }
    }
    Ok(Some((enough, found)))
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
