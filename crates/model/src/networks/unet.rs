//! The UNet of Stable Diffusion 1, 2 and XL.

use std::fmt;
use std::sync::Arc;

use impasto_graph::{DType, Epilogue, Graph, GraphError, Unary, Value, Window};

use super::{MAX_LEVELS, Network, NetworkKind, PrefixedTensors, Recogniser, TensorProblem};
use crate::ModelError;
use crate::blocks::{ElementTypes, NetBuilder};
use crate::config::Config;
use crate::layout::{CheckpointLayout, TensorRef, numbered, replace_start};

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

impl UnetConfig {
    /// The size of latents that it was trained with, as `unet/config.json` says, `[height, width]`.
    pub(crate) fn sample_size(json: &Config) -> Result<Option<[usize; 2]>, ModelError> {
        match json.counts("sample_size")?.as_deref() {
            None => Ok(None),
            Some([side]) => Ok(Some([*side; 2])),
            Some([height, width]) => Ok(Some([*height, *width])),
            Some(_) => Err(json.wrong("sample_size", "has more than two numbers".into())),
        }
    }

    /// Take in what `unet/config.json` says.
    pub(crate) fn apply(&mut self, json: &Config) -> Result<(), ModelError> {
        json.only(&[
            ("norm_num_groups", 32.into()),
            ("norm_eps", 1e-5.into()),
            ("act_fn", "silu".into()),
            ("flip_sin_to_cos", true.into()),
            ("freq_shift", 0.into()),
            ("center_input_sample", false.into()),
            ("dual_cross_attention", false.into()),
            ("only_cross_attention", false.into()),
            ("downsample_padding", 1.into()),
            ("mid_block_scale_factor", 1.into()),
            ("mid_block_type", "UNetMidBlock2DCrossAttn".into()),
            ("resnet_time_scale_shift", "default".into()),
            ("time_embedding_type", "positional".into()),
            ("addition_embed_type", "text_time".into()),
            ("attention_type", "default".into()),
        ])?;
        self.check_sizes(json)?;
        json.none(&["class_embed_type", "encoder_hid_dim", "time_cond_proj_dim", "cross_attention_norm"])?;
        // `attention_head_dim` is the number of heads, in spite of its name.
        let field =
            if json.get("num_attention_heads").is_some() { "num_attention_heads" } else { "attention_head_dim" };
        let Some(counts) = json.counts(field)? else { return Ok(()) };
        let levels = self.channels.len();
        let counts = match counts[..] {
            [one] => vec![one; levels],
            _ if counts.len() == levels => counts,
            _ => return Err(json.wrong(field, format!("has {} numbers for {levels} levels", counts.len()))),
        };
        for (level, (&heads, &channels)) in counts.iter().zip(&self.channels).enumerate() {
            let attends = self.depth[level] > 0 || level + 1 == levels;
            if attends && !channels.is_multiple_of(heads) {
                let problem = format!("gives {heads} heads to {channels} channels, which cannot be divided so");
                return Err(json.wrong(field, problem));
            }
        }
        let width = |level: usize| self.channels[level] / counts[level];
        self.heads = if counts.iter().all(|&n| n == counts[0]) {
            Heads::Count(counts[0])
        } else if (0..levels).all(|level| width(level) == width(0) && width(0) > 0) {
            Heads::Width(width(0))
        } else {
            Heads::Levels(counts)
        };
        Ok(())
    }
}

impl UnetConfig {
    /// Refuses a `unet/config.json` that does not describe these weights.
    fn check_sizes(&self, json: &Config) -> Result<(), ModelError> {
        json.same_sizes("in_channels", &[self.in_channels])?;
        json.same_sizes("out_channels", &[self.out_channels])?;
        json.same_sizes("block_out_channels", &self.channels)?;
        json.same_sizes("layers_per_block", &vec![self.resnets; self.channels.len()])?;
        json.same_sizes("cross_attention_dim", &vec![self.context; self.channels.len()])?;
        let linear = json.flag("use_linear_projection")?.unwrap_or(self.linear_projection);
        if linear != self.linear_projection {
            let problem = format!("is {linear}, the weights' projections are those of the other kind");
            return Err(json.wrong("use_linear_projection", problem));
        }
        if let Some(added) = self.added {
            json.same_sizes("projection_class_embeddings_input_dim", &[added])?;
        } else if json.text("addition_embed_type")?.is_some() {
            let problem = "is set, and the weights have no tensor 'add_embedding.linear_1.weight'";
            return Err(json.wrong("addition_embed_type", problem.into()));
        }
        self.check_depths(json)
    }

