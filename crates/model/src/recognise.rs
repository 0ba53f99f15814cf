//! Which model is it? Family and sizes from the names and shapes of tensors, never from a table of known files: a small model of
//! a known structure is recognised like a large one.

use std::collections::{BTreeMap, BTreeSet};

use impasto_graph::{Graph, GraphError, Unary};

use crate::layout::{
    Layout, Stored, diffusers_vae, open_clip, original_taesd, original_unet, original_vae, transformers_clip,
};
use crate::{
    ClipConfig, Heads, Hidden, Numbers, TaesdConfig, UnetConfig, VaeConfig, clip, taesd_decoder, taesd_encoder, unet,
    vae_decoder, vae_encoder,
};

/// What a model is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Stable Diffusion 1.
    Sd1,
    /// Stable Diffusion 2.
    Sd2,
    /// Stable Diffusion XL.
    Sdxl,
}

impl std::fmt::Display for Family {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Family::Sd1 => "Stable Diffusion 1",
            Family::Sd2 => "Stable Diffusion 2",
            Family::Sdxl => "Stable Diffusion XL",
        })
    }
}

/// How a text encoder's tensors are named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextLayout {
    /// As transformers does.
    Clip,
    /// As transformers did first, without `text_model.`.
    Bare,
    /// As OpenCLIP does.
    OpenClip,
}

/// A network found in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Network {
    /// A text encoder.
    Text(ClipConfig, TextLayout),
    /// The diffusion model.
    Unet(UnetConfig, Layout),
    /// The autoencoder.
    Vae(VaeConfig, Layout),
    /// The tiny autoencoder.
    Taesd(TaesdConfig, Layout),
}

/// A network and the beginning that all of its tensors' names share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Sizes and naming.
    pub network: Network,
    /// For example `model.diffusion_model.`.
    pub prefix: String,
}

/// The tensors of a file: names and shapes.
pub type Shapes = BTreeMap<String, Vec<usize>>;

impl std::fmt::Display for Network {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Network::Text(c, _) => write!(f, "text encoder, width {}, {} layers", c.width, c.layers),
            Network::Unet(c, _) => {
                write!(f, "diffusion model (UNet), {} channels in, widths {:?}", c.in_channels, c.channels)
            }
            Network::Vae(c, _) => write!(f, "autoencoder, {} latent channels, widths {:?}", c.latent, c.channels),
            Network::Taesd(c, _) => {
                let half = if c.encoder.is_empty() { ", decoder only" } else { "" };
                write!(f, "tiny autoencoder, {} latent channels, width {}{half}", c.latent, c.width)
            }
        }
    }
}

impl Found {
    /// The graphs of the network at its smallest: they have every parameter that it takes.
    pub fn graphs(&self) -> Result<Vec<Graph>, GraphError> {
        let numbers = Numbers::F32;
        Ok(match &self.network {
            Network::Text(config, _) => vec![clip(config, 1, Hidden { skip: 0, norm: true }, numbers)?],
            Network::Unet(config, _) => {
                let side = 1 << config.channels.len();
                vec![unet(config, 1, [side, side], 1, numbers)?]
            }
            Network::Vae(config, _) => {
                let side = 2 * config.factor();
                vec![vae_decoder(config, 1, [2, 2], numbers)?, vae_encoder(config, 1, [side, side], numbers)?]
            }
            Network::Taesd(config, _) => {
                let side = 2 * config.factor();
                let mut graphs = vec![taesd_decoder(config, 1, [2, 2], numbers)?];
                if !config.encoder.is_empty() {
                    graphs.push(taesd_encoder(config, 1, [side, side], numbers)?);
                }
                graphs
            }
        })
    }

