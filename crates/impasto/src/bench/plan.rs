//! Plans of the real networks: how much memory, how near to the least possible, and how long planning takes.

use std::time::Instant;

use impasto_backend::cpu::{Cpu, peak_gflops};
use impasto_graph::{DType, Graph, Plan};
use impasto_model::{ElementTypes, NetworkId};
use serde::Serialize;

use super::{Published, median};

/// One line of results.
#[derive(Clone, Debug, Serialize)]
pub struct PlanLine {
    /// The network, its size, and the element type between its layers.
    pub name: String,
    /// Ops that are executed.
    pub steps: usize,
    /// Bytes of activations and scratch.
    pub arena_bytes: u64,
    /// The largest sum of bytes live at one moment of this order.
    pub lower_bound: u64,
    /// Arena over lower bound.
    pub ratio: f64,
    /// Bytes of packed parameters.
    pub weight_bytes: u64,
    /// The largest tensor that an op reads or writes.
    pub largest_binding: u64,
    /// Useful floating-point operations.
    pub flops: u64,
    /// Seconds that planning took.
    pub seconds: f64,
    /// Planning over the shortest time that a forward pass could take at the machine's peak.
    pub share_of_forward: f64,
}

/// The networks whose plans are looked at, with names.
fn networks(numbers: ElementTypes) -> anyhow::Result<Vec<(String, Graph)>> {
    let [sd15, sdxl] = ["sd15", "sdxl"].map(Published::named);
    let [sd15, sdxl] = [sd15.map_err(anyhow::Error::msg)?, sdxl.map_err(anyhow::Error::msg)?];
    let mut list = vec![
        ("sd15 unet 512".to_string(), sd15.step(512, numbers)?),
        ("sd15 unet 1024".to_string(), sd15.step(1024, numbers)?),
        ("sdxl unet 1024".to_string(), sdxl.step(1024, numbers)?),
    ];
    for size in [512, 1024, 2048] {
        let grid = [size / sd15.pipeline.latents().autoencoder_pixels; 2];
        for (half, id) in [("decoder", NetworkId::VaeDecoder), ("encoder", NetworkId::VaeEncoder)] {
            list.push((format!("vae {half} {size}"), sd15.pipeline.autoencoder(id, grid, numbers)?));
        }
    }
    Ok(list)
}

/// Plan the real networks for `cpu`; `show` gets each line as it is ready.
pub fn plans(cpu: &Cpu, mut show: impl FnMut(&PlanLine)) -> anyhow::Result<()> {
    let peak = median(&mut (0..9).map(|_| peak_gflops(cpu, cpu.number())).collect::<Vec<_>>());
    for numbers in [ElementTypes::F32, ElementTypes::BF16] {
        for (name, graph) in networks(numbers)? {
            let mut times = vec![];
            let mut plan = Plan::new(&graph, cpu)?;
            for _ in 0..9 {
                let start = Instant::now();
                plan = Plan::new(&graph, cpu)?;
                times.push(start.elapsed().as_secs_f64());
            }
            let seconds = median(&mut times);
            let dtype = if numbers.activations == DType::F32 { "f32" } else { "bf16" };
            show(&PlanLine {
                name: format!("{name} {dtype}"),
                steps: plan.steps().len(),
                arena_bytes: plan.arena_bytes(),
                lower_bound: plan.lower_bound(),
                ratio: plan.arena_bytes() as f64 / plan.lower_bound() as f64,
                weight_bytes: plan.weight_bytes(),
                largest_binding: plan.largest_binding(),
                flops: graph.flops(),
                seconds,
                share_of_forward: seconds * peak * 1e9 / graph.flops() as f64,
            });
        }
    }
    Ok(())
}