    /// Levels with attention and their depths. What the configuration says of the depth of a level without attention means nothing.
    fn check_depths(&self, json: &Config) -> Result<(), ModelError> {
        let depths = json.get("transformer_layers_per_block");
        let said = |level: usize| match depths {
            Some(serde_json::Value::Array(list)) => list.get(level)?.as_u64(),
            one => one?.as_u64(),
        };
        let differs =
            |&level: &usize| self.depth[level] > 0 && said(level).is_some_and(|n| n != self.depth[level] as u64);
        let levels = self.depth.len();
        if let Some(level) = (0..levels).find(differs) {
            let problem = format!("differs from the weights, which have {} layers at level {level}", self.depth[level]);
            return Err(json.wrong("transformer_layers_per_block", problem));
        }
        let Some(types) = json.get("down_block_types").and_then(|types| types.as_array()) else { return Ok(()) };
        let attends = |level: usize| types.get(level).and_then(|t| t.as_str()).map(|t| t.starts_with("CrossAttn"));
        if types.len() != levels || (0..levels).any(|level| attends(level) != Some(self.depth[level] > 0)) {
            let problem = format!("does not fit the weights, whose levels have {:?} layers of attention", self.depth);
            return Err(json.wrong("down_block_types", problem));
        }
        Ok(())
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
    numbers: ElementTypes,
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
    let mut net = NetBuilder::new(&mut graph, numbers);
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
        if let Some(&skip) = skips.last() {
            h = upsample(&mut block, h, n, skip)?;
        }
    }

    let h = net.group_norm("conv_norm_out", h, RESNET_EPS, Some(Unary::Silu))?;
    let noise = net.conv3("conv_out", h, config.out_channels, Epilogue::new().dtype(DType::F32))?;
    graph.output("noise", noise)?;
    Ok(graph)
}

/// The time, and for SDXL the pooled text and sizes, as one vector that every residual block reads.
fn time_embedding(net: &mut NetBuilder, width: usize, time: Value, added: Option<Value>) -> Result<Value, GraphError> {
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

/// An image in twice its size, or one row or column less where `like` has so many, and a convolution.
fn upsample(net: &mut NetBuilder, x: Value, n: usize, like: Value) -> Result<Value, GraphError> {
    let [_, height, width, _] = net.graph.ty(like).shape[..] else { unreachable!("it is an image") };
    let [_, rows, columns, _] = net.graph.ty(x).shape[..] else { unreachable!("it is an image") };
    if [height, width] == [2 * rows, 2 * columns] {
        return net.conv("upsamplers.0.conv", x, n, 3, Window::pad(1).upsample(2), Epilogue::new());
    }
    let mut x = net.graph.upsample(x, 2)?;
    for (axis, size, wanted) in [(1, 2 * rows, height), (2, 2 * columns, width)] {
        if size != wanted {
            x = net.graph.slice(x, axis, 0, wanted)?;
        }
    }
    net.conv3("upsamplers.0.conv", x, n, Epilogue::new())
}

/// Transformer layers over the pixels of an image, around a shortcut.
fn transformer(
    net: &mut NetBuilder,
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
        h = net.at(&format!("transformer_blocks.{i}")).transformer_layer(heads, h, context)?;
    }
    let h = net.graph.reshape(h, [batch, height, width, c])?;
    match config.linear_projection {
        true => net.linear("proj_out", h, c, Epilogue::new().residual(x)),
        false => net.conv("proj_out", h, c, 1, Window::pad(0), Epilogue::new().residual(x)),
    }
}

/// A UNet in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unet {
    /// Its sizes.
    pub config: UnetConfig,
    /// How the file names its tensors.
    pub layout: CheckpointLayout,
}

/// Finds UNets.
pub static UNET: Recogniser = Recogniser {
    kind: NetworkKind::Denoiser,
    prefixes: &["model.diffusion_model.", "diffusion_model.", "unet.", ""],
    find,
};

