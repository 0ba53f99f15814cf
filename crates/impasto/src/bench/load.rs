//! The weights of a diffusion model from their file to a device, against reading the same bytes and doing nothing with them.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use impasto_backend::{ParamError, WeightSource};
use impasto_graph::Plan;
use impasto_model::{ElementTypes, Model, NetworkId};
use serde::Serialize;

use super::{Published, Spread, median};
use crate::BackendOptions;

/// Bytes that are read at a time for comparison.
const PIECE: usize = 1 << 20;

/// What was measured, in seconds.
#[derive(Clone, Debug, Serialize)]
pub struct LoadLine {
    /// The device.
    pub device: String,
    /// Bytes of the parameters in their file.
    pub file_bytes: u64,
    /// Bytes that they take on the device.
    pub device_bytes: u64,
    /// Threads that read.
    pub threads: usize,
    /// Reading the bytes into new memory, the median of several.
    pub read: f64,
    /// Loading: reading, converting, packing and bringing to the device.
    pub load: f64,
    /// Loading over reading, turn by turn.
    pub ratio: Spread,
}

/// Measures the diffusion model of an open model on a device; reading and loading take turns.
pub fn load(model: &Model, name: &str, options: &BackendOptions, runs: usize) -> anyhow::Result<LoadLine> {
    let backend = crate::open_device(name, options)?;
    let profile = backend.profile();
    let network = model.network(NetworkId::Denoiser).ok_or_else(|| anyhow::anyhow!("the model has no denoiser"))?;
    let numbers = ElementTypes { activations: profile.activations(), ..ElementTypes::F32 };
    let mut graph = Published { name: "model", pipeline: model.pipeline.clone() }.step(512, numbers)?;
    let source: &dyn WeightSource = &***network;
    graph.set_storages(|name| Some(source.describe(name).ok()?.storage))?;
    let plan = Plan::new(&graph, &*profile)?;
    let threads = options.cpu.threads.unwrap_or_else(impasto_device::cpu::usable_cores);
    let names: Vec<&str> = graph.params().map(|(name, _)| name).collect();
    let mut line = LoadLine {
        device: format!("{name}: {}", profile.about()),
        file_bytes: 0,
        device_bytes: plan.device_weight_bytes(),
        threads,
        read: 0.0,
        load: 0.0,
        ratio: Spread::of(vec![]),
    };
    let (mut reads, mut loads) = (vec![], vec![]);
    for _ in 0..runs.max(1) {
        let begun = Instant::now();
        line.file_bytes = read(source, &names, threads)?;
        reads.push(begun.elapsed().as_secs_f64());
        let begun = Instant::now();
        drop(backend.pack(&graph, &plan, source)?);
        loads.push(begun.elapsed().as_secs_f64());
    }
    line.ratio = Spread::of(loads.iter().zip(&reads).map(|(load, read)| load / read).collect());
    (line.read, line.load) = (median(&mut reads), median(&mut loads));
    Ok(line)
}

/// Reads all parameters into new memory; how many bytes they are.
fn read(source: &dyn WeightSource, names: &[&str], threads: usize) -> Result<u64, ParamError> {
    let sizes: Vec<u64> =
        names.iter().map(|name| Ok(source.describe(name)?.bytes)).collect::<Result<_, ParamError>>()?;
    let mut memory: Vec<Vec<u8>> = sizes.iter().map(|&bytes| vec![0; bytes as usize]).collect();
    let pieces: Vec<_> = memory
        .iter_mut()
        .zip(names)
        .flat_map(|(to, name)| to.chunks_mut(PIECE).zip((0..).step_by(PIECE)).map(move |(to, at)| (name, at, to)))
        .map(std::sync::Mutex::new)
        .collect();
    let next = AtomicUsize::new(0);
    let work = || -> Result<(), ParamError> {
        while let Some(piece) = pieces.get(next.fetch_add(1, Ordering::Relaxed)) {
            let mut piece = piece.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            let (name, at, to) = &mut *piece;
            source.read_into(name, *at as u64, to)?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        threads.into_iter().try_for_each(|thread| thread.join().unwrap_or(Ok(())))
    })?;
    Ok(sizes.iter().sum())
}
