//! Where a file keeps a parameter. Networks are written with the names of a diffusers folder; original checkpoints have the same
//! numbers under other names, sometimes joined, turned, or with dimensions of one.

use serde::{Deserialize, Serialize};

/// How a file names its tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// As a diffusers folder does, below a prefix.
    Diffusers,
    /// As the first Stable Diffusion checkpoint did.
    Original,
}

/// Which part of a stored tensor a parameter is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Take {
    /// All of it, whatever its dimensions of one.
    Whole,
    /// One of so many equal parts of its rows: `(part, parts)`.
    Rows(usize, usize),
    /// All of it, rows and columns exchanged.
    Transposed,
}

/// A parameter in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// The tensor's name.
    pub name: String,
    /// What of it.
    pub take: Take,
}

impl Stored {
    fn whole(name: String) -> Stored {
        Stored { name, take: Take::Whole }
    }
}

/// Replace the first of `pairs` whose left side begins the name.
fn replace_start(name: &str, pairs: &[(&str, &str)]) -> Option<String> {
    pairs.iter().find_map(|(from, to)| name.strip_prefix(from).map(|rest| format!("{to}{rest}")))
}

/// `prefix.N.rest` as `(N, rest)`.
fn numbered<'a>(name: &'a str, prefix: &str) -> Option<(usize, &'a str)> {
    let (number, rest) = name.strip_prefix(prefix)?.split_once('.')?;
    Some((number.parse().ok()?, rest))
}

/// A parameter of the UNet in an original checkpoint, without its prefix. `resnets` is the number of residual blocks of a level.
/// `has` tells which names the file has, for the one place where the name depends on the neighbours.
pub(crate) fn original_unet(name: &str, resnets: usize, has: &dyn Fn(&str) -> bool) -> Stored {
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
            // Behind the attention, where there is one.
            let rest = rest.strip_prefix("upsamplers.0.conv.")?;
            let place = |i: usize| format!("output_blocks.{}.{i}.conv.{rest}", level * (resnets + 1) + resnets);
            Some(if has(&place(2)) { place(2) } else { place(1) })
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
    Stored::whole(renamed.unwrap_or_else(|| name.into()))
}

/// A parameter of the autoencoder in an original checkpoint, without its prefix. `levels` is its number of resolutions.
pub(crate) fn original_vae(name: &str, levels: usize) -> Stored {
    let Some((side, rest)) = name.split_once('.').filter(|(side, _)| matches!(*side, "encoder" | "decoder")) else {
        return Stored::whole(name.into());
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
    Stored::whole(format!("{side}.{}", renamed.unwrap_or_else(|| rest.into())))
}

/// A parameter of a text encoder as OpenCLIP names it, without its prefix.
pub(crate) fn open_clip(name: &str) -> Stored {
    if name == "text_projection.weight" {
        return Stored { name: "text_projection".into(), take: Take::Transposed };
    }
    let name = name.strip_prefix("text_model.").unwrap_or(name);
    let pairs = [
        ("embeddings.token_embedding.weight", "token_embedding.weight"),
        ("embeddings.position_embedding.weight", "positional_embedding"),
        ("final_layer_norm.", "ln_final."),
    ];
    if let Some(renamed) = replace_start(name, &pairs) {
        return Stored::whole(renamed);
    }
    let Some((i, rest)) = numbered(name, "encoder.layers.") else { return Stored::whole(name.into()) };
    let layer = format!("transformer.resblocks.{i}");
    // Queries, keys and values are one tensor there.
    for (part, letter) in ["q", "k", "v"].into_iter().enumerate() {
        if let Some(kind) = rest.strip_prefix(&format!("self_attn.{letter}_proj.")) {
            return Stored { name: format!("{layer}.attn.in_proj_{kind}"), take: Take::Rows(part, 3) };
        }
    }
    let pairs = [
        ("layer_norm1.", "ln_1."),
        ("layer_norm2.", "ln_2."),
        ("mlp.fc1.", "mlp.c_fc."),
        ("mlp.fc2.", "mlp.c_proj."),
        ("self_attn.out_proj.", "attn.out_proj."),
    ];
    Stored::whole(format!("{layer}.{}", replace_start(rest, &pairs).unwrap_or_else(|| rest.into())))
}

/// A parameter of the tiny autoencoder in its author's files, which count one more function in front of the decoder. The halves are two
/// files, or one with a prefix for each.
pub(crate) fn original_taesd(name: &str, has: &dyn Fn(&str) -> bool) -> Stored {
    let place = |side: &str, first: usize| {
        let (i, rest) = numbered(name, &format!("{side}.layers."))?;
        let short = format!("{}.{rest}", i + first);
        let long = format!("taesd_{side}.{short}");
        Some(if has(&long) { long } else { short })
    };
    Stored::whole(place("decoder", 1).or_else(|| place("encoder", 0)).unwrap_or_else(|| name.into()))
}

/// A parameter of a text encoder as transformers names it. The name begins with `text_model.` or, in `bare` files, behind it; some
/// programs keep OpenCLIP's turned projection.
pub(crate) fn transformers_clip(name: &str, bare: bool, has: &dyn Fn(&str) -> bool) -> Stored {
    if name == "text_projection.weight" && !has(name) && has("text_projection") {
        return Stored { name: "text_projection".into(), take: Take::Transposed };
    }
    let short = if bare { name.strip_prefix("text_model.") } else { None };
    Stored::whole(short.unwrap_or(name).into())
}

/// A parameter of the autoencoder in a diffusers folder: files from before 2023 call the attention's parts differently.
pub(crate) fn diffusers_vae(name: &str, has: &dyn Fn(&str) -> bool) -> Stored {
    let old = [(".to_q.", ".query."), (".to_k.", ".key."), (".to_v.", ".value."), (".to_out.0.", ".proj_attn.")];
    let renamed = old.iter().filter(|_| name.contains(".attentions.") && !has(name)).find_map(|(new, old)| {
        let renamed = name.replace(new, old);
        has(&renamed).then_some(renamed)
    });
    Stored::whole(renamed.unwrap_or_else(|| name.into()))
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
        let v = open_clip("text_model.encoder.layers.7.self_attn.v_proj.weight");
        assert_eq!((v.name.as_str(), v.take), ("transformer.resblocks.7.attn.in_proj_weight", Take::Rows(2, 3)));
        assert_eq!(open_clip("text_projection.weight").take, Take::Transposed);
    }
}
