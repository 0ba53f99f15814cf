//! Small models of flow matching in their true structure, in every layout that people have files in.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use impasto_graph::Unary;
use impasto_model::{
    CheckpointLayout, Clip, ClipConfig, ClipLayout, Flux, Flux2, Flux2Config, FluxConfig, Llm, LlmConfig, LlmLayout,
    ModelPaths, QwenImage, QwenImageConfig, QwenVae, QwenVaeConfig, QwenVaeLayout, Sd3, Sd3Config, T5, T5Config,
    T5Layout, Vae, VaeConfig, ZImage, ZImageConfig,
};
use serde_json::json;

use super::generated::numbers;
use super::{Tensor, original, write_safetensors};

/// A component: its folder, its flag, what its file is called in a folder, its tensors as a folder and as other files have them, its configuration.
struct Component {
    folder: &'static str,
    flag: &'static str,
    diffusers: BTreeMap<String, Tensor>,
    original: BTreeMap<String, Tensor>,
    config: serde_json::Value,
}

/// A small model.
pub struct SmallFlow {
    components: Vec<Component>,
    scheduler: serde_json::Value,
    class: &'static str,
}

fn vae(channels: usize, quant_conv: bool) -> VaeConfig {
    VaeConfig { latent: channels, channels: vec![32, 64, 64, 64], resnets: 1, quant_conv }
}

fn kl_vae(scale: [f64; 2]) -> Component {
    kl_vae_of(vae(16, false), scale)
}

fn kl_vae_of(config: VaeConfig, scale: [f64; 2]) -> Component {
    let of = |layout| original("vae", &Vae { config: config.clone(), layout }, "");
    Component {
        folder: "vae",
        flag: "vae",
        diffusers: of(CheckpointLayout::Diffusers),
        original: of(CheckpointLayout::Original),
        config: json!({ "_class_name": "AutoencoderKL", "scaling_factor": scale[0], "shift_factor": scale[1], "use_quant_conv": false,
            "use_post_quant_conv": false, "latent_channels": 16 }),
    }
}

fn clip(folder: &'static str, flag: &'static str, activation: Unary, projection: Option<usize>) -> Component {
    let config =
        ClipConfig { width: 24, layers: 2, heads: 2, inner: 48, activation, projection, ..ClipConfig::clip_l() };
    let of = |layout| original(folder, &Clip { config: config.clone(), layout }, "");
    Component {
        folder,
        flag,
        diffusers: of(ClipLayout::Transformers),
        original: of(ClipLayout::Transformers),
        config: json!({ "model_type": "clip_text_model", "num_attention_heads": 2,
            "hidden_act": if activation == Unary::Gelu { "gelu" } else { "quick_gelu" } }),
    }
}

fn t5(folder: &'static str) -> Component {
    let config = T5Config { width: 48, layers: 2, heads: 3, head: 16, inner: 96, ..T5Config::xxl() };
    // Some files have the table under both of its names.
    let of = |layout| {
        let mut tensors = original(folder, &T5 { config: config.clone(), layout }, "");
        if let Some(table) = tensors.get("shared.weight").cloned() {
            tensors.insert("encoder.embed_tokens.weight".into(), table);
        }
        tensors
    };
    Component {
        folder,
        flag: "t5xxl",
        diffusers: of(T5Layout::Transformers),
        original: of(T5Layout::Gguf),
        config: json!({ "model_type": "t5", "num_layers": 2, "num_heads": 3, "feed_forward_proj": "gated-gelu" }),
    }
}

fn qwen3(layers: usize, width: usize, head: usize) -> Component {
    let config = LlmConfig { width, layers, heads: [4, 2], head, inner: 2 * width, ..LlmConfig::qwen3_4b() };
    let of = |layout, prefix| original("text_encoder", &Llm { config: config.clone(), layout }, prefix);
    Component {
        folder: "text_encoder",
        flag: "llm",
        diffusers: of(LlmLayout::Transformers, "model."),
        original: of(LlmLayout::Gguf, ""),
        config: json!({ "model_type": "qwen3", "num_attention_heads": 4 }),
    }
}

/// The halves of what the last norms read, exchanged: diffusers has them the other way.
fn exchanged(mut tensors: BTreeMap<String, Tensor>, layer: &str) -> BTreeMap<String, Tensor> {
    for (name, (_, numbers)) in &mut tensors {
        if name.starts_with(layer) {
            let half = numbers.len() / 2;
            numbers.rotate_left(half);
        }
    }
    tensors
}

