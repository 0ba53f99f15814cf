//! What the tensors of a LoRA are called: the name of a module, and behind it what the tensor is to the adapter.

/// What a tensor is to its adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Role {
    /// From the layer's input to the rank.
    Down,
    /// From the rank to the layer's output.
    Up,
    /// The core of a Tucker decomposition between both.
    Mid,
    /// The scale, times the rank.
    Alpha,
    /// The lengths of rows or columns, of DoRA.
    Lengths,
    HadaW1A,
    HadaW1B,
    HadaW2A,
    HadaW2B,
    HadaT1,
    HadaT2,
    LokrW1,
    LokrW1A,
    LokrW1B,
    LokrW2,
    LokrW2A,
    LokrW2B,
    LokrT2,
    /// The whole difference of a weight.
    Diff,
    /// That of a bias.
    DiffBias,
}

/// Ends of names. An end that is part of another stands after it.
const ENDS: [(&str, Role); 37] = [
    (".lora_down.weight", Role::Down),
    (".lora_up.weight", Role::Up),
    (".lora_mid.weight", Role::Mid),
    (".lora_A.weight", Role::Down),
    (".lora_B.weight", Role::Up),
    (".lora_linear_layer.down.weight", Role::Down),
    (".lora_linear_layer.up.weight", Role::Up),
    (".lora.down.weight", Role::Down),
    (".lora.up.weight", Role::Up),
    ("_lora.down.weight", Role::Down),
    ("_lora.up.weight", Role::Up),
    (".weight.lora_a", Role::Down),
    (".weight.lora_b", Role::Up),
    (".lora_down", Role::Down),
    (".lora_up", Role::Up),
    (".lora_A", Role::Down),
    (".lora_B", Role::Up),
    (".alpha", Role::Alpha),
    (".dora_scale", Role::Lengths),
    (".lora_magnitude_vector.weight", Role::Lengths),
    (".lora_magnitude_vector", Role::Lengths),
    (".hada_w1_a", Role::HadaW1A),
    (".hada_w1_b", Role::HadaW1B),
    (".hada_w2_a", Role::HadaW2A),
    (".hada_w2_b", Role::HadaW2B),
    (".hada_t1", Role::HadaT1),
    (".hada_t2", Role::HadaT2),
    (".lokr_w1", Role::LokrW1),
    (".lokr_w1_a", Role::LokrW1A),
    (".lokr_w1_b", Role::LokrW1B),
    (".lokr_w2", Role::LokrW2),
    (".lokr_w2_a", Role::LokrW2A),
    (".lokr_w2_b", Role::LokrW2B),
    (".lokr_t2", Role::LokrT2),
    (".diff", Role::Diff),
    (".w_norm", Role::Diff),
    (".diff_b", Role::DiffBias),
];

/// The module that a tensor belongs to, and what it is to the module's adapter.
pub(super) fn parse(name: &str) -> Option<(String, Role)> {
    let plain = |name: &str| {
        let (end, role) = ENDS.iter().find(|(end, _)| name.ends_with(end))?;
        Some((name[..name.len() - end.len()].to_string(), *role))
    };
    if let Some(module) = name.strip_suffix(".b_norm") {
        return Some((module.into(), Role::DiffBias));
    }
    plain(name).or_else(|| {
        // PEFT writes the adapter's name before the last word: `.lora_A.default.weight`.
        let (start, adapter) = name.strip_suffix(".weight")?.rsplit_once('.')?;
        let named = ["lora_A", "lora_B", "lora_magnitude_vector"].iter().any(|word| start.ends_with(word));
        (named && !adapter.is_empty()).then(|| plain(&format!("{start}.weight")))?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_every_dialect() {
        for (name, module, role) in [
            ("lora_unet_mid_block_x.lora_down.weight", "lora_unet_mid_block_x", Role::Down),
            ("unet.mid_block.to_q.lora_A.weight", "unet.mid_block.to_q", Role::Down),
            ("unet.mid_block.to_q.lora_B.default_0.weight", "unet.mid_block.to_q", Role::Up),
            ("unet.to_q.lora_magnitude_vector.default.weight", "unet.to_q", Role::Lengths),
            ("unet.attn1.processor.to_q_lora.up.weight", "unet.attn1.processor.to_q", Role::Up),
            ("text_encoder.q_proj.lora_linear_layer.up.weight", "text_encoder.q_proj", Role::Up),
            ("unet.to_k.lora.down.weight", "unet.to_k", Role::Down),
            ("lora_te_x.lokr_w1_a", "lora_te_x", Role::LokrW1A),
            ("lora_te_x.diff_b", "lora_te_x", Role::DiffBias),
            ("lora_te_x.b_norm", "lora_te_x", Role::DiffBias),
        ] {
            assert_eq!(parse(name), Some((module.into(), role)), "{name}");
        }
        assert_eq!(parse("model.diffusion_model.out.2.weight"), None);
        assert_eq!(parse("x.default.weight"), None);
    }
}
