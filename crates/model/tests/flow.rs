//! Models of flow matching in files of their true size, without numbers: recognised, put together, or refused with what is wrong. What a user would lose:
//! a model that just works, or a sentence that says why it does not.

use std::path::{Path, PathBuf};

use crate::headers::{Tensors, sparse};
use impasto_model::{
    CheckpointLayout, Clip, ClipConfig, ClipLayout, Flux, Flux2, Flux2Config, FluxConfig, Llm, LlmConfig, LlmLayout,
    Model, ModelPaths, Network, NetworkId, QwenImage, QwenImageConfig, QwenVae, QwenVaeConfig, QwenVaeLayout, Sd3,
    Sd3Config, T5, T5Config, T5Layout, Taesd, TaesdConfig, TensorView, Vae, VaeConfig, ZImage, ZImageConfig,
};

/// The tensors of a network below a prefix.
fn tensors(network: &dyn Network, prefix: &str) -> Tensors {
    let mut tensors = Tensors::new();
    for graph in network.graphs().expect("it builds") {
        for (name, value) in graph.params() {
            let stored = network.stored(name, &|_| false);
            let mut shape = graph.ty(value).shape.clone();
            match stored.take {
                TensorView::Rows(_, parts) => shape[0] *= parts,
                TensorView::RowsFrom(_, of) => shape[0] = of,
                TensorView::LastTap(taps) => shape.insert(2, taps),
                TensorView::Whole | TensorView::Transposed => {}
            }
            tensors.insert(format!("{prefix}{}", stored.name), ("F16".into(), shape));
        }
    }
    tensors
}

const LAYOUTS: [CheckpointLayout; 2] = [CheckpointLayout::Original, CheckpointLayout::Diffusers];

fn flux(layout: CheckpointLayout, guidance: bool) -> Flux {
    Flux { config: FluxConfig { guidance, ..FluxConfig::dev() }, layout }
}

fn clip(config: ClipConfig) -> Clip {
    Clip { config, layout: ClipLayout::Transformers }
}

fn t5() -> T5 {
    T5 { config: T5Config::xxl(), layout: T5Layout::Gguf }
}

fn vae(config: VaeConfig) -> Vae {
    Vae { config, layout: CheckpointLayout::Original }
}

fn qwen3() -> Llm {
    Llm { config: LlmConfig::qwen3_4b(), layout: LlmLayout::Gguf }
}

fn write(folder: &Path, name: &str, tensors: &Tensors) -> PathBuf {
    sparse(&folder.join(format!("{name}.safetensors")), tensors, &[])
}

fn temporary() -> tempfile::TempDir {
    tempfile::TempDir::new().expect("a temporary folder")
}

#[track_caller]
fn refused(paths: &ModelPaths, words: &[&str]) {
    let Err(error) = Model::open(paths) else { panic!("it was taken") };
    let text = error.to_string();
    words.iter().for_each(|word| assert!(text.contains(word), "'{word}' is not in: {text}"));
}

/// The files of a model's parts.
fn parts(folder: &Path, of: &[(&str, &dyn Network, &str)]) -> ModelPaths {
    let mut paths = ModelPaths::default();
    for (flag, network, prefix) in of {
        let path = Some(write(folder, flag, &tensors(*network, prefix)));
        match *flag {
            "diffusion" => paths.diffusion = path,
            "vae" => paths.vae = path,
            "clip_l" => paths.clip_l = path,
            "clip_g" => paths.clip_g = path,
            "t5xxl" => paths.t5xxl = path,
            _ => paths.llm = path,
        }
    }
    paths
}

/// What suits a model where nobody asks for anything else: steps, guidance by a negative prompt, guidance that it is told.
#[track_caller]
fn opens(paths: &ModelPaths, name: &str, steps: usize, guidance: f32, told: Option<f32>) {
    let model = Model::open(paths).unwrap_or_else(|e| panic!("{e}"));
    let defaults = model.pipeline.defaults();
    assert_eq!(
        (model.pipeline.name(), defaults.steps, defaults.guidance, defaults.distilled_guidance, defaults.method),
        (name, steps, guidance, told, "euler")
    );
    assert_eq!((defaults.size, model.pipeline.latents().multiple), ([1024; 2], 16));
}

