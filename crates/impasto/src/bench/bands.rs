//! Bands against the whole: time, memory, and whether the picture is the same.

use std::sync::Arc;
use std::time::Instant;

use impasto_backend::cpu::Cpu;
use impasto_backend::{Backend, DeviceOptions, Profile, Session, Weights};
use impasto_device::{Api, DeviceInfo, DeviceKind};
use impasto_generate::Tiles;
use impasto_graph::{Banded, Cutting, DType, Graph, HostTensor, Limits, May, Plan, Storage};
use impasto_model::{ElementTypes, VaeConfig, vae_decoder, vae_encoder};
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
    /// In overlapping tiles, in the same run.
    pub tiles: TilesTime,
    /// Seconds by kind of op in the last run, whole and in bands, the longest first.
    pub profile: [Vec<(String, f64)>; 2],
}

/// A decode in overlapping tiles beside the same decode whole.
#[derive(Clone, Debug, Serialize)]
pub struct TilesTime {
    /// Tiles.
    pub tiles: usize,
    /// Pixels of the latent along a side of one.
    pub side: usize,
    /// Seconds in tiles, the median of runs in between.
    pub seconds: f64,
    /// The median of the ratios of runs that followed each other.
    pub ratio: f64,
    /// How far the picture is from the whole one, in 8 bits.
    pub psnr: f64,
    /// Bytes of activations and scratch.
    pub arena_bytes: u64,
    /// The pictures, whole and in tiles, `(size, size, 3)`.
    #[serde(skip)]
    pub pictures: [Vec<u8>; 2],
}

/// The decoder for one tile after the other.
struct Tiled {
    tiles: Tiles,
    session: Box<dyn Session>,
    arena_bytes: u64,
}

impl Tiled {
    /// As sd-cli has tiles: of 32 by 32, or three quarters of what is smaller, half of which the next one covers too.
    fn new(cpu: &Cpu, size: usize, numbers: ElementTypes, weights: &Weights) -> anyhow::Result<Tiled> {
        let side = size / 8;
        let tile = 32.min(side * 3 / 4);
        let graph = vae_decoder(&VaeConfig::sd(), 1, [tile, tile], numbers)?;
        let plan = Plan::new(&graph, cpu)?;
        let session = cpu.prepare(&graph, &plan, weights)?;
        Ok(Tiled { tiles: Tiles::new([side, side], [tile, tile], 0.5), session, arena_bytes: plan.arena_bytes() })
    }

    fn decode(&mut self, latent: &[f32]) -> anyhow::Result<Vec<f32>> {
        let [height, width] = self.tiles.tile;
        let mut done = vec![];
        for at in self.tiles.places() {
            let part = HostTensor::f32([1, height, width, 4], self.tiles.cut(latent, 4, 1, at))?;
            done.push(self.session.run_to_new(&[("latent", &part)])?[0].to_f32());
        }
        Ok(self.tiles.blend(3, 8, done))
    }
}

/// Numbers from -1 to 1 as bytes.
fn in_bytes(picture: &[f32]) -> Vec<u8> {
    picture.iter().map(|v| ((v * 0.5 + 0.5) * 255.0).round().clamp(0.0, 255.0) as u8).collect()
}

fn psnr(a: &[u8], b: &[u8]) -> f64 {
    let error: f64 = a.iter().zip(b).map(|(&x, &y)| (f64::from(x) - f64::from(y)).powi(2)).sum();
    10.0 * (255.0 * 255.0 * a.len() as f64 / error).log10()
}

