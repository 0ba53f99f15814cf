//! A step with weights of several types, in turns: what decoding them costs, and LoRAs beside them.

use std::time::Instant;

use impasto_backend::{Backend, Session, Weights};
use impasto_graph::{Graph, HostTensor, Plan, Storage};
use impasto_model::{ElementTypes, layer_storage};
use serde::Serialize;

use super::{Published, RandomWeights, median, random_inputs, room_for_outputs};

/// A step with weights of one type.
#[derive(Clone, Debug, Serialize)]
pub struct TypeLine {
    /// The type of layers whose rows are whole blocks of it, and the LoRA beside them.
    pub storage: String,
    /// Seconds of a step, the middle of all turns.
    pub seconds: f64,
    /// The same, divided by that of the first type.
    pub ratio: f64,
    /// Bytes of weights on the device.
    pub weight_bytes: u64,
    /// Bytes of activations and scratch.
    pub arena_bytes: u64,
}

struct Ready {
    session: Box<dyn Session>,
    inputs: Vec<(String, HostTensor)>,
    outputs: Vec<HostTensor>,
    times: Vec<f64>,
    line: TypeLine,
}

/// Times a step of a published model with weights of each of these types, one after the other in each turn; and, with a rank, each with a LoRA beside all
/// layers of attention. All of them stay loaded.
pub fn types(
    backend: &dyn Backend,
    published: &Published,
    size: usize,
    runs: usize,
    storages: &[Storage],
    rank: Option<usize>,
) -> anyhow::Result<Vec<TypeLine>> {
    let numbers = ElementTypes { activations: backend.profile().activations(), ..ElementTypes::F32 };
    let graph = published.step(size, numbers)?;
    let mut all = vec![];
    for &storage in storages {
        all.extend(ready(backend, &graph, storage, rank)?);
    }
    for turn in 0..=runs.max(1) {
        for it in &mut all {
            let inputs: Vec<(&str, &HostTensor)> = it.inputs.iter().map(|(name, x)| (name.as_str(), x)).collect();
            let start = Instant::now();
            it.session.run(&inputs, &mut it.outputs)?;
            // The first turn warms up.
            if turn > 0 {
                it.times.push(start.elapsed().as_secs_f64());
            }
        }
    }
    let mut lines: Vec<TypeLine> = vec![];
    for mut it in all {
        let finite = it.outputs.iter().all(|o| o.to_f32().iter().all(|v| v.is_finite()));
        anyhow::ensure!(finite, "{}: the result is not finite; its time would mean nothing", it.line.storage);
        let seconds = median(&mut it.times);
        let ratio = seconds / lines.first().map_or(seconds, |first| first.seconds);
        lines.push(TypeLine { seconds, ratio, ..it.line });
    }
    Ok(lines)
}

fn ready(backend: &dyn Backend, graph: &Graph, storage: Storage, rank: Option<usize>) -> anyhow::Result<Vec<Ready>> {
    let mut graph = graph.clone();
    let shapes: std::collections::HashMap<String, Vec<usize>> =
        graph.params().map(|(name, value)| (name.to_owned(), graph.ty(value).shape.clone())).collect();
    graph.set_storages(|name| layer_storage(name, &shapes[name], storage))?;
    let plan = Plan::new(&graph, &*backend.profile())?;
    let weights = backend.pack(&graph, &plan, &RandomWeights::of(&graph))?;
    let mut all = vec![one(backend, &graph, &plan, &weights, storage.to_string())?];
    if let Some(rank) = rank {
        let of_attention = |name: &str| name.contains("attn") && shapes[name].len() == 2;
        let graph = graph.with_branches(|name| of_attention(name).then_some(rank))?;
        let plan = Plan::new(&graph, &*backend.profile())?;
        let adapters = backend.pack_adapters(&graph, &plan, &RandomWeights::of(&graph))?;
        let weights = weights.with_adapters(Some(adapters));
        all.push(one(backend, &graph, &plan, &weights, format!("{storage} + LoRA {rank}"))?);
    }
    Ok(all)
}

fn one(backend: &dyn Backend, graph: &Graph, plan: &Plan, weights: &Weights, storage: String) -> anyhow::Result<Ready> {
    let session = backend.prepare(graph, plan, weights)?;
    let (inputs, outputs) = (random_inputs(&*session)?, room_for_outputs(&*session));
    let (weight_bytes, arena_bytes) = (plan.weight_bytes(), plan.arena_bytes());
    let line = TypeLine { storage, seconds: 0.0, ratio: 0.0, weight_bytes, arena_bytes };
    Ok(Ready { session, inputs, outputs, times: vec![], line })
}
