//! The UNet of Stable Diffusion 1, 2 and XL.

use impasto_graph::{DType, Epilogue, Graph, GraphError, Unary, Value, Window};

use crate::layers::{Net, Numbers};

/// How many attention heads a layer has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Heads {
    /// The same number everywhere (Stable Diffusion 1).
    Count(usize),
    /// Heads of the same width everywhere (Stable Diffusion 2 and XL).
    Width(usize),
    /// So many at each resolution.
    Levels(Vec<usize>),
}

impl Heads {
    /// The number of heads of a layer with `channels`.
    fn at(&self, level: usize, channels: usize) -> usize {
        match self {
            Heads::Count(n) => *n,
            Heads::Width(w) => (channels / w).max(1),
            Heads::Levels(counts) => counts.get(level).copied().unwrap_or(1),
        }
    }
}

/// What distinguishes one UNet from another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnetConfig {
    /// Channels of the latent that goes in: 4, or 9 for inpainting.
    pub in_channels: usize,
    /// Channels that come out.
    pub out_channels: usize,
    /// Channels at each resolution, full resolution first.
    pub channels: Vec<usize>,
    /// Transformer layers at each resolution; 0 where there is no attention.
    pub depth: Vec<usize>,
    /// Transformer layers in the middle.
    pub mid_depth: usize,
    /// Residual blocks at each resolution.
    pub resnets: usize,
    /// Attention heads.
    pub heads: Heads,
    /// Width of the text embedding.
    pub context: usize,
    /// The transformers' outer projections are linear layers, not 1x1 convolutions.
    pub linear_projection: bool,
    /// Width of the pooled text and sizes that are added to the time (SDXL).
    pub added: Option<usize>,
}

impl UnetConfig {
    /// Stable Diffusion 1.
    pub fn sd15() -> Self {
        UnetConfig {
            in_channels: 4,
            out_channels: 4,
            channels: vec![320, 640, 1280, 1280],
            depth: vec![1, 1, 1, 0],
            mid_depth: 1,
            resnets: 2,
            heads: Heads::Count(8),
            context: 768,
            linear_projection: false,
            added: None,
        }
    }

    /// Stable Diffusion 2.
    pub fn sd21() -> Self {
        UnetConfig { heads: Heads::Width(64), context: 1024, linear_projection: true, ..Self::sd15() }
    }

    /// Stable Diffusion XL.
    pub fn sdxl() -> Self {
        UnetConfig {
            channels: vec![320, 640, 1280],
            depth: vec![0, 2, 10],
            mid_depth: 10,
            context: 2048,
            added: Some(2816),
            ..Self::sd21()
        }
    }
}

const RESNET_EPS: f32 = 1e-5;

/// The UNet for latents of `[height, width]` and texts of `tokens` tokens.
///
/// Inputs: `latent (batch, height, width, in)`, `time (batch)`, `context (batch, tokens, width)`, and for SDXL
/// `added (batch, width)`. Output: `noise (batch, height, width, out)`.
pub fn unet(
    config: &UnetConfig,
    batch: usize,
    [height, width]: [usize; 2],
    tokens: usize,
    numbers: Numbers,
) -> Result<Graph, GraphError> {
    let mut graph = Graph::new();
    let latent = graph.input("latent", [batch, height, width, config.in_channels], DType::F32)?;
    let time = graph.input("time", [batch], DType::F32)?;
    let context = graph.input("context", [batch, tokens, config.context], DType::F32)?;
    let added = match config.added {
        Some(n) => Some(graph.input("added", [batch, n], DType::F32)?),
        None => None,
    };
    // The text is read by every layer: converted once, it is half the bytes.
    let context = graph.cast(context, numbers.activations)?;
    let mut net = Net::new(&mut graph, numbers);
    let levels = config.channels.len();
    let time = time_embedding(&mut net, config.channels[0], time, added)?; // (batch, 4 c0)

    let mut h = net.conv3("conv_in", latent, config.channels[0], Epilogue::new())?;
    let mut skips = vec![h];
    for level in 0..levels {
        let mut block = net.at(&format!("down_blocks.{level}"));
        let n = config.channels[level];
        for i in 0..config.resnets {
            h = block.at(&format!("resnets.{i}")).resnet(h, n, Some(time), RESNET_EPS)?;
            if config.depth[level] > 0 {
                let (mut at, depth) = (block.at(&format!("attentions.{i}")), config.depth[level]);
                h = transformer(&mut at, config, level, h, context, depth)?;
            }
            skips.push(h);
        }
        if level + 1 < levels {
            h = block.conv("downsamplers.0.conv", h, n, 3, Window::pad(1).stride(2), Epilogue::new())?;
            skips.push(h);
        }
    }

    let n = config.channels[levels - 1];
    let mut block = net.at("mid_block");
    h = block.at("resnets.0").resnet(h, n, Some(time), RESNET_EPS)?;
    h = transformer(&mut block.at("attentions.0"), config, levels - 1, h, context, config.mid_depth)?;
    h = block.at("resnets.1").resnet(h, n, Some(time), RESNET_EPS)?;

    for level in (0..levels).rev() {
        let mut block = net.at(&format!("up_blocks.{}", levels - 1 - level));
        let n = config.channels[level];
        for i in 0..=config.resnets {
            let skip = skips.pop().expect("as many skips as blocks that take one");
            h = block.graph.concat(3, &[h, skip])?;
            h = block.at(&format!("resnets.{i}")).resnet(h, n, Some(time), RESNET_EPS)?;
            if config.depth[level] > 0 {
                let (mut at, depth) = (block.at(&format!("attentions.{i}")), config.depth[level]);
                h = transformer(&mut at, config, level, h, context, depth)?;
            }
        }
        if level > 0 {
            h = block.conv("upsamplers.0.conv", h, n, 3, Window::pad(1).upsample(2), Epilogue::new())?;
        }
    }

    let h = net.group_norm("conv_norm_out", h, RESNET_EPS, Some(Unary::Silu))?;
    let noise = net.conv3("conv_out", h, config.out_channels, Epilogue::new().dtype(DType::F32))?;
    graph.output("noise", noise)?;
    Ok(graph)
}