/// Decode on random weights of true size for a picture of `size` by `size`, whole, in bands and in tiles by turns.
pub fn bands_time(cpu: &Cpu, size: usize, bands: u64, runs: usize) -> anyhow::Result<BandsTime> {
    let numbers = ElementTypes { storage: Storage::Dense(DType::F16), activations: cpu.activations() };
    let graph = vae_decoder(&VaeConfig::sd(), 1, [size / 8, size / 8], numbers)?;
    let banded = Banded::new(&graph, &Cutting::bands(&graph, bands))?;
    let plans = [Plan::new(&graph, cpu)?, Plan::new(&banded.graph, cpu)?];
    let weights = cpu.pack(&graph, &plans[0], &RandomWeights::of(&graph))?;
    let mut sessions = [cpu.prepare(&graph, &plans[0], &weights)?, cpu.prepare(&banded.graph, &plans[1], &weights)?];
    let inputs = random_inputs(&*sessions[0])?;
    let inputs: Vec<(&str, &HostTensor)> = inputs.iter().map(|(n, t)| (n.as_str(), t)).collect();
    let mut outputs = [room_for_outputs(&*sessions[0]), room_for_outputs(&*sessions[1])];
    let mut tiled = Tiled::new(cpu, size, numbers, &weights)?;
    let latent = inputs[0].1.to_f32();
    let mut times = [vec![], vec![], vec![]];
    let mut blended = vec![];
    for _ in 0..runs.max(1) {
        for i in 0..2 {
            let start = Instant::now();
            sessions[i].run(&inputs, &mut outputs[i])?;
            times[i].push(start.elapsed().as_secs_f64());
        }
        let start = Instant::now();
        blended = tiled.decode(&latent)?;
        times[2].push(start.elapsed().as_secs_f64());
    }
    let mut ratios = [1, 2].map(|i| times[0].iter().zip(&times[i]).map(|(whole, it)| it / whole).collect::<Vec<f64>>());
    let pictures = [in_bytes(&outputs[0][0].to_f32()), in_bytes(&blended)];
    let bits = |t: &HostTensor| t.to_f32().into_iter().map(f32::to_bits).collect::<Vec<_>>();
    Ok(BandsTime {
        bands: banded.cuts.bands(),
        whole_seconds: median(&mut times[0]),
        banded_seconds: median(&mut times[1]),
        ratio: median(&mut ratios[0]),
        same_bits: outputs[0].iter().zip(&outputs[1]).all(|(a, b)| bits(a) == bits(b)),
        arena_bytes: [plans[0].arena_bytes(), plans[1].arena_bytes()],
        tiles: TilesTime {
            tiles: tiled.tiles.places().len(),
            side: tiled.tiles.tile[0],
            seconds: median(&mut times[2]),
            ratio: median(&mut ratios[1]),
            psnr: psnr(&pictures[0], &pictures[1]),
            arena_bytes: tiled.arena_bytes,
            pictures,
        },
        profile: [by_op(&sessions[0].profile()), by_op(&sessions[1].profile())],
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
fn card(memory: u64, largest: u64) -> anyhow::Result<Arc<dyn Profile>> {
    let limits = Limits { memory, max_allocation: largest, max_binding: largest };
    let card = DeviceInfo::imagined("vulkan0", Api::Vulkan, DeviceKind::Discrete, limits);
    Ok(impasto_backend::profile(&card, &DeviceOptions::default())?)
}

/// The least memory for decoding a picture of `size` by `size` on a card whose largest buffer is 256 MiB.
pub fn bands_least(size: usize) -> anyhow::Result<BandsLeast> {
    const LARGEST: u64 = 256 << 20;
    let start = Instant::now();
    let unlimited = card(u64::MAX, u64::MAX)?;
    let numbers = ElementTypes { storage: Storage::Dense(DType::F16), activations: unlimited.activations() };
    let graph = vae_decoder(&VaeConfig::sd(), 1, [size / 8, size / 8], numbers)?;
    let whole = Plan::new(&graph, &*unlimited)?;
    let whole_bytes = whole.weight_bytes() + whole.arena_bytes() + unlimited.fixed_bytes();
    let third = match Banded::fit(&graph, &*card(whole_bytes / 3, LARGEST)?, 2, May { rest: true, ..May::default() }) {
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
        let fitted = Banded::fit(graph, &*card(memory, largest)?, 2, May { rest, ..May::default() });
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
    for numbers in [ElementTypes::F32, ElementTypes::BF16] {
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
