//! The variational autoencoder of Stable Diffusion: pictures to latents and back.

use std::fmt;
use std::sync::Arc;

use impasto_graph::{DType, Epilogue, Graph, GraphError, Unary, Value, Window};

use super::{MAX_LEVELS, Network, NetworkKind, PrefixedTensors, Recogniser, TensorProblem};
use crate::ModelError;
use crate::blocks::{ElementTypes, NetBuilder};
use crate::config::Config;
use crate::layout::{CheckpointLayout, TensorRef, numbered, replace_start};

/// What distinguishes one autoencoder from another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VaeConfig {
    /// Channels of a latent.
    pub latent: usize,
    /// Channels at each resolution, full resolution first.
    pub channels: Vec<usize>,
    /// Residual blocks at each resolution of the encoder; the decoder has one more.
    pub resnets: usize,
    /// There are 1x1 convolutions beside the latent.
    pub quant_conv: bool,
}

impl VaeConfig {
    /// Stable Diffusion 1, 2 and XL.
    pub fn sd() -> Self {
        VaeConfig { latent: 4, channels: vec![128, 256, 512, 512], resnets: 2, quant_conv: true }
    }

    /// Stable Diffusion 3, FLUX.1 and Z-Image.
    pub fn sixteen_channels() -> Self {
        VaeConfig { latent: 16, quant_conv: false, ..Self::sd() }
    }

    /// FLUX.2.
    pub fn flux2() -> Self {
        VaeConfig { latent: 32, ..Self::sd() }
    }

    /// Pixels of a picture for one of a latent, along a side.
    pub fn factor(&self) -> usize {
        1 << (self.channels.len() - 1)
    }
}

impl VaeConfig {
    /// Refuses a `vae/config.json` that does not describe these weights.
    pub(crate) fn check(&self, json: &Config) -> Result<(), ModelError> {
        json.same_sizes("block_out_channels", &self.channels)?;
        json.same_sizes("layers_per_block", &[self.resnets])?;
        json.same_sizes("latent_channels", &[self.latent])?;
        for field in ["use_quant_conv", "use_post_quant_conv"] {
            let said = json.flag(field)?.unwrap_or(true);
            if said != self.quant_conv {
                let (name, has) = (field.trim_start_matches("use_"), if said { "no" } else { "a" });
                return Err(json.wrong(field, format!("is {said}, and the weights have {has} tensor '{name}.weight'")));
            }
        }
        Ok(())
    }

    /// The scale of latents that `vae/config.json` gives: factor and shift.
    pub(crate) fn scale(json: &Config) -> Result<(Option<f32>, Option<f32>), ModelError> {
        json.only(&[
            ("norm_num_groups", 32.into()),
            ("act_fn", "silu".into()),
            ("mid_block_add_attention", true.into()),
        ])?;
        json.none(&["latents_mean", "latents_std"])?;
        let factor = json.number("scaling_factor")?;
        if let Some(factor) = factor.filter(|f| *f <= 0.0) {
            return Err(json.wrong("scaling_factor", format!("is {factor}, which latents cannot be divided by")));
        }
        Ok((factor, json.number("shift_factor")?))
    }
}

const EPS: f32 = 1e-6;

/// The decoder for latents of `[height, width]`.
///
/// Input: `latent (batch, height, width, latent)`. Output: `picture (batch, f height, f width, 3)`, from -1 to 1.
pub fn vae_decoder(
    config: &VaeConfig,
    batch: usize,
    [height, width]: [usize; 2],
    numbers: ElementTypes,
) -> Result<Graph, GraphError> {
    let mut graph = Graph::new();
    let latent = graph.input("latent", [batch, height, width, config.latent], DType::F32)?;
    let mut net = NetBuilder::new(&mut graph, numbers);
    let mut h = latent;
    if config.quant_conv {
        h = net.conv("post_quant_conv", h, config.latent, 1, Window::pad(0), Epilogue::new())?;
    }
    let mut net = net.at("decoder");
    let levels = config.channels.len();
    h = net.conv3("conv_in", h, config.channels[levels - 1], Epilogue::new())?;
    h = middle(&mut net.at("mid_block"), h)?;
    for level in (0..levels).rev() {
        let mut block = net.at(&format!("up_blocks.{}", levels - 1 - level));
        let n = config.channels[level];
        for i in 0..=config.resnets {
            h = block.at(&format!("resnets.{i}")).resnet(h, n, None, EPS)?;
        }
        if level > 0 {
            h = block.conv("upsamplers.0.conv", h, n, 3, Window::pad(1).upsample(2), Epilogue::new())?;
        }
    }
    let h = net.group_norm("conv_norm_out", h, EPS, Some(Unary::Silu))?;
    let picture = net.conv3("conv_out", h, 3, Epilogue::new().dtype(DType::F32))?;
    graph.output("picture", picture)?;
    Ok(graph)
}