#[test]
fn flux_1_in_parts_and_in_one_file() {
    let folder = temporary();
    for layout in LAYOUTS {
        for (guidance, steps, told) in [(true, 28, Some(3.5)), (false, 4, None)] {
            let transformer = flux(layout, guidance);
            let prefix = if guidance { "" } else { "model.diffusion_model." };
            let all = parts(
                folder.path(),
                &[
                    ("diffusion", &transformer, prefix),
                    ("clip_l", &clip(ClipConfig::clip_l()), ""),
                    ("t5xxl", &t5(), ""),
                    ("vae", &vae(VaeConfig::sixteen_channels()), ""),
                ],
            );
            opens(&all, "FLUX.1", steps, 1.0, told);
        }
    }
    let mut one = tensors(&flux(CheckpointLayout::Original, true), "model.diffusion_model.");
    one.extend(tensors(&clip(ClipConfig::clip_l()), "text_encoders.clip_l.transformer."));
    let t5 = T5 { layout: T5Layout::Transformers, ..t5() };
    one.extend(tensors(&t5, "text_encoders.t5xxl.transformer."));
    one.extend(tensors(&vae(VaeConfig::sixteen_channels()), "vae."));
    let whole = ModelPaths { model: Some(write(folder.path(), "one", &one)), ..ModelPaths::default() };
    opens(&whole, "FLUX.1", 28, 1.0, Some(3.5));
}

#[test]
fn the_other_families_in_parts() {
    let folder = temporary();
    for layout in LAYOUTS {
        let all = parts(
            folder.path(),
            &[
                ("diffusion", &ZImage { config: ZImageConfig::published(), layout }, ""),
                ("llm", &qwen3(), ""),
                ("vae", &vae(VaeConfig::sixteen_channels()), "first_stage_model."),
            ],
        );
        opens(&all, "Z-Image", 50, 5.0, None);
        let turbo = folder.path().join("z_image_turbo.safetensors");
        std::fs::rename(all.diffusion.as_ref().expect("it is there"), &turbo).expect("it is ours");
        opens(&ModelPaths { diffusion: Some(turbo), ..all }, "Z-Image", 8, 1.0, None);

        let mut autoencoder = tensors(&vae(VaeConfig::flux2()), "");
        autoencoder.insert("bn.running_mean".into(), ("F32".into(), vec![128]));
        autoencoder.insert("bn.running_var".into(), ("F32".into(), vec![128]));
        let all = parts(
            folder.path(),
            &[("diffusion", &Flux2 { config: Flux2Config::klein_4b(), layout }, ""), ("llm", &qwen3(), "")],
        );
        let all = ModelPaths { vae: Some(write(folder.path(), "vae32", &autoencoder)), ..all };
        opens(&all, "FLUX.2 klein", 4, 1.0, None);
        // Tiny autoencoders: its own, and one of the wrong channels.
        let tiny =
            |config| write(folder.path(), "tiny", &tensors(&Taesd { config, layout: CheckpointLayout::Diffusers }, ""));
        let with_tiny = |config| ModelPaths { taesd: Some(tiny(config)), ..all.clone() };
        let model = Model::open(&with_tiny(TaesdConfig::flux2())).unwrap_or_else(|e| panic!("{e}"));
        assert!(model.network(NetworkId::TinyDecoder).is_some());
        refused(&with_tiny(TaesdConfig { latent: 16, ..TaesdConfig::sd() }), &["16 channels", "32"]);

        let clip_l = clip(ClipConfig { projection: Some(768), ..ClipConfig::clip_l() });
        let clip_g = clip(ClipConfig::open_clip_g());
        let transformer = Sd3 { config: Sd3Config::large(), layout };
        let all = parts(
            folder.path(),
            &[
                ("diffusion", &transformer, ""),
                ("clip_l", &clip_l, ""),
                ("clip_g", &clip_g, ""),
                ("t5xxl", &t5(), ""),
                ("vae", &vae(VaeConfig::sixteen_channels()), ""),
            ],
        );
        opens(&all, "Stable Diffusion 3", 28, 4.5, None);
        // Each of the encoders may be absent, but not all.
        opens(&ModelPaths { t5xxl: None, ..all.clone() }, "Stable Diffusion 3", 28, 4.5, None);
        opens(&ModelPaths { clip_l: None, clip_g: None, ..all.clone() }, "Stable Diffusion 3", 28, 4.5, None);
        let none = ModelPaths { t5xxl: None, clip_l: None, clip_g: None, ..all };
        refused(&none, &["--clip_l", "--clip_g", "--t5xxl"]);
    }
    for layout in [QwenVaeLayout::Diffusers, QwenVaeLayout::Wan] {
        let all = parts(
            folder.path(),
            &[
                ("diffusion", &QwenImage { config: QwenImageConfig::published() }, ""),
                ("llm", &Llm { config: LlmConfig::qwen25_vl_7b(), layout: LlmLayout::Gguf }, ""),
                ("vae", &QwenVae { config: QwenVaeConfig::published(), layout }, ""),
            ],
        );
        opens(&all, "Qwen-Image", 50, 4.0, None);
        let edit = folder.path().join("qwen-image-edit.safetensors");
        std::fs::rename(all.diffusion.as_ref().expect("it is there"), &edit).expect("it is ours");
        refused(&ModelPaths { diffusion: Some(edit), ..all }, &["Qwen-Image-Edit", "not supported yet"]);
    }
}

