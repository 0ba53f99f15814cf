//! The tiny autoencoder (TAESD): latents to pictures and back in a fraction of the work, for previews and for small machines.

use std::fmt;
use std::sync::Arc;

use impasto_graph::{DType, Epilogue, Graph, GraphError, Unary, Value, Window};

use super::{MAX_COUNT, MAX_LEVELS, Network, NetworkKind, PrefixedTensors, Recogniser, TensorProblem};
use crate::blocks::{ElementTypes, NetBuilder};
use crate::layout::{CheckpointLayout, TensorRef, numbered};

/// What distinguishes one tiny autoencoder from another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaesdConfig {
    /// Channels of a latent.
    pub latent: usize,
    /// Channels inside.
    pub width: usize,
    /// Blocks at each resolution of the decoder, that of the latent first.
    pub decoder: Vec<usize>,
    /// Blocks at each resolution of the encoder, that of the picture first. None where a file has a decoder only.
    pub encoder: Vec<usize>,
    /// Blocks at the resolution of the latent see all of it, by a group norm (TAEF2).
    pub pooled: bool,
}

impl TaesdConfig {
    /// The one for Stable Diffusion 1 and 2; the one for XL has the same sizes.
    pub fn sd() -> Self {
        TaesdConfig { latent: 4, width: 64, decoder: vec![3, 3, 3, 1], encoder: vec![1, 3, 3, 3], pooled: false }
    }

    /// The one for FLUX.2 (TAEF2).
    pub fn flux2() -> Self {
        TaesdConfig { latent: 32, pooled: true, ..TaesdConfig::sd() }
    }

    /// Pixels of a picture for one of a latent, along a side.
    pub fn factor(&self) -> usize {
        1 << (self.decoder.len().max(1) - 1)
    }
}

/// The decoder for latents of `[height, width]`.
///
/// Input: `latent (batch, height, width, latent)` as the diffusion model knows it: neither factor nor shift of the large autoencoder are
/// taken out of it. Output: `picture (batch, f height, f width, 3)`, from -1 to 1 like the large one's, although the layers
/// themselves work from 0 to 1.
pub fn taesd_decoder(
    config: &TaesdConfig,
    batch: usize,
    [height, width]: [usize; 2],
    numbers: ElementTypes,
) -> Result<Graph, GraphError> {
    let mut graph = Graph::new();
    let latent = graph.input("latent", [batch, height, width, config.latent], DType::F32)?;
    // Latents far out are drawn in: 3 tanh(x / 3).
    let h = graph.affine(latent, 1.0 / 3.0, 0.0)?;
    let h = graph.unary(Unary::Tanh, h)?;
    let h = graph.affine(h, 3.0, 0.0)?;
    let mut net = NetBuilder::new(&mut graph, numbers);
    let mut net = net.at("decoder.layers");
    let relu = Epilogue::new().activation(Unary::Relu).dtype(DType::F32);
    let mut h = net.conv3("0", h, config.width, relu)?;
    // Layers are numbered in a row; a function and a change of size count too.
    let mut layer = 2;
    for (level, &blocks) in config.decoder.iter().enumerate() {
        for _ in 0..blocks {
            h = block(&mut net.at(&layer.to_string()), h, config.pooled && level == 0)?;
            layer += 1;
        }
        if level + 1 < config.decoder.len() {
            h = resize(&mut net, &(layer + 1).to_string(), h, Window::pad(1).upsample(2))?;
            layer += 2;
        }
    }
    let picture = net.conv3(&layer.to_string(), h, 3, Epilogue::new().dtype(DType::F32))?;
    let picture = graph.affine(picture, 2.0, -1.0)?;
    graph.output("picture", picture)?;
    Ok(graph)
}