/// The encoder for pictures of `[height, width]`.
///
/// Input: `picture (batch, height, width, 3)`, from -1 to 1. Output: `moments (batch, height/f, width/f, 2 latent)`, the
/// means and the logarithms of the variances.
pub fn vae_encoder(
    config: &VaeConfig,
    batch: usize,
    [height, width]: [usize; 2],
    numbers: ElementTypes,
) -> Result<Graph, GraphError> {
    let mut graph = Graph::new();
    let picture = graph.input("picture", [batch, height, width, 3], DType::F32)?;
    let mut whole = NetBuilder::new(&mut graph, numbers);
    let mut net = whole.at("encoder");
    let levels = config.channels.len();
    let mut h = net.conv3("conv_in", picture, config.channels[0], Epilogue::new())?;
    for (level, &n) in config.channels.iter().enumerate() {
        let mut block = net.at(&format!("down_blocks.{level}"));
        for i in 0..config.resnets {
            h = block.at(&format!("resnets.{i}")).resnet(h, n, None, EPS)?;
        }
        if level + 1 < levels {
            // The picture is padded below and to the right only.
            let window = Window::pad(0).padding([0, 0, 1, 1]).stride(2);
            h = block.conv("downsamplers.0.conv", h, n, 3, window, Epilogue::new())?;
        }
    }
    h = middle(&mut net.at("mid_block"), h)?;
    let h = net.group_norm("conv_norm_out", h, EPS, Some(Unary::Silu))?;
    let mut h = net.conv3("conv_out", h, 2 * config.latent, Epilogue::new().dtype(DType::F32))?;
    if config.quant_conv {
        h = whole.conv("quant_conv", h, 2 * config.latent, 1, Window::pad(0), Epilogue::new())?;
    }
    graph.output("moments", h)?;
    Ok(graph)
}

/// Two residual blocks around one attention over all pixels.
fn middle(net: &mut NetBuilder, x: Value) -> Result<Value, GraphError> {
    let [batch, height, width, c] = net.graph.ty(x).shape[..] else { unreachable!("x is an image") };
    let x = net.at("resnets.0").resnet(x, c, None, EPS)?;
    let mut attn = net.at("attentions.0");
    let h = attn.group_norm("group_norm", x, EPS, None)?;
    let h = attn.graph.reshape(h, [batch, height * width, c])?; // pixels are tokens
    let q = attn.linear("to_q", h, c, Epilogue::new())?;
    let k = attn.linear("to_k", h, c, Epilogue::new())?;
    let v = attn.linear("to_v", h, c, Epilogue::new())?;
    let a = attn.graph.attention(q, k, v, 1, false)?;
    let tokens = attn.graph.reshape(x, [batch, height * width, c])?;
    let h = attn.linear("to_out.0", a, c, Epilogue::new().residual(tokens))?;
    let x = attn.graph.reshape(h, [batch, height, width, c])?;
    net.at("resnets.1").resnet(x, c, None, EPS)
}

/// An autoencoder in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vae {
    /// Its sizes.
    pub config: VaeConfig,
    /// How the file names its tensors.
    pub layout: CheckpointLayout,
}

/// Finds autoencoders of this kind.
pub static VAE: Recogniser =
    Recogniser { kind: NetworkKind::Autoencoder, prefixes: &["first_stage_model.", "vae.", ""], find };

impl fmt::Display for Vae {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let c = &self.config;
        write!(f, "autoencoder, {} latent channels, widths {:?}", c.latent, c.channels)
    }
}

impl Network for Vae {
    fn kind(&self) -> NetworkKind {
        NetworkKind::Autoencoder
    }

    fn graphs(&self) -> Result<Vec<Graph>, GraphError> {
        let (config, numbers) = (&self.config, ElementTypes::F32);
        let side = 2 * config.factor();
        Ok(vec![vae_decoder(config, 1, [2, 2], numbers)?, vae_encoder(config, 1, [side, side], numbers)?])
    }

    fn stored(&self, name: &str, has: &dyn Fn(&str) -> bool) -> TensorRef {
        match self.layout {
            // FLUX.2's authors count them to the halves.
            CheckpointLayout::Original if name.starts_with("quant_conv.") && has(&format!("encoder.{name}")) => {
                TensorRef::whole(format!("encoder.{name}"))
            }
            CheckpointLayout::Original if name.starts_with("post_quant_conv.") && has(&format!("decoder.{name}")) => {
                TensorRef::whole(format!("decoder.{name}"))
            }
            CheckpointLayout::Original => original_vae(name, self.config.channels.len()),
            CheckpointLayout::Diffusers => diffusers_vae(name, has),
        }
    }

    /// Attention is of convolutions there.
    fn original(&self, name: &str, shape: &[usize], _: &dyn Fn(&str) -> bool) -> Option<(String, Vec<usize>)> {
        let diffusers = self.layout == CheckpointLayout::Diffusers;
        let mut shape = shape.to_vec();
        if name.contains(".attentions.") && shape.len() == 2 {
            shape.extend([1, 1]);
        }
        diffusers.then(|| (original_vae(name, self.config.channels.len()).name, shape))
    }
}

