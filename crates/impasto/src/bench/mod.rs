//! Benchmarks that print ratios: what is reached, as a share of what the same run measures to be possible.

use std::borrow::Cow;
use std::collections::HashMap;

use impasto_backend::{BackendError, ParamBytes, Session, WeightSource};
use impasto_graph::{DType, Graph, GraphError, HostTensor, Storage};

mod bands;
mod cpu;
mod kernel;
mod model;
mod plan;
mod stream;
mod worker;

pub use bands::{BandsLeast, BandsMemory, BandsTime, TilesTime, bands_least, bands_memory, bands_time};
pub use cpu::{CpuBench, CpuLine, cpu};
pub use kernel::{KernelLine, has_spirv_opt, kernel, module};
pub use model::{ModelLine, Step, model};
pub use plan::{PlanLine, plans};
pub use stream::{StreamLine, plot, stream};
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

/// Weights that look random, made when they are asked for: nothing the size of a model is kept twice.
struct RandomWeights(HashMap<String, Vec<usize>>);

impl RandomWeights {
    fn of(graph: &Graph) -> RandomWeights {
        RandomWeights(graph.params().map(|(name, v)| (name.to_string(), graph.ty(v).shape.clone())).collect())
    }
}

impl WeightSource for RandomWeights {
    fn read(&self, name: &str) -> Result<ParamBytes<'_>, BackendError> {
        let shape = self.0.get(name).cloned().unwrap_or_default();
        let n: usize = shape.iter().product();
        // Small enough that activations neither die out nor overflow on the way through the network.
        let fan_in: usize = shape.iter().skip(1).product();
        let scale = if shape.len() > 1 { (3.0 / fan_in as f32).sqrt() } else { 0.2 };
        let center = if shape.len() == 1 && name.contains("norm") && name.ends_with("weight") { 1.0 } else { 0.0 };
        let mut state = name.bytes().fold(0x9e37_79b9_u32, |h, b| (h ^ u32::from(b)).wrapping_mul(0x0100_0193)) | 1;
        let mut bytes = Vec::with_capacity(2 * n);
        for _ in 0..n {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            let value = center + scale * (state as f32 / 2_147_483_648.0 - 1.0);
            bytes.extend(half::f16::from_f32(value).to_le_bytes());
        }
        Ok(ParamBytes { storage: Storage::Dense(DType::F16), shape, bytes: Cow::Owned(bytes) })
    }
}
