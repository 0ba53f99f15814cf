//! Print the plans of the real networks: arena, lower bound, and how long planning took.
use impasto_graph::{Anything, Graph, Plan};
use impasto_model::*;

fn show(name: &str, graph: Graph) {
    let start = std::time::Instant::now();
    let plan = Plan::new(&graph, &Anything).unwrap();
    let took = start.elapsed();
    plan.verify(&graph, &Anything).unwrap();
    println!(
        "{name:24} {:5} steps  arena {:8.1} MB  bound {:8.1} MB  ratio {:.3}  {:.2} TFLOP  planned in {:?}",
        plan.steps().len(),
        plan.arena_bytes() as f64 / 1e6,
        plan.lower_bound() as f64 / 1e6,
        plan.arena_bytes() as f64 / plan.lower_bound() as f64,
        graph.flops() as f64 / 1e12,
        took
    );
}

fn main() {
    for (n, numbers) in [("f32", Numbers::F32), ("bf16", Numbers::BF16)] {
        for size in [64, 128] {
            show(&format!("sd15 unet {size} {n}"), unet(&UnetConfig::sd15(), 2, [size, size], 77, numbers).unwrap());
        }
        show(&format!("sdxl unet 128 {n}"), unet(&UnetConfig::sdxl(), 2, [128, 128], 77, numbers).unwrap());
        for size in [64, 128, 256] {
            show(
                &format!("vae decoder {} {n}", size * 8),
                vae_decoder(&VaeConfig::sd(), 1, [size, size], numbers).unwrap(),
            );
            show(
                &format!("vae encoder {} {n}", size * 8),
                vae_encoder(&VaeConfig::sd(), 1, [size * 8, size * 8], numbers).unwrap(),
            );
        }
    }
}