/// The encoder for pictures of `[height, width]`.
///
/// Input: `picture (batch, height, width, 3)`, from -1 to 1. Output: `latent (batch, height/f, width/f, latent)` as the diffusion model
/// knows it: there is neither chance in it nor a factor to apply.
pub fn taesd_encoder(
    config: &TaesdConfig,
    batch: usize,
    [height, width]: [usize; 2],
    numbers: ElementTypes,
) -> Result<Graph, GraphError> {
    let mut graph = Graph::new();
    let picture = graph.input("picture", [batch, height, width, 3], DType::F32)?;
    let mut h = graph.affine(picture, 0.5, 0.5)?;
    let mut net = NetBuilder::new(&mut graph, numbers);
    let mut net = net.at("encoder.layers");
    let mut layer = 0;
    for (level, &blocks) in config.encoder.iter().enumerate() {
        h = match level {
            0 => net.conv3("0", h, config.width, Epilogue::new().dtype(DType::F32))?,
            _ => resize(&mut net, &layer.to_string(), h, Window::pad(1).stride(2))?,
        };
        layer += 1;
        for _ in 0..blocks {
            h = block(&mut net.at(&layer.to_string()), h, config.pooled && level + 1 == config.encoder.len())?;
            layer += 1;
        }
    }
    let latent = net.conv3(&layer.to_string(), h, config.latent, Epilogue::new().dtype(DType::F32))?;
    graph.output("latent", latent)?;
    Ok(graph)
}

/// Three convolutions around a shortcut.
fn block(net: &mut NetBuilder, x: Value, pooled: bool) -> Result<Value, GraphError> {
    // x (batch, h, w, c)
    let c = net.channels(x);
    let x = if pooled { pool(&mut net.at("pool"), x)? } else { x };
    let relu = || Epilogue::new().activation(Unary::Relu);
    let h = net.conv3("conv.0", x, c, relu().dtype(net.numbers.activations))?;
    let h = net.conv3("conv.2", h, c, relu().dtype(net.numbers.activations))?;
    let h = net.conv3("conv.4", h, c, Epilogue::new().residual(x))?;
    net.graph.unary(Unary::Relu, h)
}

/// A group norm between two 1x1 convolutions, added to what it reads.
fn pool(net: &mut NetBuilder, x: Value) -> Result<Value, GraphError> {
    let c = net.channels(x);
    let widen = net.param("0.weight", &[4 * c, c, 1, 1])?;
    let h = net.graph.conv2d(x, widen, Window::pad(0), Epilogue::new().dtype(DType::F32))?; // (batch, h, w, 4c)
    let [gamma, beta] = ["1.weight", "1.bias"].map(|name| net.param(name, &[4 * c]));
    let h = net.graph.group_norm(h, [gamma?, beta?], 4, 1e-5, Some(Unary::Relu), net.numbers.activations)?;
    let narrow = net.param("3.weight", &[c, 4 * c, 1, 1])?;
    net.graph.conv2d(h, narrow, Window::pad(0), Epilogue::new().residual(x))
}

/// A convolution without a bias that changes the size.
fn resize(net: &mut NetBuilder, name: &str, x: Value, window: Window) -> Result<Value, GraphError> {
    let c = net.channels(x);
    let w = net.param(&format!("{name}.weight"), &[c, c, 3, 3])?;
    net.graph.conv2d(x, w, window, Epilogue::new().dtype(DType::F32))
}

/// A tiny autoencoder in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taesd {
    /// Its sizes.
    pub config: TaesdConfig,
    /// How the file names its tensors.
    pub layout: CheckpointLayout,
}

/// Finds tiny autoencoders.
pub static TAESD: Recogniser = Recogniser { kind: NetworkKind::TinyAutoencoder, prefixes: &["", "tae.", "vae."], find };

impl fmt::Display for Taesd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let c = &self.config;
        let half = if c.encoder.is_empty() { ", decoder only" } else { "" };
        write!(f, "tiny autoencoder, {} latent channels, width {}{half}", c.latent, c.width)
    }
}

impl Network for Taesd {
    fn kind(&self) -> NetworkKind {
        NetworkKind::TinyAutoencoder
    }