impl SmallFlow {
    pub fn flux(guidance: bool) -> SmallFlow {
        let config = FluxConfig {
            width: 64,
            head: 32,
            inner: 256,
            double_blocks: 2,
            single_blocks: 2,
            text: 48,
            pooled: 24,
            guidance,
            ..FluxConfig::dev()
        };
        let of = |layout| original("transformer", &Flux { config: config.clone(), layout }, "");
        let transformer = Component {
            folder: "transformer",
            flag: "diffusion-model",
            diffusers: of(CheckpointLayout::Diffusers),
            original: exchanged(of(CheckpointLayout::Original), "final_layer.adaLN_modulation.1."),
            config: json!({ "_class_name": "FluxTransformer2DModel" }),
        };
        let text = clip("text_encoder", "clip_l", Unary::QuickGelu, None);
        SmallFlow {
            components: vec![transformer, text, t5("text_encoder_2"), kl_vae([0.3611, 0.1159])],
            scheduler: json!({ "_class_name": "FlowMatchEulerDiscreteScheduler", "use_dynamic_shifting": guidance }),
            class: "FluxPipeline",
        }
    }

    /// FLUX.1 with an autoencoder that has large tensors and little work.
    pub fn flux_with_narrow_vae() -> SmallFlow {
        let mut small = SmallFlow::flux(true);
        let config = VaeConfig { channels: vec![32, 64, 32, 32], ..vae(16, false) };
        small.components[3] = kl_vae_of(config, [0.3611, 0.1159]);
        small
    }

    pub fn z_image() -> SmallFlow {
        let config = ZImageConfig {
            width: 96,
            head: 32,
            inner: 256,
            blocks: 2,
            text: 48,
            time: 96,
            ..ZImageConfig::published()
        };
        let of = |layout| original("transformer", &ZImage { config: config.clone(), layout }, "");
        let transformer = Component {
            folder: "transformer",
            flag: "diffusion-model",
            diffusers: of(CheckpointLayout::Diffusers),
            original: of(CheckpointLayout::Original),
            config: json!({ "_class_name": "ZImageTransformer2DModel" }),
        };
        SmallFlow {
            components: vec![transformer, qwen3(3, 48, 16), kl_vae([0.3611, 0.1159])],
            scheduler: json!({ "_class_name": "FlowMatchEulerDiscreteScheduler", "shift": 3.0 }),
            class: "ZImagePipeline",
        }
    }

    pub fn klein() -> SmallFlow {
        let config = Flux2Config {
            width: 64,
            head: 32,
            inner: 192,
            double_blocks: 2,
            single_blocks: 2,
            text: 48,
            ..Flux2Config::klein_4b()
        };
        let of = |layout| original("transformer", &Flux2 { config: config.clone(), layout }, "");
        let transformer = Component {
            folder: "transformer",
            flag: "diffusion-model",
            diffusers: of(CheckpointLayout::Diffusers),
            original: exchanged(of(CheckpointLayout::Original), "final_layer.adaLN_modulation.1."),
            config: json!({ "_class_name": "Flux2Transformer2DModel" }),
        };
        let of = |layout| {
            let mut tensors = original("vae", &Vae { config: vae(32, true), layout }, "");
            let own = |name: &str, f: fn(f64) -> f64| {
                (vec![128], numbers(&format!("vae/{name}"), 128).map(|u| f(u) as f32).collect())
            };
            tensors.insert("bn.running_mean".into(), own("bn.running_mean", |u| 0.5 * u));
            tensors.insert("bn.running_var".into(), own("bn.running_var", |u| 1.5 + u));
            tensors
        };
        let autoencoder = Component {
            folder: "vae",
            flag: "vae",
            diffusers: of(CheckpointLayout::Diffusers),
            original: of(CheckpointLayout::Original),
            config: json!({ "_class_name": "AutoencoderKLFlux2", "latent_channels": 32 }),
        };
        SmallFlow {
            components: vec![transformer, qwen3(28, 16, 8), autoencoder],
            scheduler: json!({ "_class_name": "FlowMatchEulerDiscreteScheduler", "use_dynamic_shifting": true }),
            class: "Flux2KleinPipeline",
        }
    }

    /// With or without T5.
    pub fn sd3(with_t5: bool) -> SmallFlow {
        let config = Sd3Config {
            width: 64,
            head: 32,
            inner: 256,
            blocks: 3,
            dual_blocks: 2,
            side: 12,
            text: 48,
            pooled: 48,
            ..Sd3Config::large()
        };
        let of = |layout| original("transformer", &Sd3 { config: config.clone(), layout }, "");
        let transformer = Component {
            folder: "transformer",
            flag: "diffusion-model",
            diffusers: of(CheckpointLayout::Diffusers),
            original: exchanged(
                exchanged(of(CheckpointLayout::Original), "final_layer.adaLN_modulation.1."),
                "joint_blocks.2.context_block.adaLN_modulation.1.",
            ),
            config: json!({ "_class_name": "SD3Transformer2DModel" }),
        };
        let mut components = vec![
            transformer,
            clip("text_encoder", "clip_l", Unary::QuickGelu, Some(24)),
            clip("text_encoder_2", "clip_g", Unary::Gelu, Some(24)),
            kl_vae([1.5305, 0.0609]),
        ];
        components.extend(with_t5.then(|| t5("text_encoder_3")));
        SmallFlow {
            components,
            scheduler: json!({ "_class_name": "FlowMatchEulerDiscreteScheduler", "shift": 3.0 }),
            class: "StableDiffusion3Pipeline",
        }
    }

