//! The CPU's products, convolutions and attention, as a share of the peak that the same run measures.

use std::time::{Duration, Instant};

use impasto_backend::cpu::{Cpu, CpuOptions, Isa, Precision, Stillness, findings, next_core, peak_gflops};
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

/// A piece of work: its name and the graph that does it on activations of this type. Of a whole piece, or of a slice of it that takes
/// a few milliseconds and has the same shape but for fewer rows, lines or heads.
struct Case {
    name: &'static str,
    build: fn(&mut Graph, DType, Slice) -> Result<Value, GraphError>,
}

/// How much of a case.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Slice {
    Whole,
    Part,
}

impl Slice {
    /// Of `whole`, what one of so many parts has.
    fn of(self, whole: usize, parts: usize) -> usize {
        if self == Slice::Part { whole / parts } else { whole }
    }
}

fn gemm(g: &mut Graph, dtype: DType, m: usize, n: usize, k: usize) -> Result<Value, GraphError> {
    let x = g.input("x", [m, k], dtype)?;
    let w = g.param("w", [n, k], Storage::Dense(DType::F16))?;
    g.linear(x, w, Epilogue::new())
}

fn conv(g: &mut Graph, dtype: DType, c: usize, height: usize, width: usize) -> Result<Value, GraphError> {
    let x = g.input("x", [1, height, width, c], dtype)?;
    let w = g.param("w", [c, c, 3, 3], Storage::Dense(DType::F16))?;
    g.conv2d(x, w, Window::pad(1), Epilogue::new())
}

fn attention(g: &mut Graph, dtype: DType, heads: usize, width: usize, keys: usize) -> Result<Value, GraphError> {
    let [q, k, v] =
        [("q", 4096), ("k", keys), ("v", keys)].map(|(name, n)| g.input(name, [1, n, heads * width], dtype));
    g.attention(q?, k?, v?, heads, false)
}

/// The shapes of Stable Diffusion that take most of its time.
const CASES: &[Case] = &[
    Case { name: "gemm_4096x1280x1280", build: |g, d, s| gemm(g, d, s.of(4096, 2), 1280, 1280) },
    Case { name: "gemm_1024x5120x1280", build: |g, d, _| gemm(g, d, 1024, 5120, 1280) },
    Case { name: "gemm_8192x320x320", build: |g, d, s| gemm(g, d, s.of(8192, 4), 320, 320) },
    Case { name: "conv_320_64x64", build: |g, d, s| conv(g, d, 320, s.of(64, 4), 64) },
    Case { name: "conv_640_32x32", build: |g, d, s| conv(g, d, 640, s.of(32, 4), 32) },
    Case { name: "conv_1280_16x16", build: |g, d, _| conv(g, d, 1280, 16, 16) },
    Case { name: "conv_128_512x512", build: |g, d, s| conv(g, d, 128, s.of(512, 32), 512) },
    Case { name: "attention_8x40_4096", build: |g, d, s| attention(g, d, s.of(8, 8), 40, 4096) },
    Case { name: "attention_10x64_4096", build: |g, d, s| attention(g, d, s.of(10, 10), 64, 4096) },
    Case { name: "attention_8x40_4096x77", build: |g, d, _| attention(g, d, 8, 40, 77) },
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
    /// Count only what nobody else disturbed, on the paths where that can be told, and of slices, which are short enough for it.
    pub undisturbed: bool,
}

/// Measure the CPU kernels; `show` gets each line as it is ready.
pub fn cpu(what: &CpuBench, mut show: impl FnMut(&CpuLine)) -> anyhow::Result<()> {
    let paths: Vec<Isa> = match what.isa {
        Some(isa) => vec![isa],
        None => findings().iter().filter(|f| f.usable).map(|f| f.isa).collect(),
    };
    let mut told = false;
    for isa in paths {
        // A path is shown with what it is made for.
        let precision =
            if what.precision == Precision::Auto && isa.has_bf16() { Precision::Bf16 } else { what.precision };
        let threads = what.threads;
        let cpu = Cpu::new(&CpuOptions { isa: Some(isa), precision, threads, ..CpuOptions::default() })?;
        let still = match what.undisturbed.then(|| Stillness::new(&cpu)) {
            Some(None) => continue,
            still => still.flatten(),
        };
        told = true;
        let mut measure = Measure { cpu: &cpu, budget: Duration::from_secs_f64(what.seconds), still, peaks: vec![] };
        let mut results = vec![];
        for case in CASES.iter().filter(|c| what.filter.as_ref().is_none_or(|f| c.name.contains(f.as_str()))) {
            results.push((case.name, measure.speed(case)?));
        }
        let peak_gflops = median(&mut measure.peaks);
        for (name, (gflops, share)) in results {
            let (isa, ratio) = (isa.name().to_string(), share.unwrap_or(gflops / peak_gflops));
            show(&CpuLine { name: name.into(), isa, gflops, peak_gflops, ratio });
        }
    }
    anyhow::ensure!(
        told,
        "whether others disturb a core can be told only by amx in bf16, which does not run here; leave out --undisturbed"
    );
    Ok(())
}

