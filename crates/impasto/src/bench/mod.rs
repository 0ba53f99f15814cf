//! Benchmarks that print ratios: what is reached, as a share of what the same run measures to be possible.

use impasto_backend::Session;
use impasto_graph::{GraphError, HostTensor};

mod cpu;
mod model;
mod plan;

pub use cpu::{CpuBench, CpuLine, cpu};
pub use model::{Family, ModelLine, model};
pub use plan::{PlanLine, plans};

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
