//! A made-up family, all of it in this file: a text encoder that reads one sequence in a template, a denoiser of two layers that was trained by
//! flow matching and reads the guidance, latents of one channel that are sampled four to a token, and statistics of latents.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use impasto_graph::{DType, Epilogue, Graph, GraphError, HostTensor, Unary, Window};
use impasto_model::{
    AssembledModel, Condition, Defaults, Discovered, ElementTypes, EncodedText, Family, Gaussian, Inputs, LatentShape,
    Latents, Levels, ModelError, NetBuilder, Network, NetworkId, NetworkKind, NoisyLatent, Pipeline, Prediction,
    PrefixedTensors, Recogniser, RunOptions, TensorProblem, TensorRef, TextEncoder, TextRole, TokenLayout,
    TokenizerKind, channels_first, channels_last,
};

pub const LEAST: usize = 8;
pub const MEAN: f32 = 0.25;
pub const DEVIATION: f32 = 1.5;

/// A text as the encoder reads it.
pub fn template(text: &str, _: TextRole) -> String {
    format!("<|startoftext|>{text} on paper<|endoftext|>")
}

/// The family.
pub struct Toy;

/// What all of its networks are: functions with parameters of these shapes.
#[derive(Clone, Debug)]
struct ToyNetwork {
    kind: NetworkKind,
    graphs: fn(ElementTypes) -> Result<Vec<Graph>, GraphError>,
}

static TEXT: Recogniser = Recogniser {
    kind: NetworkKind::TextEncoder,
    prefixes: &["toy_text."],
    find: |tensors| found(tensors, "project.weight", NetworkKind::TextEncoder, |n| Ok(vec![text([1, 1], n)?])),
};
static DENOISER: Recogniser = Recogniser {
    kind: NetworkKind::Denoiser,
    prefixes: &["toy_denoiser."],
    find: |tensors| found(tensors, "out.weight", NetworkKind::Denoiser, |n| Ok(vec![denoiser(1, 1, n)?])),
};
static AUTOENCODER: Recogniser = Recogniser {
    kind: NetworkKind::Autoencoder,
    prefixes: &["toy_vae."],
    find: |tensors| {
        let graphs = |n| Ok(vec![decoder([2, 2], n)?, encoder([2, 2], n)?]);
        found(tensors, "decoder.out.weight", NetworkKind::Autoencoder, graphs)
    },
};

fn found(
    tensors: &PrefixedTensors,
    mark: &str,
    kind: NetworkKind,
    graphs: fn(ElementTypes) -> Result<Vec<Graph>, GraphError>,
) -> Result<Option<Arc<dyn Network>>, TensorProblem> {
    Ok(tensors.has(mark).then(|| Arc::new(ToyNetwork { kind, graphs }) as Arc<dyn Network>))
}

impl fmt::Display for ToyNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "toy {}", self.kind)
    }
}

impl Network for ToyNetwork {
    fn kind(&self) -> NetworkKind {
        self.kind
    }

    fn graphs(&self) -> Result<Vec<Graph>, GraphError> {
        (self.graphs)(ElementTypes::F32)
    }

    fn stored(&self, name: &str, _: &dyn Fn(&str) -> bool) -> TensorRef {
        TensorRef::whole(name.into())
    }
}

/// `ids (sequences, tokens)` to `states (sequences, tokens, 4)`.
fn text([sequences, tokens]: [usize; 2], numbers: ElementTypes) -> Result<Graph, GraphError> {
    let mut graph = Graph::new();
    let ids = graph.input("ids", [sequences, tokens], DType::I32)?;
    let mut net = NetBuilder::new(&mut graph, numbers);
    let table = net.param("table.weight", &[49_408, 4])?;
    let x = net.graph.embedding(table, ids)?;
    let states = net.linear("project", x, 4, Epilogue::new().dtype(DType::F32))?;
    graph.output("states", states)?;
    Ok(graph)
}