/// How each case is measured.
struct Measure<'a> {
    cpu: &'a Cpu,
    budget: Duration,
    still: Option<Stillness<'a>>,
    /// The machine's peak, over and over.
    peaks: Vec<f64>,
}

impl Measure<'_> {
    /// Thousand million operations a second of a case, in turn with the peak of the machine: clocks and neighbours change
    /// from moment to moment, so both are medians over the same time. Runs that nobody disturbed are compared with their own peaks.
    fn speed(&mut self, case: &Case) -> anyhow::Result<(f64, Option<f64>)> {
        let cpu = self.cpu;
        let mut graph = Graph::new();
        let slice = if self.still.is_some() { Slice::Part } else { Slice::Whole };
        let out = (case.build)(&mut graph, cpu.activations(), slice)?;
        graph.output("y", out)?;
        let plan = Plan::new(&graph, cpu)?;
        let weights = cpu.pack(&graph, &plan, &RandomWeights::of(&graph))?;
        let mut session = cpu.prepare(&graph, &plan, &weights)?;
        let (inputs, mut outputs) = (random_inputs(&*session)?, room_for_outputs(&*session));
        let inputs: Vec<(&str, &HostTensor)> = inputs.iter().map(|(n, t)| (n.as_str(), t)).collect();
        let mut run = || -> anyhow::Result<f64> {
            session.run(&inputs, &mut outputs)?;
            let seconds: f64 = session.profile().iter().map(|s| s.seconds).sum();
            Ok(graph.flops() as f64 / seconds / 1e9)
        };
        run()?;
        if let Some(still) = &mut self.still {
            let (mut speeds, peaks) = undisturbed(cpu, self.budget, still, &mut run)?;
            let mut shares: Vec<f64> = speeds.iter().zip(&peaks).map(|(speed, peak)| speed / peak).collect();
            self.peaks.extend(peaks);
            return Ok((median(&mut speeds), Some(median(&mut shares))));
        }
        let (start, mut speeds) = (Instant::now(), vec![]);
        while start.elapsed() < self.budget || speeds.len() < 3 {
            self.peaks.push(peak_gflops(cpu, cpu.number()));
            let turn = Instant::now();
            while turn.elapsed() < Duration::from_millis(20) {
                speeds.push(run()?);
            }
        }
        Ok((median(&mut speeds), None))
    }
}

/// The speeds of runs before and after which the cores were ours, with the peaks beside them. One thread alone looks for a quiet core.
/// Gives up, with fewer or no speeds, after twenty times the budget.
fn undisturbed(
    cpu: &Cpu,
    budget: Duration,
    still: &mut Stillness,
    run: &mut dyn FnMut() -> anyhow::Result<f64>,
) -> anyhow::Result<(Vec<f64>, Vec<f64>)> {
    let (mut speeds, mut peaks) = (vec![], vec![]);
    let (start, mut counted, mut warm, mut loud) = (Instant::now(), Duration::ZERO, false, 0);
    while (counted < budget || speeds.len() < 5) && start.elapsed() < 20 * budget {
        let (quiet, peak) = still.now();
        if !quiet {
            // Not at once: a core's matrix unit needs a while to wake up.
            loud += 1;
            if loud % 40 == 0 && cpu.threads() == 1 {
                next_core();
            }
            warm = false;
            continue;
        }
        let turn = Instant::now();
        let speed = run()?;
        if std::mem::replace(&mut warm, true) && still.now().0 {
            counted += turn.elapsed();
            speeds.push(speed);
            peaks.push(peak);
        }
    }
    Ok((speeds, peaks))
}
