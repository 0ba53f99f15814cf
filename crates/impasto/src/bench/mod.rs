//! Benchmarks that print ratios: what is reached, as a share of what the same run measures to be possible.

use std::collections::HashMap;

use impasto_backend::{ParamError, ParamInfo, Session, WeightSource};
use impasto_graph::{DType, Graph, GraphError, HostTensor, Op, Storage, Value};
use impasto_weights::encode;

mod bands;
mod cpu;
mod kernel;
mod load;
mod model;
mod ops;
mod plan;
mod serve;
mod serve_jobs;
mod stream;
mod types;
mod worker;

pub use bands::{BandsLeast, BandsMemory, BandsTime, TilesTime, bands_least, bands_memory, bands_time};
pub use cpu::{CpuBench, CpuLine, cpu};
pub use kernel::{KernelLine, has_spirv_opt, kernel, module};
pub use load::{LoadLine, load};
pub use model::{ModelLine, Published, StepLine, model};
pub use ops::{OpLine, ops};
pub use plan::{PlanLine, plans};
pub use serve::{RouteLoad, serve_load};
pub use serve_jobs::{ServedJobs, served_jobs};
pub use stream::{StreamLine, plot, stream};
pub use types::{TypeLine, types};
pub use worker::{Spread, WorkerLine, worker};

/// The middle of some measurements.
fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Numbers between -1/2 and 1/2 that look random: zeros would be faster on some machines.
fn random(shape: &[usize], seed: u64) -> Result<HostTensor, GraphError> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let data = (0..shape.iter().product()).map(|_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u32 << 24) as f32 - 0.5
    });
    HostTensor::f32(shape, data.collect())
}

/// Random inputs for a session, by name.
fn random_inputs(session: &dyn Session) -> Result<Vec<(String, HostTensor)>, GraphError> {
    let inputs = session.inputs().iter().enumerate();
    inputs.map(|(i, (name, ty))| Ok((name.clone(), random(&ty.shape, i as u64)?.cast(ty.dtype)))).collect()
}

/// Room for a session's outputs.
fn room_for_outputs(session: &dyn Session) -> Vec<HostTensor> {
    session.outputs().iter().map(|(_, ty)| HostTensor::zeros(ty)).collect()
}

/// Weights that look random, made when they are asked for: nothing the size of a model is kept twice. Stored as the graph says, or in halves.
struct RandomWeights(HashMap<String, (Vec<usize>, Storage)>);

impl RandomWeights {
    fn of(graph: &Graph) -> RandomWeights {
        let stored = |value: Value| match graph.node(value).op {
            Op::Param { storage, .. } if !matches!(storage, Storage::Dense(_)) => storage,
            _ => Storage::Dense(DType::F16),
        };
        let of = |(name, value): (&str, Value)| (name.to_string(), (graph.ty(value).shape.clone(), stored(value)));
        RandomWeights(graph.params().map(of).collect())
    }
}

impl WeightSource for RandomWeights {
    fn describe(&self, name: &str) -> Result<ParamInfo, ParamError> {
        let (shape, storage) = self.0.get(name).cloned().unwrap_or((vec![], Storage::Dense(DType::F16)));
        let bytes = storage.bytes_of(shape.iter().product::<usize>() as u64).unwrap_or(u64::MAX);
        Ok(ParamInfo { storage, shape, bytes })
    }

    fn read_into(&self, name: &str, offset: u64, out: &mut [u8]) -> Result<(), ParamError> {
        let ParamInfo { storage, shape, .. } = self.describe(name)?;
        // Small enough that activations neither die out nor overflow on the way through the network.
        let fan_in: usize = shape.iter().skip(1).product();
        let scale = if shape.len() > 1 { (3.0 / fan_in as f32).sqrt() } else { 0.2 };
        let center = if shape.len() == 1 && name.contains("norm") && name.ends_with("weight") { 1.0 } else { 0.0 };
        let seed = name.bytes().fold(0x9e37_79b9_u32, |h, b| (h ^ u32::from(b)).wrapping_mul(0x0100_0193));
        let (elements, bytes) = (storage.block_elements() as usize, storage.block_bytes() as usize);
        let mut numbers = [0.0; 256];
        for (block, out) in (offset as usize / bytes..).zip(out.chunks_exact_mut(bytes)) {
            for (i, number) in (block * elements..).zip(&mut numbers[..elements]) {
                // Each number by its place alone: threads read different parts.
                let mut x = (i as u32 ^ seed).wrapping_mul(0x9e37_79b1);
                x = (x ^ x >> 15).wrapping_mul(0x85eb_ca77);
                x ^= x >> 13;
                *number = center + scale * (x as f32 / 2_147_483_648.0 - 1.0);
            }
            encode(storage, &numbers[..elements], out);
        }
        Ok(())
    }
}