/// Tokens of four, each with its position, the time, the guidance and the text, to the velocity `(batch, tokens, 4)`.
fn denoiser(batch: usize, tokens: usize, numbers: ElementTypes) -> Result<Graph, GraphError> {
    let mut graph = Graph::new();
    let mut parts = vec![];
    for (name, width) in [("tokens", 4), ("positions", 2), ("time", 1), ("guidance", 1), ("text", 4)] {
        parts.push(graph.input(name, [batch, tokens, width], DType::F32)?);
    }
    let x = graph.concat(2, &parts)?;
    let mut net = NetBuilder::new(&mut graph, numbers);
    let h = net.linear("in", x, 16, Epilogue::new().activation(Unary::Silu))?;
    let velocity = net.linear("out", h, 4, Epilogue::new().dtype(DType::F32))?;
    graph.output("velocity", velocity)?;
    Ok(graph)
}

fn decoder([height, width]: [usize; 2], numbers: ElementTypes) -> Result<Graph, GraphError> {
    let mut graph = Graph::new();
    let latent = graph.input("latent", [1, height, width, 1], DType::F32)?;
    let mut net = NetBuilder::new(&mut graph, numbers);
    let window = Window::pad(0).upsample(2);
    let picture = net.conv("decoder.out", latent, 3, 1, window, Epilogue::new().dtype(DType::F32))?;
    graph.output("picture", picture)?;
    Ok(graph)
}

fn encoder([height, width]: [usize; 2], numbers: ElementTypes) -> Result<Graph, GraphError> {
    let mut graph = Graph::new();
    let picture = graph.input("picture", [1, 2 * height, 2 * width, 3], DType::F32)?;
    let mut net = NetBuilder::new(&mut graph, numbers);
    let window = Window::pad(0).stride(2);
    let latent = net.conv("encoder.in", picture, 1, 2, window, Epilogue::new().dtype(DType::F32))?;
    graph.output("latent", latent)?;
    Ok(graph)
}

impl Family for Toy {
    fn networks(&self) -> Vec<&'static Recogniser> {
        vec![&TEXT, &DENOISER, &AUTOENCODER]
    }

    fn recognises(&self, denoiser: &dyn Network) -> Option<&'static str> {
        denoiser.downcast::<ToyNetwork>().map(|_| "Toy")
    }

    fn open(&self, files: &mut Discovered) -> Result<AssembledModel, ModelError> {
        let missing = |what| move || ModelError::Mismatch(format!("the toy has no {what}"));
        let text = files.text.first().map(|(pick, _)| pick.clone());
        let mut networks = BTreeMap::new();
        for (pick, ids, what) in [
            (text, &[NetworkId::TextEncoder(0)][..], "text encoder"),
            (files.denoiser.clone(), &[NetworkId::Denoiser], "denoiser"),
            (files.autoencoder.clone(), &[NetworkId::VaeEncoder, NetworkId::VaeDecoder], "autoencoder"),
        ] {
            let pick = pick.ok_or_else(missing(what))?;
            let network = pick.open(pick.network::<ToyNetwork>().ok_or_else(missing(what))?, what)?;
            networks.extend(ids.iter().map(|id| (*id, network.clone())));
        }
        Ok(AssembledModel { pipeline: Arc::new(ToyPipeline::new()), networks })
    }
}

struct ToyPipeline {
    text: [TextEncoder; 1],
    latents: Latents,
    defaults: Defaults,
}

impl ToyPipeline {
    fn new() -> ToyPipeline {
        let tokens = TokenLayout::Sequence { template, least: LEAST, most: 16 };
        ToyPipeline {
            text: [TextEncoder { tokenizer: TokenizerKind::Clip, tokens, table: "table.weight" }],
            latents: Latents {
                channels: 4,
                pixels: 4,
                autoencoder_pixels: 2,
                multiple: 4,
                preview: vec![[0.25; 3], [0.25; 3], [0.25; 3], [0.25; 3], [0.0; 3]],
            },
            defaults: Defaults {
                size: [24, 32],
                steps: 5,
                guidance: 1.0,
                distilled_guidance: Some(3.5),
                method: "euler",
                schedule: None,
                clip_skip: 1,
            },
        }
    }
}