impl fmt::Display for Unet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let c = &self.config;
        write!(f, "diffusion model (UNet), {} channels in, widths {:?}", c.in_channels, c.channels)
    }
}

impl Network for Unet {
    fn kind(&self) -> NetworkKind {
        NetworkKind::Denoiser
    }

    fn graphs(&self) -> Result<Vec<Graph>, GraphError> {
        let (config, numbers) = (&self.config, ElementTypes::F32);
        let side = 1 << config.channels.len();
        Ok(vec![unet(config, 1, [side, side], 1, numbers)?])
    }

    fn stored(&self, name: &str, has: &dyn Fn(&str) -> bool) -> TensorRef {
        match self.layout {
            CheckpointLayout::Original => original_unet(name, self.config.resnets, has),
            CheckpointLayout::Diffusers => TensorRef::whole(name.into()),
        }
    }

    fn spellings(&self, name: &str) -> Vec<TensorRef> {
        let original = [false, true].map(|attends| original_unet(name, self.config.resnets, &|_| attends));
        [TensorRef::whole(name.into())].into_iter().chain(original).collect()
    }

    fn original(&self, name: &str, shape: &[usize], has: &dyn Fn(&str) -> bool) -> Option<(String, Vec<usize>)> {
        let level = numbered(name, "up_blocks.").map(|(level, _)| level);
        let attends = level.is_some_and(|level| has(&format!("up_blocks.{level}.attentions.0.norm.weight")));
        let diffusers = self.layout == CheckpointLayout::Diffusers;
        diffusers.then(|| (original_unet(name, self.config.resnets, &|_| attends).name, shape.to_vec()))
    }
}

fn find(tensors: &PrefixedTensors) -> Result<Option<Arc<dyn Network>>, TensorProblem> {
    let layout = if tensors.any("input_blocks.") {
        CheckpointLayout::Original
    } else if tensors.any("down_blocks.") && tensors.any("mid_block.") {
        CheckpointLayout::Diffusers
    } else {
        return Ok(None);
    };
    let (resnets, levels) = match layout {
        CheckpointLayout::Diffusers => (tensors.count("down_blocks.0.resnets."), tensors.count("down_blocks.")),
        // One block for the input, then those of each level: residual blocks, and one that makes the image smaller.
        CheckpointLayout::Original => {
            let blocks = tensors.count("input_blocks.");
            let smaller = |i: &usize| tensors.any(&format!("input_blocks.{i}.0.op."));
            let resnets = (1..blocks).find(smaller).unwrap_or(blocks).max(1) - 1;
            (resnets, blocks.div_ceil(resnets + 1))
        }
    };
    let stored = |name: &str| match layout {
        CheckpointLayout::Diffusers => name.to_string(),
        CheckpointLayout::Original => original_unet(name, resnets, &|n| tensors.has(n)).name,
    };
    let need = |name: &str, axis: usize| tensors.need(&stored(name), axis);
    let depth = |at: &str| tensors.count(&stored(&format!("{at}.transformer_blocks.")));
    let width = |level: usize| need(&format!("down_blocks.{level}.resnets.0.conv1.weight"), 0);
    let levels = levels.clamp(1, MAX_LEVELS);
    let projection = tensors.need_shape(&stored("mid_block.attentions.0.proj_in.weight"))?;
    let linear_projection = projection.len() == 2;
    let added = tensors.any(&stored("add_embedding.linear_1.")).then(|| need("add_embedding.linear_1.weight", 1));
    let config = UnetConfig {
        in_channels: need("conv_in.weight", 1)?,
        out_channels: need("conv_out.weight", 0)?,
        channels: (0..levels).map(width).collect::<Result<_, _>>()?,
        depth: (0..levels).map(|level| depth(&format!("down_blocks.{level}.attentions.0"))).collect(),
        mid_depth: depth("mid_block.attentions.0"),
        resnets,
        heads: if linear_projection { Heads::Width(64) } else { Heads::Count(8) },
        context: need("mid_block.attentions.0.transformer_blocks.0.attn2.to_k.weight", 1)?,
        linear_projection,
        added: added.transpose()?,
    };
    Ok(Some(Arc::new(Unet { config, layout })))
}