    /// Where the file keeps a parameter of this network.
    pub fn stored(&self, name: &str, shapes: &Shapes) -> Stored {
        let has = |name: &str| shapes.contains_key(&format!("{}{name}", self.prefix));
        let plain = || Stored { name: name.into(), take: crate::Take::Whole };
        let stored = match &self.network {
            Network::Text(_, TextLayout::OpenClip) => open_clip(name),
            Network::Text(_, layout) => transformers_clip(name, *layout == TextLayout::Bare, &has),
            Network::Unet(config, Layout::Original) => original_unet(name, config.resnets, &has),
            Network::Vae(config, Layout::Original) => original_vae(name, config.channels.len()),
            Network::Vae(_, Layout::Diffusers) => diffusers_vae(name, &has),
            Network::Taesd(_, Layout::Original) => original_taesd(name, &has),
            Network::Unet(_, Layout::Diffusers) | Network::Taesd(_, Layout::Diffusers) => plain(),
        };
        Stored { name: format!("{}{}", self.prefix, stored.name), ..stored }
    }
}

/// The networks of a file, in the order text encoders, diffusion model, autoencoder.
pub fn recognise(shapes: &Shapes) -> Vec<Found> {
    let mut found = vec![];
    for prefix in [
        "cond_stage_model.transformer.",
        "conditioner.embedders.0.transformer.",
        "cond_stage_model.model.",
        "conditioner.embedders.1.model.",
        "conditioner.embedders.0.model.",
        "text_encoders.clip_l.transformer.",
        "text_encoders.clip_g.transformer.",
        "text_encoder.",
        "text_encoder_2.",
        "clip_l.",
        "clip_g.",
        "",
    ] {
        let part = Part { shapes, prefix };
        found.extend(find_text(&part).map(|network| Found { network, prefix: prefix.into() }));
    }
    for prefix in ["model.diffusion_model.", "diffusion_model.", "unet.", ""] {
        let part = Part { shapes, prefix };
        found.extend(find_unet(&part).map(|network| Found { network, prefix: prefix.into() }));
    }
    for prefix in ["first_stage_model.", "vae.", ""] {
        let part = Part { shapes, prefix };
        found.extend(find_vae(&part).map(|network| Found { network, prefix: prefix.into() }));
    }
    for prefix in ["", "tae.", "vae."] {
        let part = Part { shapes, prefix };
        found.extend(find_taesd(&part).map(|network| Found { network, prefix: prefix.into() }));
    }
    found
}

/// What a file of another kind is, where its names give it away.
pub fn kind_of(shapes: &Shapes) -> Option<&'static str> {
    let any = |parts: &[&str]| shapes.keys().any(|name| parts.iter().all(|part| name.contains(part)));
    let kinds: [(&[&[&str]], &str); 8] = [
        (
            &[&[".lora_up."], &[".lora_down."], &[".lora_A."], &["lora_linear_layer"], &[".hada_w1_"], &[".lokr_w"]],
            "a LoRA",
        ),
        (&[&["control_model."], &["controlnet_"], &["controlnet_cond_embedding"]], "a ControlNet"),
        (&[&["double_blocks.", "img_mod"], &["single_transformer_blocks."]], "a Flux diffusion model"),
        (&[&["joint_blocks."], &["transformer_blocks.", "attn.add_q_proj"]], "a Stable Diffusion 3 diffusion model"),
        (&[&["encoder.block.", "SelfAttention"]], "a T5 text encoder"),
        (&[&["motion_modules."]], "a motion module of AnimateDiff"),
        (&[&["emb_params"], &["string_to_param"]], "a textual inversion"),
        (&[&["model.embed_tokens."], &["lm_head."]], "a language model"),
    ];
    kinds.iter().find(|(names, _)| names.iter().any(|parts| any(parts))).map(|(_, kind)| *kind)
}

/// The family that a diffusion model belongs to.
pub fn family(unet: &UnetConfig) -> Family {
    match (unet.added, unet.linear_projection) {
        (Some(_), _) => Family::Sdxl,
        (None, true) => Family::Sd2,
        (None, false) => Family::Sd1,
    }
}

/// The tensors that each network uses, and those that none does. A tensor that a network lacks is named too, as it should be.
pub fn usage(shapes: &Shapes, networks: &[Found]) -> Result<(Vec<BTreeSet<String>>, Vec<String>), GraphError> {
    let mut used = vec![];
    for found in networks {
        let graphs = found.graphs()?;
        let names = graphs.iter().flat_map(|g| g.params().map(|(name, _)| found.stored(name, shapes).name));
        used.push(names.collect::<BTreeSet<String>>());
    }
    let unused = shapes.keys().filter(|name| !used.iter().any(|u| u.contains(*name))).cloned().collect();
    Ok((used, unused))
}