impl Pipeline for ToyPipeline {
    fn name(&self) -> &'static str {
        "Toy"
    }

    fn defaults(&self) -> &Defaults {
        &self.defaults
    }

    fn text(&self) -> &[TextEncoder] {
        &self.text
    }

    fn text_encoder(
        &self,
        _: usize,
        ids: [usize; 2],
        _: &RunOptions,
        numbers: ElementTypes,
    ) -> Result<Graph, GraphError> {
        text(ids, numbers)
    }

    fn text_inputs(&self, _: usize, ids: HostTensor, _: &[usize]) -> Result<Inputs, GraphError> {
        Ok(vec![("ids", ids)])
    }

    /// The mean of the states up to the end of the text: padding is not looked at.
    fn condition(&self, text: &[EncodedText], _: TextRole, _: &RunOptions) -> Result<Condition, GraphError> {
        let EncodedText { outputs, ids, end, .. } = &text[0];
        let states = outputs[0].to_f32();
        let tokens = ids.iter().position(|id| id == end).map_or(ids.len(), |at| at + 1);
        let mean = |i: usize| (0..tokens).map(|token| states[4 * token + i]).sum::<f32>() / tokens as f32;
        Ok(Condition([("text", HostTensor::f32([4], (0..4).map(mean).collect())?)].into()))
    }

    fn reads_negative(&self, _: f32) -> bool {
        false
    }

    fn denoiser(
        &self,
        batch: usize,
        latent: LatentShape,
        _: &[usize],
        numbers: ElementTypes,
    ) -> Result<Graph, GraphError> {
        denoiser(batch, latent.area(), numbers)
    }

    fn denoiser_inputs(
        &self,
        latent: &NoisyLatent,
        conditions: &[Condition],
        options: &RunOptions,
    ) -> Result<Inputs, GraphError> {
        let (n, area, width) = (conditions.len(), latent.shape.area(), latent.shape.width);
        let text = Condition::batch(conditions, "text")?.to_f32();
        let text = text.chunks_exact(4).flat_map(|one| one.repeat(area)).collect();
        let positions: Vec<f32> = (0..area).flat_map(|i| [i / width, i % width]).map(|n| n as f32 / 8.0).collect();
        let tensor = |width: usize, numbers: Vec<f32>| HostTensor::f32([n, area, width], numbers);
        Ok(vec![
            ("tokens", tensor(4, channels_last(latent.values, 4).repeat(n))?),
            ("positions", tensor(2, positions.repeat(n))?),
            ("time", tensor(1, vec![latent.sigma; n * area])?),
            ("guidance", tensor(1, vec![options.distilled_guidance; n * area])?),
            ("text", tensor(4, text)?),
        ])
    }

    fn predictions(&self, output: &HostTensor, latent: LatentShape) -> Vec<Vec<f32>> {
        output.to_f32().chunks_exact(latent.len()).map(|one| channels_first(one, 4)).collect()
    }

    fn prediction(&self) -> Prediction {
        Prediction::Flow
    }

    /// Shifted towards noise, the more the larger the picture.
    fn levels(&self, latent: LatentShape, steps: usize, _: Option<f32>) -> Levels {
        let shift = 1.0 + latent.area() as f32 / 24.0;
        let level = |i: usize| 1.0 - i as f32 / steps as f32;
        Levels::Fixed((0..=steps).map(level).map(|t| shift * t / (1.0 + (shift - 1.0) * t)).collect())
    }

    fn latents(&self) -> &Latents {
        &self.latents
    }

    fn autoencoder(&self, network: NetworkId, grid: [usize; 2], numbers: ElementTypes) -> Result<Graph, GraphError> {
        match network {
            NetworkId::VaeEncoder => encoder(grid, numbers),
            _ => decoder(grid, numbers),
        }
    }

    fn decoder_input(&self, _: NetworkId, latent: &[f32], shape: LatentShape) -> Vec<f32> {
        let mut grid = vec![0.0; latent.len()];
        for (i, at) in places(shape).enumerate() {
            grid[at] = latent[i] * DEVIATION + MEAN;
        }
        grid
    }

    fn encoder_output(&self, output: &[f32], shape: LatentShape) -> Gaussian {
        let mean = places(shape).map(|at| (output[at] - MEAN) / DEVIATION).collect();
        Gaussian { mean, deviation: vec![0.0; output.len()] }
    }
}

/// Where each number of a latent is on the autoencoder's grid: the channels are the pixels of a square of two by two.
fn places(LatentShape { height, width, .. }: LatentShape) -> impl Iterator<Item = usize> {
    let at = move |c: usize, i: usize| (2 * (i / width) + c / 2) * 2 * width + 2 * (i % width) + c % 2;
    (0..4).flat_map(move |c| (0..height * width).map(move |i| at(c, i)))
}