#[test]
fn what_is_missing_or_belongs_to_another_model_is_named() {
    let folder = temporary();
    let all = parts(
        folder.path(),
        &[
            ("diffusion", &flux(CheckpointLayout::Original, true), ""),
            ("clip_l", &clip(ClipConfig::clip_l()), ""),
            ("t5xxl", &t5(), ""),
            ("vae", &vae(VaeConfig::sixteen_channels()), ""),
            ("llm", &qwen3(), ""),
        ],
    );
    let good = ModelPaths { llm: None, ..all.clone() };
    opens(&good, "FLUX.1", 28, 1.0, Some(3.5));
    refused(&ModelPaths { t5xxl: None, ..good.clone() }, &["no text encoder (T5-XXL), give one with --t5xxl"]);
    refused(&ModelPaths { t5xxl: None, clip_l: None, vae: None, ..good.clone() }, &["--t5xxl", "--clip_l", "--vae"]);
    refused(&ModelPaths { vae: None, ..good.clone() }, &["no autoencoder, give one with --vae"]);
    refused(&all, &["--llm", "FLUX.1 has no such text encoder"]);
    refused(&ModelPaths { t5xxl: all.llm.clone(), ..good.clone() }, &["--t5xxl", "no text encoder (T5-XXL)", "Qwen3"]);
    let wide = write(folder.path(), "wide", &tensors(&clip(ClipConfig::open_clip_g()), ""));
    refused(&ModelPaths { clip_l: Some(wide), ..good.clone() }, &["1280", "768", "different models"]);
    let four = write(folder.path(), "four", &tensors(&vae(VaeConfig::sd()), ""));
    refused(&ModelPaths { vae: Some(four), ..good.clone() }, &["four", "4 latent channels", "has 16"]);
    let video = QwenVae { config: QwenVaeConfig::published(), layout: QwenVaeLayout::Wan };
    let video = write(folder.path(), "video", &tensors(&video, ""));
    refused(&ModelPaths { vae: Some(video), ..good }, &["autoencoder"]);
}

#[test]
fn kin_that_are_not_supported_are_refused_by_name() {
    let folder = temporary();
    let diffusion = |name: &str, tensors: &Tensors| ModelPaths {
        diffusion: Some(write(folder.path(), name, tensors)),
        ..ModelPaths::default()
    };
    let base = tensors(&flux(CheckpointLayout::Original, true), "");
    refused(&diffusion("flux1-kontext-dev", &base), &["FLUX.1 Kontext", "not supported yet"]);
    let with_input = |width: usize| {
        let mut tensors = base.clone();
        tensors.insert("img_in.weight".into(), ("BF16".into(), vec![3072, width]));
        tensors
    };
    refused(&diffusion("fill", &with_input(384)), &["FLUX.1 Fill"]);
    refused(&diffusion("depth", &with_input(128)), &["FLUX.1 Canny or Depth"]);
    let dev = Flux2 {
        config: Flux2Config { guidance: true, width: 6144, single_blocks: 48, text: 15_360, ..Flux2Config::klein_4b() },
        layout: CheckpointLayout::Original,
    };
    refused(&diffusion("flux2", &tensors(&dev, "")), &["FLUX.2 dev", "klein"]);
    for (mark, word) in [
        ("distilled_guidance_layer.in_proj.weight", "Chroma"),
        ("early_stream_modulations.image.lin.weight", "FLUX.3"),
        ("txt_in.text_norm.weight", "Qwen-Image-2.1"),
        ("txtfusion.projector.weight", "Krea 2"),
        ("blocks.0.cross_attn.norm_k.weight", "Wan"),
        ("patchify_proj.weight", "LTX"),
        ("txt_in.individual_token_refiner.blocks.0.norm1.weight", "HunyuanVideo"),
    ] {
        // Those that have the names of FLUX.1 too.
        let mut other = if ["Chroma", "HunyuanVideo"].contains(&word) { base.clone() } else { Tensors::new() };
        other.insert(mark.into(), ("BF16".into(), vec![64, 64]));
        refused(&diffusion("other", &other), &[word]);
    }
}
