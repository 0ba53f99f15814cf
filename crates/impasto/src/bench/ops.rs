//! Single ops of true size on a device: products, convolutions and attention as networks have them. `tools/torch_ops.py` measures the same on PyTorch.

use impasto_backend::Backend;
use impasto_graph::{DType, Epilogue, Graph, GraphError, HostTensor, Plan, Storage, Window};
use serde::Serialize;

use super::{RandomWeights, random_inputs, room_for_outputs};

/// One op.
#[derive(Clone, Debug, Serialize)]
pub struct OpLine {
    /// What was computed.
    pub name: &'static str,
    /// Seconds at best, on the device's own clock.
    pub seconds: f64,
    /// Useful operations a second, in thousand millions.
    pub gflops: f64,
    /// The share of what a loop without memory reaches.
    pub ratio: f64,
}

/// A linear layer of `[rows, columns, depth]`.
fn product([m, n, k]: [usize; 3], dtype: DType) -> Result<Graph, GraphError> {
    let mut g = Graph::new();
    let x = g.input("x", [m, k], dtype)?;
    let w = g.param("w", [n, k], Storage::Dense(DType::F16))?;
    let y = g.linear(x, w, Epilogue::new().dtype(dtype))?;
    g.output("y", y)?;
    Ok(g)
}

/// A 3x3 convolution of `[pictures, side, channels]` to as many channels.
fn convolution([batch, side, c]: [usize; 3], dtype: DType) -> Result<Graph, GraphError> {
    let mut g = Graph::new();
    let x = g.input("x", [batch, side, side, c], dtype)?;
    let w = g.param("w", [c, c, 3, 3], Storage::Dense(DType::F16))?;
    let y = g.conv2d(x, w, Window::pad(1), Epilogue::new().dtype(dtype))?;
    g.output("y", y)?;
    Ok(g)
}

/// Attention of `[pictures, tokens, heads, width]` to itself.
fn attention([batch, tokens, heads, width]: [usize; 4], dtype: DType) -> Result<Graph, GraphError> {
    let mut g = Graph::new();
    let [q, k, v] = ["q", "k", "v"].map(|name| g.input(name, [batch, tokens, heads * width], dtype));
    let y = g.attention(q?, k?, v?, heads, false)?;
    g.output("y", y)?;
    Ok(g)
}

/// Runs each op so many times; `show` gets each line as it is ready. The backend times its steps.
pub fn ops(backend: &dyn Backend, runs: usize, mut show: impl FnMut(&OpLine)) -> anyhow::Result<()> {
    let dtype = backend.profile().activations();
    let all = [
        ("product 8192x8192x8192", product([8192; 3], dtype)?),
        ("product 2048x1280x1280", product([2048, 1280, 1280], dtype)?),
        ("product 2048x1280x5120", product([2048, 1280, 5120], dtype)?),
        ("product 8192x640x640", product([8192, 640, 640], dtype)?),
        ("convolution 2x64x64x640", convolution([2, 64, 640], dtype)?),
        ("convolution 1x512x512x256", convolution([1, 512, 256], dtype)?),
        ("attention 4096 tokens, 24x128", attention([1, 4096, 24, 128], dtype)?),
        ("attention 2x4096 tokens, 10x64", attention([2, 4096, 10, 64], dtype)?),
        ("attention 2x4096 tokens, 8x40", attention([2, 4096, 8, 40], dtype)?),
    ];
    let peak = backend.peak_gflops()?;
    for (name, graph) in all {
        let plan = Plan::new(&graph, &*backend.profile())?;
        let weights = backend.pack(&graph, &plan, &RandomWeights::of(&graph))?;
        let mut session = backend.prepare(&graph, &plan, &weights)?;
        let (inputs, mut outputs) = (random_inputs(&*session)?, room_for_outputs(&*session));
        let inputs: Vec<(&str, &HostTensor)> = inputs.iter().map(|(n, t)| (n.as_str(), t)).collect();
        let mut best = f64::INFINITY;
        for _ in 0..runs.max(1) {
            session.run(&inputs, &mut outputs)?;
            best = best.min(session.profile().iter().map(|step| step.seconds).sum());
        }
        let gflops = graph.flops() as f64 / best / 1e9;
        show(&OpLine { name, seconds: best, gflops, ratio: gflops / peak });
    }
    Ok(())
}