/// A parameter of the UNet in an original checkpoint, without its prefix. `resnets` is the number of residual blocks of a level.
/// `has` tells which names the file has, for the one place where the name depends on the neighbours.
fn original_unet(name: &str, resnets: usize, has: &dyn Fn(&str) -> bool) -> TensorRef {
    let resnet = |rest: &str| {
        let pairs = [
            ("norm1.", "in_layers.0."),
            ("conv1.", "in_layers.2."),
            ("time_emb_proj.", "emb_layers.1."),
            ("norm2.", "out_layers.0."),
            ("conv2.", "out_layers.3."),
            ("conv_shortcut.", "skip_connection."),
        ];
        replace_start(rest, &pairs).unwrap_or_else(|| rest.into())
    };
    let block = |rest: &str, blocks: &str, first: usize| {
        if let Some((i, rest)) = numbered(rest, "resnets.") {
            return Some(format!("{blocks}.{}.0.{}", first + i, resnet(rest)));
        }
        let (i, rest) = numbered(rest, "attentions.")?;
        Some(format!("{blocks}.{}.1.{rest}", first + i))
    };
    let renamed = if let Some((level, rest)) = numbered(name, "down_blocks.") {
        block(rest, "input_blocks", 1 + level * (resnets + 1)).or_else(|| {
            let rest = rest.strip_prefix("downsamplers.0.conv.")?;
            Some(format!("input_blocks.{}.0.op.{rest}", (level + 1) * (resnets + 1)))
        })
    } else if let Some((level, rest)) = numbered(name, "up_blocks.") {
        block(rest, "output_blocks", level * (resnets + 1)).or_else(|| {
            // After the attention, where there is one.
            let rest = rest.strip_prefix("upsamplers.0.conv.")?;
            let place = |i: usize| format!("output_blocks.{}.{i}.conv.{rest}", level * (resnets + 1) + resnets);
            let attends = ["weight", "bias"].iter().any(|other| has(&place(2).replace(rest, other)));
            Some(if attends { place(2) } else { place(1) })
        })
    } else if let Some(rest) = name.strip_prefix("mid_block.") {
        numbered(rest, "resnets.")
            .map(|(i, rest)| format!("middle_block.{}.{}", 2 * i, resnet(rest)))
            .or_else(|| replace_start(rest, &[("attentions.0.", "middle_block.1.")]))
    } else {
        let pairs = [
            ("conv_in.", "input_blocks.0.0."),
            ("conv_norm_out.", "out.0."),
            ("conv_out.", "out.2."),
            ("time_embedding.linear_1.", "time_embed.0."),
            ("time_embedding.linear_2.", "time_embed.2."),
            ("add_embedding.linear_1.", "label_emb.0.0."),
            ("add_embedding.linear_2.", "label_emb.0.2."),
        ];
        replace_start(name, &pairs)
    };
    TensorRef::whole(renamed.unwrap_or_else(|| name.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_original_checkpoints() {
        let unet = |name| original_unet(name, 2, &|_| false).name;
        for (ours, theirs) in [
            ("conv_in.weight", "input_blocks.0.0.weight"),
            ("down_blocks.0.resnets.1.time_emb_proj.bias", "input_blocks.2.0.emb_layers.1.bias"),
            ("down_blocks.1.downsamplers.0.conv.weight", "input_blocks.6.0.op.weight"),
            ("down_blocks.2.attentions.0.proj_in.weight", "input_blocks.7.1.proj_in.weight"),
            ("mid_block.resnets.1.conv2.weight", "middle_block.2.out_layers.3.weight"),
            ("mid_block.attentions.0.norm.weight", "middle_block.1.norm.weight"),
            ("up_blocks.0.upsamplers.0.conv.weight", "output_blocks.2.1.conv.weight"),
            ("up_blocks.3.resnets.2.conv_shortcut.weight", "output_blocks.11.0.skip_connection.weight"),
            ("add_embedding.linear_2.weight", "label_emb.0.2.weight"),
            ("conv_out.bias", "out.2.bias"),
        ] {
            assert_eq!(unet(ours), theirs);
        }
        let attended =
            original_unet("up_blocks.1.upsamplers.0.conv.weight", 2, &|n| n == "output_blocks.5.2.conv.weight");
        assert_eq!(attended.name, "output_blocks.5.2.conv.weight");
    }
}