/// No dimension of these networks comes near this. What is larger is damage, and sums of it could overflow.
const MAX_SIZE: usize = 1 << 20;
/// Nor has any of them so many layers or blocks in a row, or so many resolutions.
const MAX_COUNT: usize = 128;
const MAX_LEVELS: usize = 8;

/// The tensors below a prefix.
struct Part<'a> {
    shapes: &'a Shapes,
    prefix: &'a str,
}

impl Part<'_> {
    fn shape(&self, name: &str) -> Option<&[usize]> {
        self.shapes.get(&format!("{}{name}", self.prefix)).map(Vec::as_slice)
    }

    /// One dimension of a tensor.
    fn size(&self, name: &str, axis: usize) -> Option<usize> {
        self.shape(name)?.get(axis).copied().filter(|n| (1..=MAX_SIZE).contains(n))
    }

    /// How many of `pattern` there are, its `#` counted up from 0.
    fn count(&self, pattern: &str) -> usize {
        (0..MAX_COUNT).take_while(|i| self.shape(&pattern.replace('#', &i.to_string())).is_some()).count()
    }
}

fn find_text(part: &Part) -> Option<Network> {
    let layout = if part.shape("token_embedding.weight").is_some() {
        TextLayout::OpenClip
    } else if part.shape("embeddings.token_embedding.weight").is_some() {
        TextLayout::Bare
    } else {
        TextLayout::Clip
    };
    let start = if layout == TextLayout::Clip { "text_model." } else { "" };
    let (table, places, layers, inner) = match layout {
        TextLayout::OpenClip => (
            "token_embedding.weight".to_string(),
            "positional_embedding".to_string(),
            part.count("transformer.resblocks.#.ln_1.weight"),
            "transformer.resblocks.0.mlp.c_fc.weight".to_string(),
        ),
        _ => (
            format!("{start}embeddings.token_embedding.weight"),
            format!("{start}embeddings.position_embedding.weight"),
            part.count(&format!("{start}encoder.layers.#.layer_norm1.weight")),
            format!("{start}encoder.layers.0.mlp.fc1.weight"),
        ),
    };
    let width = part.size(&table, 1)?;
    let projection = match layout {
        TextLayout::OpenClip => part.size("text_projection", 1),
        _ => part.size("text_projection.weight", 0).or_else(|| part.size("text_projection", 1)),
    };
    // Heads cannot be seen in shapes: all of these encoders have heads of 64.
    let heads = (width / 64).max(1);
    // CLIP-L is the one with the quick function; the OpenCLIP models, which all have a projection, have the exact one.
    let activation = match (layout, projection) {
        (TextLayout::Clip | TextLayout::Bare, None) => Unary::QuickGelu,
        _ => Unary::Gelu,
    };
    let (vocabulary, tokens, inner) = (part.size(&table, 0)?, part.size(&places, 0)?, part.size(&inner, 0)?);
    let config = ClipConfig { vocabulary, tokens, width, layers, heads, inner, activation, projection };
    (layers > 0).then_some(Network::Text(config, layout))
}