fn find(tensors: &PrefixedTensors) -> Result<Option<Arc<dyn Network>>, TensorProblem> {
    let any = |starts: &[&str]| starts.iter().any(|start| tensors.any(start));
    let (layout, level, resnets) = if any(&["encoder.down.", "decoder.up.", "encoder.mid.", "decoder.mid."]) {
        (CheckpointLayout::Original, "encoder.down.", "block.")
    } else if any(&["encoder.down_blocks.", "decoder.up_blocks.", "encoder.mid_block.", "decoder.mid_block."])
        // Those of videos have other norms.
        && !tensors.has("encoder.mid_block.attentions.0.norm.gamma")
    {
        (CheckpointLayout::Diffusers, "encoder.down_blocks.", "resnets.")
    } else {
        return Ok(None);
    };
    let width = |i: usize| tensors.need(&format!("{level}{i}.{resnets}0.conv1.weight"), 0);
    let levels = tensors.count(level).clamp(1, MAX_LEVELS);
    let config = VaeConfig {
        latent: tensors.need("decoder.conv_in.weight", 1)?,
        channels: (0..levels).map(width).collect::<Result<_, _>>()?,
        resnets: tensors.count(&format!("{level}0.{resnets}")),
        quant_conv: any(&["quant_conv.", "post_quant_conv.", "encoder.quant_conv.", "decoder.post_quant_conv."]),
    };
    Ok(Some(Arc::new(Vae { config, layout })))
}

/// A parameter of the autoencoder in an original checkpoint, without its prefix. `levels` is its number of resolutions.
fn original_vae(name: &str, levels: usize) -> TensorRef {
    let Some((side, rest)) = name.split_once('.').filter(|(side, _)| matches!(*side, "encoder" | "decoder")) else {
        return TensorRef::whole(name.into());
    };
    let resnet =
        |rest: &str| replace_start(rest, &[("conv_shortcut.", "nin_shortcut.")]).unwrap_or_else(|| rest.into());
    let level = |rest: &str| {
        numbered(rest, "resnets.")
            .map(|(i, rest)| format!("block.{i}.{}", resnet(rest)))
            .or_else(|| replace_start(rest, &[("downsamplers.0.", "downsample."), ("upsamplers.0.", "upsample.")]))
    };
    let renamed = if let Some((i, rest)) = numbered(rest, "down_blocks.") {
        level(rest).map(|rest| format!("down.{i}.{rest}"))
    } else if let Some((i, rest)) = numbered(rest, "up_blocks.") {
        // Counted from the full resolution there.
        level(rest).map(|rest| format!("up.{}.{rest}", levels.saturating_sub(1 + i)))
    } else if let Some(rest) = rest.strip_prefix("mid_block.") {
        let attention = [
            ("attentions.0.group_norm.", "attn_1.norm."),
            ("attentions.0.to_q.", "attn_1.q."),
            ("attentions.0.to_k.", "attn_1.k."),
            ("attentions.0.to_v.", "attn_1.v."),
            ("attentions.0.to_out.0.", "attn_1.proj_out."),
        ];
        numbered(rest, "resnets.")
            .map(|(i, rest)| format!("mid.block_{}.{}", i + 1, resnet(rest)))
            .or_else(|| replace_start(rest, &attention).map(|rest| format!("mid.{rest}")))
    } else {
        replace_start(rest, &[("conv_norm_out.", "norm_out.")])
    };
    TensorRef::whole(format!("{side}.{}", renamed.unwrap_or_else(|| rest.into())))
}

/// A parameter of the autoencoder in a diffusers folder: files from before 2023 call the attention's parts differently.
fn diffusers_vae(name: &str, has: &dyn Fn(&str) -> bool) -> TensorRef {
    let old = [(".to_q.", ".query."), (".to_k.", ".key."), (".to_v.", ".value."), (".to_out.0.", ".proj_attn.")];
    let renamed = old.iter().filter(|_| name.contains(".attentions.") && !has(name)).find_map(|(new, old)| {
        let renamed = name.replace(new, old);
        has(&renamed).then_some(renamed)
    });
    TensorRef::whole(renamed.unwrap_or_else(|| name.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_original_checkpoints() {
        for (ours, theirs) in [
            ("encoder.down_blocks.0.downsamplers.0.conv.weight", "encoder.down.0.downsample.conv.weight"),
            ("encoder.down_blocks.3.resnets.1.norm2.bias", "encoder.down.3.block.1.norm2.bias"),
            ("decoder.up_blocks.0.upsamplers.0.conv.bias", "decoder.up.3.upsample.conv.bias"),
            ("decoder.up_blocks.2.resnets.0.conv_shortcut.weight", "decoder.up.1.block.0.nin_shortcut.weight"),
            ("decoder.mid_block.attentions.0.to_out.0.weight", "decoder.mid.attn_1.proj_out.weight"),
            ("decoder.mid_block.attentions.0.group_norm.weight", "decoder.mid.attn_1.norm.weight"),
            ("encoder.mid_block.resnets.0.conv1.weight", "encoder.mid.block_1.conv1.weight"),
            ("decoder.conv_norm_out.weight", "decoder.norm_out.weight"),
            ("post_quant_conv.weight", "post_quant_conv.weight"),
        ] {
            assert_eq!(original_vae(ours, 4).name, theirs);
        }
    }
}
