//! The autoencoder of Qwen-Image and Wan 2.1 for one picture: of its convolutions over time only the last tap meets the picture.

use std::fmt;
use std::sync::Arc;

use impasto_graph::{DType, Epilogue, Graph, GraphError, Unary, Value, Window};
use impasto_weights::TensorView;

use super::{MAX_LEVELS, Network, NetworkKind, PrefixedTensors, Recogniser, TensorProblem};
use crate::blocks::{ElementTypes, NetBuilder};
use crate::layout::{TensorRef, numbered, replace_start};

/// What distinguishes one autoencoder of this kind from another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QwenVaeConfig {
    /// Channels of a latent.
    pub latent: usize,
    /// Channels at each resolution, full resolution first.
    pub channels: Vec<usize>,
    /// Residual blocks at each resolution of the encoder; the decoder has one more.
    pub resnets: usize,
}

impl QwenVaeConfig {
    /// That of Qwen-Image.
    pub fn published() -> Self {
        QwenVaeConfig { latent: 16, channels: vec![96, 192, 384, 384], resnets: 2 }
    }

    /// Pixels of a picture for one of a latent, along a side.
    pub fn factor(&self) -> usize {
        1 << (self.channels.len() - 1)
    }

    /// Where the blocks of a resolution begin in the encoder's list: its residual blocks, then what makes the picture smaller.
    fn first_block(&self, level: usize) -> usize {
        level * (self.resnets + 1)
    }
}

/// How a file names the tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QwenVaeLayout {
    /// As a diffusers folder does.
    Diffusers,
    /// As the files of Wan and ComfyUI do.
    Wan,
}

/// The autoencoder in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QwenVae {
    /// Its sizes.
    pub config: QwenVaeConfig,
    /// How the file names its tensors.
    pub layout: QwenVaeLayout,
}

/// The norm has no such number; none is needed above it.
const EPS: f32 = 1e-24;

/// The decoder for latents of `[height, width]`.
///
/// Input: `latent (1, height, width, latent)`. Output: `picture (1, f height, f width, 3)`, from -1 to 1.
pub fn qwen_vae_decoder(
    config: &QwenVaeConfig,
    [height, width]: [usize; 2],
    numbers: ElementTypes,
) -> Result<Graph, GraphError> {
    let mut graph = Graph::new();
    let latent = graph.input("latent", [1, height, width, config.latent], DType::F32)?;
    let mut net = NetBuilder::new(&mut graph, numbers);
    let h = net.conv("post_quant_conv", latent, config.latent, 1, Window::pad(0), Epilogue::new())?;
    let mut net = net.at("decoder");
    let levels = config.channels.len();
    let mut h = net.conv3("conv_in", h, config.channels[levels - 1], Epilogue::new())?;
    h = middle(&mut net.at("mid_block"), h)?;
    for level in (0..levels).rev() {
        let mut block = net.at(&format!("up_blocks.{}", levels - 1 - level));
        let n = config.channels[level];
        for i in 0..=config.resnets {
            h = resnet(&mut block.at(&format!("resnets.{i}")), h, n)?;
        }
        if level > 0 {
            let window = Window::pad(1).upsample(2);
            h = block.conv("upsamplers.0.resample.1", h, n / 2, 3, window, Epilogue::new().dtype(DType::F32))?;
        }
    }
    let h = norm(&mut net, "norm_out", h)?;
    let picture = net.conv3("conv_out", h, 3, Epilogue::new().dtype(DType::F32))?;
    graph.output("picture", picture)?;
    Ok(graph)
}

