//! The CPU's products, convolutions and attention, as a share of the peak that the same run measures.

use std::time::{Duration, Instant};

use impasto_backend::cpu::{Cpu, CpuOptions, Isa, Precision, findings, peak_gflops};
use impasto_backend::{Backend, Profile};
use impasto_graph::{DType, Epilogue, Graph, GraphError, HostTensor, Plan, Storage, Value, Window};
use serde::Serialize;

use super::{RandomWeights, median, random_inputs, room_for_outputs};

/// One line of results.
#[derive(Clone, Debug, Serialize)]
pub struct CpuLine {
    /// What was computed.
    pub name: String,
    /// The instruction path.
    pub isa: String,
    /// Useful operations a second, in thousand millions.
    pub gflops: f64,
    /// What a loop without memory reaches on the same threads.
    pub peak_gflops: f64,
    /// The share of that peak.
    pub ratio: f64,
}

/// A piece of work: its name and the graph that does it on activations of this type.
struct Case {
    name: &'static str,
    build: fn(&mut Graph, DType) -> Result<Value, GraphError>,
}

fn gemm(g: &mut Graph, dtype: DType, m: usize, n: usize, k: usize) -> Result<Value, GraphError> {
    let x = g.input("x", [m, k], dtype)?;
    let w = g.param("w", [n, k], Storage::Dense(DType::F16))?;
    g.linear(x, w, Epilogue::new())
}

fn conv(g: &mut Graph, dtype: DType, c: usize, side: usize) -> Result<Value, GraphError> {
    let x = g.input("x", [1, side, side, c], dtype)?;
    let w = g.param("w", [c, c, 3, 3], Storage::Dense(DType::F16))?;
    g.conv2d(x, w, Window::pad(1), Epilogue::new())
}

fn attention(g: &mut Graph, dtype: DType, heads: usize, width: usize, tokens: usize) -> Result<Value, GraphError> {
    let [q, k, v] = ["q", "k", "v"].map(|name| g.input(name, [1, tokens, heads * width], dtype));
    g.attention(q?, k?, v?, heads, false)
}

/// The shapes of Stable Diffusion that take most of its time.
const CASES: &[Case] = &[
    Case { name: "gemm_4096x1280x1280", build: |g, d| gemm(g, d, 4096, 1280, 1280) },
    Case { name: "gemm_1024x5120x1280", build: |g, d| gemm(g, d, 1024, 5120, 1280) },
    Case { name: "gemm_8192x320x320", build: |g, d| gemm(g, d, 8192, 320, 320) },
    Case { name: "conv_320_64x64", build: |g, d| conv(g, d, 320, 64) },
    Case { name: "conv_640_32x32", build: |g, d| conv(g, d, 640, 32) },
    Case { name: "conv_1280_16x16", build: |g, d| conv(g, d, 1280, 16) },
    Case { name: "conv_128_512x512", build: |g, d| conv(g, d, 128, 512) },
    Case { name: "attention_8x40_4096", build: |g, d| attention(g, d, 8, 40, 4096) },
    Case { name: "attention_10x64_4096", build: |g, d| attention(g, d, 10, 64, 4096) },
];

/// What to measure.
#[derive(Clone, Debug, Default)]
pub struct CpuBench {
    /// Only this instruction path.
    pub isa: Option<Isa>,
    /// Only cases whose name contains this.
    pub filter: Option<String>,
    /// Threads; by default as many as this process may use.
    pub threads: Option<usize>,
    /// What products are computed in.
    pub precision: Precision,
    /// Seconds for each case.
    pub seconds: f64,
}

/// Measure the CPU kernels; `show` gets each line as it is ready.
pub fn cpu(what: &CpuBench, mut show: impl FnMut(&CpuLine)) -> anyhow::Result<()> {
    let paths: Vec<Isa> = match what.isa {
        Some(isa) => vec![isa],
        None => findings().iter().filter(|f| f.usable).map(|f| f.isa).collect(),
    };
    for isa in paths {
        // A path is shown with what it is made for.
        let precision =
            if what.precision == Precision::Auto && isa.has_bf16() { Precision::Bf16 } else { what.precision };
        let threads = what.threads;
        let cpu = Cpu::new(&CpuOptions { isa: Some(isa), precision, threads, ..CpuOptions::default() })?;
        let mut peaks = vec![];
        let mut results = vec![];
        for case in CASES.iter().filter(|c| what.filter.as_ref().is_none_or(|f| c.name.contains(f.as_str()))) {
            let gflops = measure(&cpu, case, Duration::from_secs_f64(what.seconds), &mut peaks)?;
            results.push((case.name, gflops));
        }
        let peak = median(&mut peaks);
        for (name, gflops) in results {
            let isa = isa.name().to_string();
            show(&CpuLine { name: name.into(), isa, gflops, peak_gflops: peak, ratio: gflops / peak });
        }
    }
    Ok(())
}

/// Thousand million operations a second of a case, in turn with the peak of the machine: clocks and neighbours change
/// from moment to moment, so both are medians over the same time.
fn measure(cpu: &Cpu, case: &Case, budget: Duration, peaks: &mut Vec<f64>) -> anyhow::Result<f64> {
    let mut graph = Graph::new();
    let out = (case.build)(&mut graph, cpu.activations())?;
    graph.output("y", out)?;
    let plan = Plan::new(&graph, cpu)?;
    let weights = cpu.pack(&graph, &plan, &RandomWeights::of(&graph))?;
    let mut session = cpu.prepare(&graph, &plan, &weights)?;
    let (inputs, mut outputs) = (random_inputs(&*session)?, room_for_outputs(&*session));
    let inputs: Vec<(&str, &HostTensor)> = inputs.iter().map(|(n, t)| (n.as_str(), t)).collect();
    session.run(&inputs, &mut outputs)?;
    let (start, mut speeds) = (Instant::now(), vec![]);
    while start.elapsed() < budget || speeds.len() < 3 {
        peaks.push(peak_gflops(cpu, cpu.number()));
        let turn = Instant::now();
        while turn.elapsed() < Duration::from_millis(20) {
            session.run(&inputs, &mut outputs)?;
            let seconds: f64 = session.profile().iter().map(|s| s.seconds).sum();
            speeds.push(graph.flops() as f64 / seconds / 1e9);
        }
    }
    Ok(median(&mut speeds))
}
