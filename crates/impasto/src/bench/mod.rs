//! Benchmarks that print ratios: what is reached, as a share of what the same run measures to be possible.

mod cpu;
mod plan;

pub use cpu::{CpuBench, CpuLine, cpu};
pub use plan::{PlanLine, plans};

/// The middle of some measurements.
fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