/// The time, and for SDXL the pooled text and sizes, as one vector that every residual block reads.
fn time_embedding(net: &mut Net, width: usize, time: Value, added: Option<Value>) -> Result<Value, GraphError> {
    let n = 4 * width;
    let t = net.graph.timestep_embedding(time, width)?; // (batch, c0)
    let t = net.linear("time_embedding.linear_1", t, n, Epilogue::new().activation(Unary::Silu))?;
    let mut t = net.linear("time_embedding.linear_2", t, n, Epilogue::new())?;
    if let Some(added) = added {
        let a = net.linear("add_embedding.linear_1", added, n, Epilogue::new().activation(Unary::Silu))?;
        t = net.linear("add_embedding.linear_2", a, n, Epilogue::new().residual(t))?;
    }
    net.graph.unary(Unary::Silu, t)
}

/// Transformer layers over the pixels of an image, around a shortcut.
fn transformer(
    net: &mut Net,
    config: &UnetConfig,
    level: usize,
    x: Value,
    context: Value,
    depth: usize,
) -> Result<Value, GraphError> {
    let [batch, height, width, c] = net.graph.ty(x).shape[..] else { unreachable!("x is an image") };
    let heads = config.heads.at(level, c);
    let f32 = Epilogue::new().dtype(DType::F32);
    let h = net.group_norm("norm", x, 1e-6, None)?;
    let h = match config.linear_projection {
        true => net.linear("proj_in", h, c, f32)?,
        false => net.conv("proj_in", h, c, 1, Window::pad(0), f32)?,
    };
    let mut h = net.graph.reshape(h, [batch, height * width, c])?; // pixels are tokens
    for i in 0..depth {
        h = transformer_layer(&mut net.at(&format!("transformer_blocks.{i}")), heads, h, context)?;
    }
    let h = net.graph.reshape(h, [batch, height, width, c])?;
    match config.linear_projection {
        true => net.linear("proj_out", h, c, Epilogue::new().residual(x)),
        false => net.conv("proj_out", h, c, 1, Window::pad(0), Epilogue::new().residual(x)),
    }
}

fn transformer_layer(net: &mut Net, heads: usize, x: Value, context: Value) -> Result<Value, GraphError> {
    // x (batch, tokens, c)
    let c = net.channels(x);
    let h = net.layer_norm("norm1", x)?;
    let x = attention(&mut net.at("attn1"), heads, x, h, h)?;
    let h = net.layer_norm("norm2", x)?;
    let x = attention(&mut net.at("attn2"), heads, x, h, context)?;
    let h = net.layer_norm("norm3", x)?;
    let h = net.linear("ff.net.0.proj", h, 8 * c, Epilogue::new().geglu())?; // (batch, tokens, 4 c)
    net.linear("ff.net.2", h, c, Epilogue::new().residual(x))
}

/// `x` plus the attention of `h` over `context`.
fn attention(net: &mut Net, heads: usize, x: Value, h: Value, context: Value) -> Result<Value, GraphError> {
    let c = net.channels(x);
    let q = net.project("to_q", h, c)?;
    let k = net.project("to_k", context, c)?;
    let v = net.project("to_v", context, c)?;
    let a = net.graph.attention(q, k, v, heads, false)?;
    net.linear("to_out.0", a, c, Epilogue::new().residual(x))
}