    pub fn qwen_image() -> SmallFlow {
        let config =
            QwenImageConfig { width: 64, head: 32, inner: 256, blocks: 2, text: 48, ..QwenImageConfig::published() };
        let of = || original("transformer", &QwenImage { config: config.clone() }, "");
        let transformer = Component {
            folder: "transformer",
            flag: "diffusion-model",
            diffusers: of(),
            original: of(),
            config: json!({ "_class_name": "QwenImageTransformer2DModel" }),
        };
        let text = LlmConfig {
            vocabulary: 152_064,
            width: 48,
            layers: 3,
            heads: [4, 2],
            head: 12,
            inner: 96,
            ..LlmConfig::qwen25_vl_7b()
        };
        let llm = Llm { config: text, layout: LlmLayout::Transformers };
        let text = Component {
            folder: "text_encoder",
            flag: "llm",
            diffusers: original("text_encoder", &llm, "model.language_model."),
            original: original("text_encoder", &llm, "model."),
            config: json!({ "model_type": "qwen2_5_vl", "text_config": { "num_attention_heads": 4 } }),
        };
        let config = QwenVaeConfig { latent: 16, channels: vec![32, 64, 128, 128], resnets: 1 };
        // Videos have more, which a picture does not meet.
        let of = |layout| {
            let mut tensors = original("vae", &QwenVae { config: config.clone(), layout }, "");
            let own = match layout {
                QwenVaeLayout::Diffusers => "decoder.up_blocks.0.upsamplers.0.time_conv.weight",
                QwenVaeLayout::Wan => "decoder.upsamples.2.time_conv.weight",
            };
            tensors.insert(own.into(), (vec![2, 1, 3, 1, 1], vec![0.5; 6]));
            tensors
        };
        let autoencoder = Component {
            folder: "vae",
            flag: "vae",
            diffusers: of(QwenVaeLayout::Diffusers),
            original: of(QwenVaeLayout::Wan),
            config: json!({ "_class_name": "AutoencoderKLQwenImage" }),
        };
        SmallFlow {
            components: vec![transformer, text, autoencoder],
            scheduler: json!({ "_class_name": "FlowMatchEulerDiscreteScheduler", "use_dynamic_shifting": true }),
            class: "QwenImagePipeline",
        }
    }

    /// As a diffusers folder. Tokenizers are the program's own.
    pub fn write_folder(&self, folder: &Path) -> ModelPaths {
        let write = |path: PathBuf, json: &serde_json::Value| {
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            std::fs::write(path, json.to_string()).expect("written");
        };
        write(folder.join("model_index.json"), &json!({ "_class_name": self.class }));
        write(folder.join("scheduler/scheduler_config.json"), &self.scheduler);
        for component in &self.components {
            let own = folder.join(component.folder);
            write(own.join("config.json"), &component.config);
            let text = component.folder.starts_with("text_encoder");
            let file = if text { "model.safetensors" } else { "diffusion_pytorch_model.safetensors" };
            write_safetensors(&own.join(file), &component.diffusers);
        }
        ModelPaths { model: Some(folder.into()), ..ModelPaths::default() }
    }

    /// As the files of each component in the names of its authors, below prefixes if they are given. What configurations say stays in a folder of the
    /// component's own, since shapes of small models do not tell it.
    pub fn write_parts(&self, folder: &Path, prefixed: bool) -> ModelPaths {
        let mut paths = BTreeMap::new();
        for component in &self.components {
            let own = folder.join(format!("{}_file", component.folder));
            std::fs::create_dir_all(&own).expect("a folder");
            let text = component.folder.starts_with("text_encoder");
            let prefix = match component.flag {
                "diffusion-model" if prefixed => "model.diffusion_model.",
                "vae" if prefixed => "first_stage_model.",
                _ => "",
            };
            let tensors = component.original.iter().map(|(name, t)| (format!("{prefix}{name}"), t.clone())).collect();
            let path = own.join(if text { "model.safetensors" } else { "weights.safetensors" });
            write_safetensors(&path, &tensors);
            if text {
                std::fs::write(own.join("config.json"), component.config.to_string()).expect("written");
            }
            paths.insert(component.flag, path);
        }
        let part = |name: &str| paths.get(name).cloned();
        ModelPaths {
            diffusion: part("diffusion-model"),
            vae: part("vae"),
            clip_l: part("clip_l"),
            clip_g: part("clip_g"),
            t5xxl: part("t5xxl"),
            llm: part("llm"),
            ..ModelPaths::default()
        }
    }
}