    fn graphs(&self) -> Result<Vec<Graph>, GraphError> {
        let (config, numbers) = (&self.config, ElementTypes::F32);
        let side = 2 * config.factor();
        let mut graphs = vec![taesd_decoder(config, 1, [2, 2], numbers)?];
        if !config.encoder.is_empty() {
            graphs.push(taesd_encoder(config, 1, [side, side], numbers)?);
        }
        Ok(graphs)
    }

    fn stored(&self, name: &str, has: &dyn Fn(&str) -> bool) -> TensorRef {
        match self.layout {
            CheckpointLayout::Original => original_taesd(name, has),
            CheckpointLayout::Diffusers => TensorRef::whole(name.into()),
        }
    }
}

fn find(tensors: &PrefixedTensors) -> Result<Option<Arc<dyn Network>>, TensorProblem> {
    let any = |starts: &[&str]| starts.iter().any(|start| tensors.any(start));
    let layout = if any(&["decoder.layers."]) {
        CheckpointLayout::Diffusers
    } else if any(&["taesd_decoder."]) || any(&["1.weight", "1.bias"]) && any(&["3.conv."]) {
        CheckpointLayout::Original
    } else {
        return Ok(None);
    };
    let stored = |name: &str| match layout {
        CheckpointLayout::Diffusers => name.to_string(),
        CheckpointLayout::Original => original_taesd(name, &|n| tensors.any(n)).name,
    };
    let there = |start: String| tensors.any(&stored(&start));
    let blocks = |side: &str, first: usize| {
        (first..first + MAX_COUNT).take_while(|i| there(format!("{side}.layers.{i}.conv."))).count()
    };
    let mut decoder = vec![];
    let mut layer = 2;
    while decoder.len() < MAX_LEVELS {
        let level = blocks("decoder", layer);
        decoder.push(level);
        layer += level;
        // What follows the blocks is a change of size with a convolution, or the last convolution, which alone has a bias.
        if level == 0
            || there(format!("decoder.layers.{layer}.weight"))
            || there(format!("decoder.layers.{layer}.bias"))
        {
            break;
        }
        tensors.need(&stored(&format!("decoder.layers.{}.weight", layer + 1)), 0)?;
        layer += 2;
    }
    let width = tensors.need(&stored("decoder.layers.0.weight"), 0)?;
    let latent = tensors.need(&stored("decoder.layers.0.weight"), 1)?;
    let mut encoder = vec![];
    // In a file of its own, the decoder's first layer must not be taken for a second one of the encoder.
    if tensors.size(&stored("encoder.layers.0.weight"), 1) == Some(3) {
        let mut layer = 0;
        while encoder.len() < MAX_LEVELS {
            let level = blocks("encoder", layer + 1);
            if level == 0 || tensors.need(&stored(&format!("encoder.layers.{layer}.weight")), 0)? != width {
                break;
            }
            encoder.push(level);
            layer += 1 + level;
        }
    }
    let pooled = there("decoder.layers.2.pool.".into());
    let config = TaesdConfig { latent, width, decoder, encoder, pooled };
    let consistent = config.encoder.is_empty() || config.encoder.len() == config.decoder.len();
    let network = (consistent && config.decoder.iter().all(|n| *n > 0)).then_some(Taesd { config, layout });
    Ok(network.map(|network| Arc::new(network) as Arc<dyn Network>))
}

/// A parameter of the tiny autoencoder in its author's files, which count one more function in front of the decoder. The halves are two
/// files, or one with a prefix for each.
fn original_taesd(name: &str, has: &dyn Fn(&str) -> bool) -> TensorRef {
    let place = |side: &str, first: usize| {
        let (i, rest) = numbered(name, &format!("{side}.layers."))?;
        let short = format!("{}.{rest}", i + first);
        let long = format!("taesd_{side}.{short}");
        Some(if has(&long) { long } else { short })
    };
    TensorRef::whole(place("decoder", 1).or_else(|| place("encoder", 0)).unwrap_or_else(|| name.into()))
}
