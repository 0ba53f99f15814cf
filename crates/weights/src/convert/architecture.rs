//! The name of a model's architecture, as ComfyUI-GGUF reads it from `general.architecture`.

/// Architectures, each with the ends of names that all of its models have. The first whose names are all there is the one: later ones have fewer.
const ARCHITECTURES: &[(&str, &[&str])] = &[
    ("flux", &["double_blocks.0.img_attn.proj.weight"]),
    ("flux", &["single_transformer_blocks.0.attn.to_q.weight"]),
    ("sd3", &["joint_blocks.0.x_block.attn.qkv.weight"]),
    ("qwen_image", &["transformer_blocks.0.img_mod.1.weight"]),
    ("sd3", &["transformer_blocks.0.attn.add_q_proj.weight"]),
    ("aura", &["double_layers.3.modX.1.weight"]),
    ("hidream", &["caption_projection.0.linear.weight", "double_stream_blocks.0.block.ff_i.shared_experts.w3.weight"]),
    ("cosmos", &["blocks.0.mlp.layer1.weight", "blocks.0.adaln_modulation_cross_attn.1.weight"]),
    ("ltxv", &["adaln_single.emb.timestep_embedder.linear_2.weight", "transformer_blocks.27.scale_shift_table"]),
    (
        "hyvid",
        &["double_blocks.0.img_attn_proj.weight", "txt_in.individual_token_refiner.blocks.1.self_attn_qkv.weight"],
    ),
    ("wan", &["blocks.0.self_attn.norm_q.weight", "text_embedding.2.weight", "head.modulation"]),
    ("lumina2", &["cap_embedder.1.weight", "context_refiner.0.attention.qkv.weight"]),
    ("sdxl", &["label_emb.0.0.weight", "input_blocks.0.0.weight"]),
    ("sdxl", &["add_embedding.linear_1.weight", "down_blocks.0.downsamplers.0.conv.weight"]),
    ("sd1", &["input_blocks.0.0.weight", "middle_block.1.transformer_blocks.0.attn2.to_k.weight"]),
    (
        "sd1",
        &["down_blocks.0.downsamplers.0.conv.weight", "mid_block.attentions.0.transformer_blocks.0.attn2.to_k.weight"],
    ),
];

/// The architecture of a diffusion model whose tensors have these names, whatever stands before them, as GGUF files name it.
///
/// ```
/// let names = ["model.diffusion_model.double_blocks.0.img_attn.proj.weight"];
/// assert_eq!(impasto_weights::architecture_of(names.into_iter()), Some("flux"));
/// ```
pub fn architecture_of<'a>(names: impl Iterator<Item = &'a str> + Clone) -> Option<&'static str> {
    let has = |end: &str| {
        names.clone().any(|name| name.strip_suffix(end).is_some_and(|start| start.is_empty() || start.ends_with('.')))
    };
    ARCHITECTURES.iter().find(|(_, ends)| ends.iter().all(|end| has(end))).map(|(name, _)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_the_architecture() {
        let of = |names: &[&str]| architecture_of(names.iter().copied());
        assert_eq!(of(&["model.diffusion_model.double_blocks.0.img_attn.proj.weight"]), Some("flux"));
        assert_eq!(of(&["first_double_blocks.0.img_attn.proj.weight"]), None);
        let unet = ["input_blocks.0.0.weight", "middle_block.1.transformer_blocks.0.attn2.to_k.weight"];
        let unet = unet.map(|name| format!("model.diffusion_model.{name}"));
        let mut unet: Vec<&str> = unet.iter().map(String::as_str).collect();
        assert_eq!(of(&unet), Some("sd1"));
        unet.push("model.diffusion_model.label_emb.0.0.weight");
        assert_eq!(of(&unet), Some("sdxl"));
        assert_eq!(of(&["decoder.conv_in.weight"]), None);
    }
}