fn find_unet(part: &Part) -> Option<Network> {
    let layout = match part.shape("input_blocks.0.0.weight") {
        Some(_) => Layout::Original,
        None => Layout::Diffusers,
    };
    // Residual blocks of the first level: in an original checkpoint, those before the first one that makes the image smaller.
    let resnets = match layout {
        Layout::Diffusers => part.count("down_blocks.0.resnets.#.conv1.weight"),
        Layout::Original => {
            let there = |i: &usize| part.shape(&format!("input_blocks.{i}.0.in_layers.2.weight")).is_some();
            (1..MAX_COUNT).take_while(there).count()
        }
    };
    let stored = |name: &str| match layout {
        Layout::Diffusers => name.to_string(),
        Layout::Original => original_unet(name, resnets, &|n| part.shape(n).is_some()).name,
    };
    let size = |name: &str, axis: usize| part.size(&stored(name), axis);
    let depth = |at: &str| {
        let there = |i: &usize| size(&format!("{at}.transformer_blocks.{i}.norm1.weight"), 0).is_some();
        (0..MAX_COUNT).take_while(there).count()
    };
    let channels: Vec<usize> =
        (0..MAX_LEVELS).map_while(|level| size(&format!("down_blocks.{level}.resnets.0.conv1.weight"), 0)).collect();
    let depths: Vec<usize> =
        (0..channels.len()).map(|level| depth(&format!("down_blocks.{level}.attentions.0"))).collect();
    let projection = part.shape(&stored("mid_block.attentions.0.proj_in.weight"))?;
    let linear_projection = projection.len() == 2;
    let config = UnetConfig {
        in_channels: size("conv_in.weight", 1)?,
        out_channels: size("conv_out.weight", 0)?,
        mid_depth: depth("mid_block.attentions.0"),
        heads: if linear_projection { Heads::Width(64) } else { Heads::Count(8) },
        context: size("mid_block.attentions.0.transformer_blocks.0.attn2.to_k.weight", 1)?,
        added: size("add_embedding.linear_1.weight", 1),
        linear_projection,
        depth: depths,
        resnets,
        channels,
    };
    (!config.channels.is_empty() && resnets > 0).then_some(Network::Unet(config, layout))
}

fn find_vae(part: &Part) -> Option<Network> {
    let layout = match part.shape("decoder.up.0.block.0.conv1.weight") {
        Some(_) => Layout::Original,
        None => Layout::Diffusers,
    };
    let level = |i: usize| match layout {
        Layout::Original => format!("encoder.down.{i}.block"),
        Layout::Diffusers => format!("encoder.down_blocks.{i}.resnets"),
    };
    let channels: Vec<usize> =
        (0..MAX_LEVELS).map_while(|i| part.size(&format!("{}.0.conv1.weight", level(i)), 0)).collect();
    let config = VaeConfig {
        latent: part.size("decoder.conv_in.weight", 1)?,
        resnets: part.count(&format!("{}.#.conv1.weight", level(0))),
        quant_conv: part.shape("post_quant_conv.weight").is_some(),
        channels,
    };
    (!config.channels.is_empty() && config.resnets > 0).then_some(Network::Vae(config, layout))
}

fn find_taesd(part: &Part) -> Option<Network> {
    let layout = match part.shape("decoder.layers.0.weight") {
        Some(_) => Layout::Diffusers,
        None => Layout::Original,
    };
    let stored = |name: &str| match layout {
        Layout::Diffusers => name.to_string(),
        Layout::Original => original_taesd(name, &|n| part.shape(n).is_some()).name,
    };
    let size = |name: &str, axis: usize| part.size(&stored(name), axis);
    let blocks = |side: &str, first: usize| {
        (first..first + MAX_COUNT)
            .take_while(|i| size(&format!("{side}.layers.{i}.conv.0.weight"), 0).is_some())
            .count()
    };
    let (mut decoder, mut encoder) = (vec![], vec![]);
    let mut layer = 2;
    while decoder.len() < MAX_LEVELS {
        decoder.push(blocks("decoder", layer));
        layer += decoder[decoder.len() - 1];
        // What follows the blocks is a change of size with a convolution, or the last convolution.
        if size(&format!("decoder.layers.{layer}.weight"), 0).is_some() {
            break;
        }
        size(&format!("decoder.layers.{}.weight", layer + 1), 0)?;
        layer += 2;
    }
    let width = size("decoder.layers.0.weight", 0)?;
    // In a file of its own, the decoder's first layer must not be taken for a second one of the encoder.
    let encodes = |name: &str| size(name, 1) == Some(3);
    let mut layer = 0;
    while encodes("encoder.layers.0.weight") && encoder.len() < MAX_LEVELS {
        let next = blocks("encoder", layer + 1);
        if size(&format!("encoder.layers.{layer}.weight"), 0)? != width || next == 0 {
            break;
        }
        encoder.push(next);
        layer += 1 + next;
    }
    let config = TaesdConfig { latent: size("decoder.layers.0.weight", 1)?, width, decoder, encoder };
    let consistent = config.encoder.is_empty() || config.encoder.len() == config.decoder.len();
    (consistent && config.decoder.iter().all(|n| *n > 0)).then_some(Network::Taesd(config, layout))
}