/// The encoder for pictures of `[height, width]`.
///
/// Input: `picture (1, height, width, 3)`, from -1 to 1. Output: `moments (1, height/f, width/f, 2 latent)`, the means and the logarithms of the variances.
pub fn qwen_vae_encoder(
    config: &QwenVaeConfig,
    [height, width]: [usize; 2],
    numbers: ElementTypes,
) -> Result<Graph, GraphError> {
    let mut graph = Graph::new();
    let picture = graph.input("picture", [1, height, width, 3], DType::F32)?;
    let mut whole = NetBuilder::new(&mut graph, numbers);
    let mut net = whole.at("encoder");
    let levels = config.channels.len();
    let mut h = net.conv3("conv_in", picture, config.channels[0], Epilogue::new())?;
    for (level, &n) in config.channels.iter().enumerate() {
        let first = config.first_block(level);
        for i in 0..config.resnets {
            h = resnet(&mut net.at(&format!("down_blocks.{}", first + i)), h, n)?;
        }
        if level + 1 < levels {
            let window = Window::pad(0).padding([0, 0, 1, 1]).stride(2);
            let name = format!("down_blocks.{}.resample.1", first + config.resnets);
            h = net.conv(&name, h, n, 3, window, Epilogue::new().dtype(DType::F32))?;
        }
    }
    h = middle(&mut net.at("mid_block"), h)?;
    let h = norm(&mut net, "norm_out", h)?;
    let h = net.conv3("conv_out", h, 2 * config.latent, Epilogue::new().dtype(DType::F32))?;
    let moments = whole.conv("quant_conv", h, 2 * config.latent, 1, Window::pad(0), Epilogue::new())?;
    graph.output("moments", moments)?;
    Ok(graph)
}

/// The norm of each pixel, then SiLU; its result goes into a product.
fn norm(net: &mut NetBuilder, name: &str, x: Value) -> Result<Value, GraphError> {
    let gamma = net.param(&format!("{name}.gamma"), &[net.channels(x)])?;
    let h = net.graph.rms_norm(x, gamma, EPS, net.numbers.activations)?;
    net.graph.unary(Unary::Silu, h)
}

/// Two convolutions and a shortcut.
fn resnet(net: &mut NetBuilder, x: Value, n: usize) -> Result<Value, GraphError> {
    let shortcut = match net.channels(x) == n {
        true => x,
        false => net.conv("conv_shortcut", x, n, 1, Window::pad(0), Epilogue::new().dtype(DType::F32))?,
    };
    let h = norm(net, "norm1", x)?;
    let h = net.conv3("conv1", h, n, Epilogue::new().dtype(DType::F32))?;
    let h = norm(net, "norm2", h)?;
    net.conv3("conv2", h, n, Epilogue::new().residual(shortcut).dtype(DType::F32))
}

/// Two residual blocks around one attention over all pixels.
fn middle(net: &mut NetBuilder, x: Value) -> Result<Value, GraphError> {
    let [batch, height, width, c] = net.graph.ty(x).shape[..] else { unreachable!("x is an image") };
    let x = resnet(&mut net.at("resnets.0"), x, c)?;
    let mut attn = net.at("attentions.0");
    let gamma = attn.param("norm.gamma", &[c])?;
    let h = attn.graph.rms_norm(x, gamma, EPS, attn.numbers.activations)?;
    let h = attn.graph.reshape(h, [batch, height * width, c])?; // pixels are tokens
    let q = attn.linear("to_q", h, c, Epilogue::new())?;
    let k = attn.linear("to_k", h, c, Epilogue::new())?;
    let v = attn.linear("to_v", h, c, Epilogue::new())?;
    let a = attn.graph.attention(q, k, v, 1, false)?;
    let tokens = attn.graph.reshape(x, [batch, height * width, c])?;
    let h = attn.linear("proj", a, c, Epilogue::new().residual(tokens))?;
    let x = attn.graph.reshape(h, [batch, height, width, c])?;
    resnet(&mut net.at("resnets.1"), x, c)
}

/// Finds autoencoders of this kind.
pub static QWEN_VAE: Recogniser =
    Recogniser { kind: NetworkKind::Autoencoder, prefixes: &["first_stage_model.", "vae.", ""], find };

impl fmt::Display for QwenVae {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let c = &self.config;
        write!(f, "autoencoder of Qwen-Image, {} latent channels, widths {:?}", c.latent, c.channels)
    }
}

impl Network for QwenVae {
    fn kind(&self) -> NetworkKind {
        NetworkKind::Autoencoder
    }

    fn graphs(&self) -> Result<Vec<Graph>, GraphError> {
        let (config, numbers) = (&self.config, ElementTypes::F32);
        let side = 2 * config.factor();
        Ok(vec![qwen_vae_decoder(config, [2, 2], numbers)?, qwen_vae_encoder(config, [side, side], numbers)?])
    }

    fn stored(&self, name: &str, _: &dyn Fn(&str) -> bool) -> TensorRef {
        let TensorRef { name, take } = in_time(name);
        match self.layout {
            QwenVaeLayout::Diffusers => TensorRef { name, take },
            QwenVaeLayout::Wan => TensorRef { name: wan_name(&name, &self.config), take },
        }
    }
}

/// A parameter in a diffusers folder: convolutions that also run over time have three taps there, or one; what attends is joined.
fn in_time(name: &str) -> TensorRef {
    for (part, ours) in [".to_q.", ".to_k.", ".to_v."].into_iter().enumerate() {
        if name.contains(ours) {
            return TensorRef { name: name.replace(ours, ".to_qkv."), take: TensorView::Rows(part, 3) };
        }
    }
    let is_convolution = name.ends_with(".weight") && !name.contains(".resample.") && !name.contains(".proj.");
    let taps = if name.contains("quant_conv") || name.contains("conv_shortcut") { 1 } else { 3 };
    let take = if is_convolution { TensorView::LastTap(taps) } else { TensorView::Whole };
    TensorRef { name: name.into(), take }
}

fn find(tensors: &PrefixedTensors) -> Result<Option<Arc<dyn Network>>, TensorProblem> {
    let (layout, first, decoder_in) = if tensors.has("encoder.mid_block.attentions.0.norm.gamma") {
        (QwenVaeLayout::Diffusers, "encoder.conv_in.weight", "decoder.conv_in.weight")
    } else if tensors.has("encoder.middle.1.norm.gamma") {
        (QwenVaeLayout::Wan, "encoder.conv1.weight", "decoder.conv1.weight")
    } else {
        return Ok(None);
    };
    // Residual blocks up to the first that makes the picture smaller.
    let (blocks, conv) = match layout {
        QwenVaeLayout::Diffusers => ("encoder.down_blocks.", "conv1.weight"),
        QwenVaeLayout::Wan => ("encoder.downsamples.", "residual.2.weight"),
    };
    let count = tensors.count(blocks);
    let smaller = |i: &usize| tensors.any(&format!("{blocks}{i}.resample."));
    let resnets = (0..count).find(smaller).unwrap_or(count).max(1);
    let levels = (count + 1).div_ceil(resnets + 1).clamp(1, MAX_LEVELS);
    let width = |level: usize| tensors.need(&format!("{blocks}{}.{conv}", level * (resnets + 1)), 0);
    let config = QwenVaeConfig {
        latent: tensors.need(decoder_in, 1)?,
        channels: (0..levels).map(width).collect::<Result<_, _>>()?,
        resnets,
    };
    // A video's autoencoder of another kind has more channels of a picture.
    let fits = tensors.size(first, 1) == Some(3);
    Ok(fits.then(|| Arc::new(QwenVae { config, layout }) as Arc<dyn Network>))
}

/// The same in the files of Wan.
fn wan_name(name: &str, config: &QwenVaeConfig) -> String {
    let resnet = |rest: &str| {
        let pairs = [
            ("norm1.", "residual.0."),
            ("conv1.", "residual.2."),
            ("norm2.", "residual.3."),
            ("conv2.", "residual.6."),
            ("conv_shortcut.", "shortcut."),
        ];
        replace_start(rest, &pairs).unwrap_or_else(|| rest.into())
    };
    let Some((side, rest)) = name.split_once('.').filter(|(side, _)| matches!(*side, "encoder" | "decoder")) else {
        return replace_start(name, &[("quant_conv.", "conv1."), ("post_quant_conv.", "conv2.")])
            .unwrap_or(name.into());
    };
    let middle = [
        ("mid_block.attentions.0.", "middle.1."),
        ("conv_in.", "conv1."),
        ("norm_out.", "head.0."),
        ("conv_out.", "head.2."),
    ];
    let renamed = if let Some((i, rest)) = numbered(rest, "down_blocks.") {
        format!("downsamples.{i}.{}", resnet(rest))
    } else if let Some((level, rest)) = numbered(rest, "up_blocks.") {
        // One list there: residual blocks, then what makes the picture larger.
        let first = level * (config.resnets + 2);
        match numbered(rest, "resnets.") {
            Some((i, rest)) => format!("upsamples.{}.{}", first + i, resnet(rest)),
            None => {
                let rest = rest.strip_prefix("upsamplers.0.").unwrap_or(rest);
                format!("upsamples.{}.{rest}", first + config.resnets + 1)
            }
        }
    } else if let Some((i, rest)) = numbered(rest, "mid_block.resnets.") {
        format!("middle.{}.{}", 2 * i, resnet(rest))
    } else {
        replace_start(rest, &middle).unwrap_or_else(|| rest.into())
    };
    format!("{side}.{renamed}")
}
