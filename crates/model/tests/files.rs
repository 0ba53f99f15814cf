//! From files to networks. What a user would lose: a model that just works, or a sentence that says why it does not.

use crate::headers;
use std::path::{Path, PathBuf};

use crate::headers::{Folder, SCHEDULER, layout, part, sparse, sparse_with};
use impasto_backend::WeightSource;
use impasto_graph::{DType, Storage, Unary};
use impasto_model::{
    ClipConfig, Heads, HiddenState, LatentDiffusion, Model, ModelPaths, NetworkId, OpenNetwork, Prediction,
    TaesdConfig, TokenizerKind, UnetConfig, VaeConfig,
};
use tempfile::TempDir;

fn temporary() -> TempDir {
    TempDir::new().expect("a temporary folder")
}

fn whole(path: impl Into<PathBuf>) -> ModelPaths {
    ModelPaths { model: Some(path.into()), ..ModelPaths::default() }
}

#[track_caller]
fn open(paths: &ModelPaths) -> Model {
    Model::open(paths).unwrap_or_else(|e| panic!("{e}"))
}

/// The model, which must be one of Stable Diffusion.
#[track_caller]
fn sd(model: &Model) -> &LatentDiffusion {
    model.pipeline.downcast::<LatentDiffusion>().expect("Stable Diffusion")
}

const SD1: &str = "Stable Diffusion 1";
const SD2: &str = "Stable Diffusion 2";
const SDXL: &str = "Stable Diffusion XL";

#[track_caller]
fn network(model: &Model, id: NetworkId) -> &OpenNetwork {
    model.network(id).unwrap_or_else(|| panic!("the model has no {id}"))
}

/// The message of a refusal, which must have all of these words.
#[track_caller]
fn refused(paths: &ModelPaths, words: &[&str]) {
    let Err(error) = Model::open(paths) else { panic!("it was taken") };
    let text = error.to_string();
    words.iter().for_each(|word| assert!(text.contains(word), "'{word}' is not in: {text}"));
}

/// One of the layouts, as a file in a folder.
fn file(folder: &Path, name: &str) -> PathBuf {
    sparse(&folder.join(format!("{name}.safetensors")), &layout(name), &[])
}

/// Every parameter can be read, in the shape and with the bytes that a backend will ask for.
fn read_all(part: &OpenNetwork, graphs: &[impasto_graph::Graph]) {
    for graph in graphs {
        for (name, value) in graph.params() {
            let given = part.describe(name).unwrap_or_else(|e| panic!("{e}"));
            assert_eq!(given.shape, graph.ty(value).shape, "{name}");
            let bytes = given.shape.iter().product::<usize>() as u64 * given.storage.block_bytes();
            assert_eq!(given.bytes, bytes, "{name}");
            // Its first bytes and its last ones, and not one more.
            let mut some = [0; 4];
            for at in [0, bytes - some.len().min(bytes as usize) as u64] {
                let some = &mut some[..4.min(bytes as usize)];
                part.read_into(name, at, some).unwrap_or_else(|e| panic!("{e}"));
            }
            assert!(part.read_into(name, bytes - 1, &mut some).is_err(), "{name}");
        }
    }
}

#[test]
fn one_file_of_each_family() {
    let folder = temporary();
    let (sd1, sd2, xl) = (UnetConfig::sd15(), UnetConfig::sd21(), UnetConfig::sdxl());
    let nine = |unet: &UnetConfig| UnetConfig { in_channels: 9, ..unet.clone() };
    // Layout, family, UNet, prediction, picture size, and how many tensors nobody uses.
    for (name, family, unet, prediction, side, unused) in [
        ("sd15_pruned_emaonly_f16", SD1, sd1.clone(), Prediction::Epsilon, 512, 1),
        ("sd15_full", SD1, sd1.clone(), Prediction::Epsilon, 512, 1 + 686 + 2 + 12),
        ("sd15_inpainting", SD1, nine(&sd1), Prediction::Epsilon, 512, 1 + 12),
        ("sd15_merged", SD1, sd1.clone(), Prediction::Epsilon, 512, 2),
        // The scale of logits.
        ("sd21_base", SD2, sd2.clone(), Prediction::Epsilon, 512, 1),
        ("sd2_inpainting", SD2, nine(&sd2), Prediction::Epsilon, 512, 1 + 12),
        ("sdxl_base", SDXL, xl.clone(), Prediction::Epsilon, 1024, 3),
        ("sdxl_turbo", SDXL, xl.clone(), Prediction::Epsilon, 512, 2),
        ("sdxl_vpred", SDXL, xl.clone(), Prediction::V, 1024, 4),
        ("sdxl_inpainting", SDXL, nine(&xl), Prediction::Epsilon, 1024, 2),
    ] {
        let model = open(&whole(file(folder.path(), name)));
        assert_eq!(
            (model.pipeline.name(), &sd(&model).unet, model.pipeline.prediction()),
            (family, &unet, prediction),
            "{name}"
        );
        assert_eq!((model.pipeline.defaults().size, sd(&model).vae()), ([side; 2], &VaeConfig::sd()), "{name}");
        assert_eq!(model.unused.len(), unused, "{name}: {:?}", model.unused);
        assert_eq!(model.pipeline.inpaints(), name.contains("inpainting"), "{name}");
        assert_eq!((sd(&model).turbo, sd(&model).zero_snr), (name == "sdxl_turbo", name == "sdxl_vpred"), "{name}");
        let (text, hidden, factor) = match family {
            SD1 => (vec![ClipConfig::clip_l()], vec![HiddenState { skip: 0, norm: true }], 0.18215),
            SD2 => (vec![ClipConfig::open_clip_h()], vec![HiddenState { skip: 1, norm: true }], 0.18215),
            _ => (
                vec![ClipConfig::clip_l(), ClipConfig::open_clip_g()],
                vec![HiddenState { skip: 1, norm: false }; 2],
                0.13025,
            ),
        };
        assert_eq!(sd(&model).text, text, "{name}");
        assert_eq!(
            (&sd(&model).hidden, sd(&model).scale().factor, sd(&model).scale().shift),
            (&hidden, factor, 0.0),
            "{name}"
        );
    }
}

#[test]
fn every_parameter_can_be_read() {
    use impasto_model::{ElementTypes, clip, unet, vae_decoder, vae_encoder};
    let folder = temporary();
    for name in ["sd15_merged", "sdxl_base", "sd21_base"] {
        let model = open(&whole(file(folder.path(), name)));
        let (n, state) = (ElementTypes::F32, HiddenState { skip: 0, norm: true });
        for (i, text) in sd(&model).text.iter().enumerate() {
            read_all(network(&model, NetworkId::TextEncoder(i)), &[clip(text, 1, state, n).expect("it builds")]);
        }
        read_all(
            network(&model, NetworkId::Denoiser),
            &[unet(&sd(&model).unet, 2, [16, 16], 77, n).expect("it builds")],
        );
        let vae = sd(&model).vae();
        let graphs = [vae_decoder(vae, 1, [4, 4], n), vae_encoder(vae, 1, [32, 32], n)].map(|g| g.expect("it builds"));
        read_all(network(&model, NetworkId::VaeDecoder), &graphs);
    }
    let mixed = open(&whole(file(folder.path(), "sd15_merged")));
    let dense = |dtype| Storage::Dense(dtype);
    assert_eq!(network(&mixed, NetworkId::Denoiser).storage(), dense(DType::F16));
    assert_eq!(
        (network(&mixed, NetworkId::VaeDecoder).storage(), network(&mixed, NetworkId::TextEncoder(0)).storage()),
        (dense(DType::F32), dense(DType::BF16))
    );
    assert_eq!(network(&mixed, NetworkId::Denoiser).bytes(), 2 * 859_520_964, "parameters of the UNet");
}

/// The one matrix that is turned and the one that is joined, number by number.
#[test]
fn joined_and_turned_tensors_give_the_right_numbers() {
    let folder = temporary();
    let name = "conditioner.embedders.1.model.";
    let numbers = |tensor: &str, shape: &[usize]| {
        let wanted = [format!("{name}text_projection"), format!("{name}transformer.resblocks.3.attn.in_proj_bias")];
        wanted.contains(&tensor.to_string()).then(|| {
            (0..shape.iter().product::<usize>()).flat_map(|i| ((i % 40_000) as u16).to_le_bytes()).collect::<Vec<u8>>()
        })
    };
    let path = sparse_with(&folder.path().join("xl.safetensors"), &layout("sdxl_base"), &[], &numbers);
    let model = open(&whole(path));
    let number = |bytes: &[u8], i: usize| u16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]]) as usize;
    let read = |id, name: &str| network(&model, id).read_all(name).expect("it is there").1;
    let turned = read(NetworkId::TextEncoder(1), "text_projection.weight");
    for (row, column) in [(0, 0), (0, 1), (1, 0), (1279, 3), (17, 1278)] {
        assert_eq!(number(&turned, row * 1280 + column), (column * 1280 + row) % 40_000);
    }
    let keys = read(NetworkId::TextEncoder(1), "text_model.encoder.layers.3.self_attn.k_proj.bias");
    assert!((0..1280).all(|i| number(&keys, i) == 1280 + i));
}

#[test]
fn velocity_is_found_in_the_weights_of_stable_diffusion_2_or_in_what_a_file_says() {
    let folder = temporary();
    let spread = |amount: f32| {
        move |name: &str, shape: &[usize]| {
            name.ends_with("output_blocks.11.1.transformer_blocks.0.norm1.bias").then(|| {
                (0..shape[0]).flat_map(|i| if i % 2 == 0 { amount } else { -amount }.to_le_bytes()).collect::<Vec<u8>>()
            })
        }
    };
    let tensors = layout("sd21_768v");
    let at = folder.path().join("768.safetensors");
    for (amount, metadata, want) in [
        (0.1, &[][..], Prediction::V),
        (0.08, &[], Prediction::Epsilon),
        (0.1, &[("modelspec.prediction_type", "epsilon")], Prediction::Epsilon),
        (0.0, &[("modelspec.prediction_type", "v")], Prediction::V),
        (0.0, &[("modelspec.architecture", "stable-diffusion-v2-768-v")], Prediction::V),
    ] {
        let model = open(&whole(sparse_with(&at, &tensors, metadata, &spread(amount))));
        assert_eq!(model.pipeline.prediction(), want, "{amount} {metadata:?}");
        assert_eq!(model.pipeline.defaults().size, [if want == Prediction::V { 768 } else { 512 }; 2]);
    }
    sparse(&at, &tensors, &[("modelspec.prediction_type", "sample")]);
    refused(&whole(&at), &["768.safetensors", "modelspec.prediction_type", "'sample'", "epsilon"]);
}

#[test]
fn metadata_names_a_model_and_says_what_shapes_cannot() {
    let folder = temporary();
    let metadata =
        [("modelspec.title", "My model"), ("modelspec.resolution", "640x384"), ("text_heads", "6"), ("other", "x")];
    let path = sparse(&folder.path().join("m.safetensors"), &layout("sd15_pruned_emaonly_f16"), &metadata);
    let model = open(&whole(&path));
    assert_eq!(
        (model.title.as_str(), model.pipeline.defaults().size, sd(&model).text[0].heads),
        ("My model", [384, 640], 6)
    );
    for wrong in ["0", "7", "-1", "many", "99999999999999999999"] {
        sparse(&path, &layout("sd15_pruned_emaonly_f16"), &[("text_heads", wrong)]);
        refused(&whole(&path), &["text_heads", wrong, "768"]);
    }
}

#[test]
fn a_file_may_say_which_of_two_families_it_is() {
    let folder = temporary();
    let path = folder.path().join("m.safetensors");
    // Projections of the first family, saved as matrices: by structure the second.
    let mut tensors = layout("sd15_pruned_emaonly_f16");
    let projections = |name: &str| name.ends_with("proj_in.weight") || name.ends_with("1.proj_out.weight");
    for (_, (_, shape)) in tensors.iter_mut().filter(|(n, _)| n.starts_with("model.") && projections(n)) {
        shape.truncate(2);
    }
    sparse(&path, &tensors, &[("modelspec.architecture", "stable-diffusion-v1")]);
    let model = open(&whole(&path));
    assert_eq!((model.pipeline.name(), &sd(&model).unet.heads), (SD1, &Heads::Count(8)));
    assert_eq!(sd(&model).hidden, [HiddenState { skip: 0, norm: true }]);
}

#[test]
fn diffusers_folders() {
    for variant in ["", ".fp16"] {
        for family in ["sd1", "sd2", "xl"] {
            let folder = temporary();
            Folder { family, variant, scheduler: SCHEDULER }.write(folder.path());
            let model = open(&whole(folder.path()));
            let (want, unet, text) = match family {
                "sd1" => (SD1, UnetConfig::sd15(), vec![ClipConfig::clip_l()]),
                "sd2" => (SD2, UnetConfig::sd21(), vec![ClipConfig { layers: 23, ..ClipConfig::open_clip_h() }]),
                _ => (SDXL, UnetConfig::sdxl(), vec![ClipConfig::clip_l(), ClipConfig::open_clip_g()]),
            };
            assert_eq!((model.pipeline.name(), &sd(&model).unet), (want, &unet));
            assert_eq!(sd(&model).text, text);
            assert_eq!(model.unused, [""; 0], "{family}");
            assert_eq!(sd(&model).scale().factor, if family == "xl" { 0.13025 } else { 0.18215 });
            let mut encoders = model.pipeline.text().iter();
            assert!(encoders.all(|t| matches!(&t.tokenizer, TokenizerKind::Folder(f) if f.is_dir())));
            // The folder of Stable Diffusion 2 has no last layer, so its last state is the one before it.
            assert_eq!(sd(&model).hidden[0].skip, usize::from(family == "xl"));
            assert_eq!(model.notes.len(), if variant.is_empty() { 0 } else { 2 + text.len() });
            assert!(model.notes.iter().all(|note| note.contains("'fp16' was taken")), "{:?}", model.notes);
            assert_eq!(model.title, folder.path().file_stem().expect("a name").to_string_lossy());
        }
    }
}

#[test]
fn the_plain_name_comes_before_variants_and_shards_are_one_component() {
    let folder = temporary();
    Folder { family: "sd1", variant: "", scheduler: SCHEDULER }.write(folder.path());
    let unet = folder.path().join("unet");
    let tensors = part("unet_sd1_diffusers", "", "F32");
    for variant in ["fp16", "non_ema"] {
        sparse(&unet.join(format!("diffusion_pytorch_model.{variant}.safetensors")), &tensors, &[]);
    }
    let model = open(&whole(folder.path()));
    assert_eq!(
        (model.notes.len(), network(&model, NetworkId::Denoiser).storage()),
        (0, Storage::Dense(DType::F16)),
        "the plain one is in f16"
    );

    // In two shards instead.
    std::fs::remove_file(unet.join("diffusion_pytorch_model.safetensors")).expect("it is there");
    std::fs::remove_file(unet.join("diffusion_pytorch_model.non_ema.safetensors")).expect("it is there");
    std::fs::remove_file(unet.join("diffusion_pytorch_model.fp16.safetensors")).expect("it is there");
    let half = tensors.len() / 2;
    let names =
        ["diffusion_pytorch_model-00001-of-00002.safetensors", "diffusion_pytorch_model-00002-of-00002.safetensors"];
    let halves: [headers::Tensors; 2] =
        [tensors.clone().into_iter().take(half).collect(), tensors.clone().into_iter().skip(half).collect()];
    let mut map = vec![];
    for (name, half) in names.iter().zip(&halves) {
        sparse(&unet.join(name), half, &[]);
        map.extend(half.keys().map(|tensor| format!(r#""{tensor}":"{name}""#)));
    }
    let index = format!(r#"{{"metadata":{{}},"weight_map":{{{}}}}}"#, map.join(","));
    headers::write(&unet.join("diffusion_pytorch_model.safetensors.index.json"), &index);
    let model = open(&whole(folder.path()));
    assert_eq!(
        (network(&model, NetworkId::Denoiser).len(), network(&model, NetworkId::Denoiser).storage()),
        (686, Storage::Dense(DType::F32))
    );
    std::fs::remove_file(unet.join(names[1])).expect("it is there");
    refused(&whole(folder.path()), &[names[1], "cannot be opened"]);
}

#[test]
fn config_says_what_shapes_cannot() {
    let folder = temporary();
    Folder { family: "sd2", variant: "", scheduler: SCHEDULER }.write(folder.path());
    let change = |file: &str, from: &str, to: &str| {
        let path = folder.path().join(file);
        let text = std::fs::read_to_string(&path).expect("it is there");
        assert!(text.contains(from), "'{from}' is not in {text}");
        headers::write(&path, &text.replace(from, to));
    };
    change("scheduler/scheduler_config.json", "\"epsilon\"", "\"v_prediction\",\"rescale_betas_zero_snr\":true");
    change("unet/config.json", "[5, 10, 20, 20]", "[5, 5, 10, 10]");
    change("text_encoder/config.json", "\"num_attention_heads\": 16", "\"num_attention_heads\": 8");
    change("text_encoder/config.json", "\"gelu\"", "\"quick_gelu\"");
    change("vae/config.json", "0.18215", "0.3611");
    change("vae/config.json", "\"shift_factor\": null", "\"shift_factor\": 0.1159");
    let model = open(&whole(folder.path()));
    assert_eq!((model.pipeline.prediction(), sd(&model).zero_snr), (Prediction::V, true));
    assert_eq!(sd(&model).unet.heads, Heads::Levels(vec![5, 5, 10, 10]));
    assert_eq!((sd(&model).text[0].heads, sd(&model).text[0].activation), (8, Unary::QuickGelu));
    assert_eq!((sd(&model).scale().factor, sd(&model).scale().shift), (0.3611, 0.1159));
    change("unet/config.json", "[5, 5, 10, 10]", "8");
    assert_eq!(sd(&open(&whole(folder.path()))).unet.heads, Heads::Count(8));
}

#[test]
fn parts_from_files_of_their_own() {
    let folder = temporary();
    let at = |name: &str| file(folder.path(), name);
    let sd1 = at("sd15_pruned_emaonly_f16");
    let vae = ModelPaths { vae: Some(at("vae_ft_mse_840000")), ..whole(&sd1) };
    let model = open(&vae);
    assert_eq!(
        (network(&model, NetworkId::VaeDecoder).storage(), model.unused.len()),
        (Storage::Dense(DType::F32), 1),
        "{:?}",
        model.unused
    );
    // The autoencoder of another checkpoint, and of a diffusers folder.
    open(&ModelPaths { vae: Some(at("sd15_full")), ..whole(&sd1) });
    let diffusers = folder.path().join("folder");
    Folder { family: "sd1", variant: "", scheduler: SCHEDULER }.write(&diffusers);
    open(&ModelPaths { vae: Some(diffusers.join("vae")), ..whole(&sd1) });

    let parts = ModelPaths {
        diffusion: Some(at("unet_only_sdxl")),
        clip_l: Some(at("clip_l")),
        clip_g: Some(at("clip_g")),
        vae: Some(at("vae_ft_mse_840000")),
        ..ModelPaths::default()
    };
    let model = open(&parts);
    assert_eq!([&sd(&model).text[0], &sd(&model).text[1]], [&ClipConfig::clip_l(), &ClipConfig::open_clip_g()]);
    assert_eq!(sd(&model).scale().factor, 0.13025);

    for (name, encoder) in [("taesd_decoder", vec![]), ("taesd_diffusers", vec![1, 3, 3, 3])] {
        let model = open(&ModelPaths { taesd: Some(at(name)), ..whole(&sd1) });
        let config = sd(&model).taesd().cloned();
        assert_eq!(config, Some(TaesdConfig { encoder, ..TaesdConfig::sd() }), "{name}");
    }
}

#[test]
fn what_is_missing_is_said_with_the_flag_that_gives_it() {
    let folder = temporary();
    let at = |name: &str| file(folder.path(), name);
    refused(&ModelPaths::default(), &["--model", "--diffusion-model"]);
    let unet = whole(at("unet_only_sdxl"));
    refused(&unet, &["unet_only_sdxl", "CLIP-L", "--clip_l", "OpenCLIP-G", "--clip_g", "autoencoder", "--vae"]);
    refused(&whole(at("vae_ft_mse_840000")), &["no diffusion model", "--diffusion-model"]);
    refused(
        &ModelPaths { clip_g: Some(at("clip_g")), ..whole(at("sd15_pruned_emaonly_f16")) },
        &["--clip_g", "Stable Diffusion 1", "leave it out"],
    );
    let other = ModelPaths { clip_l: Some(at("clip_g")), ..whole(at("sd15_pruned_emaonly_f16")) };
    refused(&other, &["1280", "768", "different models"]);
    let none = ModelPaths { vae: Some(at("clip_l")), ..whole(at("sd15_pruned_emaonly_f16")) };
    refused(&none, &["clip_l", "no autoencoder", "found: text encoder, width 768"]);
    let none = ModelPaths { vae: Some(folder.path().join("nowhere")), ..whole(at("sd15_pruned_emaonly_f16")) };
    refused(&none, &["nowhere", "cannot be opened"]);
}

#[test]
fn other_models_are_refused_with_what_they_are() {
    let folder = temporary();
    for (name, words) in [("lora", &["LoRA"][..]), ("sdxl_refiner", &["refiner", "base model"])] {
        let path = file(folder.path(), name);
        refused(&whole(&path), &[&[name, "Supported are Stable Diffusion 1, 2, XL and 3"], words].concat());
    }
    let unknown = [("a.weight", vec![4]), ("b.weight", vec![4, 4])];
    let unknown = unknown.map(|(name, shape)| (name.to_string(), ("F32".to_string(), shape))).into();
    refused(
        &whole(sparse(&folder.path().join("u.safetensors"), &unknown, &[])),
        &["2 tensors", "a.weight", "Supported"],
    );
    refused(&whole(sparse(&folder.path().join("e.safetensors"), &Default::default(), &[])), &["no tensors"]);
    for (mark, word) in [("edm_mean", "EDM"), ("model.diffusion_model.time_embed.cond_proj.weight", "guidance")] {
        let mut other = layout("sdxl_base");
        other.insert(mark.into(), ("F32".into(), vec![4]));
        refused(&whole(sparse(&folder.path().join("other.safetensors"), &other, &[])), &["other", word]);
    }
    let mut depth = layout("sd21_base");
    let first = "model.diffusion_model.input_blocks.0.0.weight".to_string();
    depth.insert(first, ("F16".into(), vec![320, 5, 3, 3]));
    refused(&whole(sparse(&folder.path().join("depth.safetensors"), &depth, &[])), &["takes 5 channels", "depth"]);
}

#[test]
fn tensors_that_are_missing_or_wrong_are_named_before_anything_is_packed() {
    let folder = temporary();
    let path = folder.path().join("m.safetensors");
    let broken = |change: &dyn Fn(&mut headers::Tensors)| {
        let mut tensors = layout("sd15_pruned_emaonly_f16");
        change(&mut tensors);
        whole(sparse(&path, &tensors, &[]))
    };
    let name = "model.diffusion_model.middle_block.1.transformer_blocks.0.ff.net.2.weight";
    refused(&broken(&|t| drop(t.remove(name))), &["m.safetensors", "diffusion model", name, "[1280, 5120]", "missing"]);
    let put = |element: &'static str, shape: Vec<usize>| {
        move |t: &mut headers::Tensors| drop(t.insert(name.into(), (element.into(), shape.clone())))
    };
    refused(&broken(&put("F16", vec![1280, 5119])), &[name, "[1280, 5119]", "[1280, 5120] is needed"]);
    refused(&broken(&put("I64", vec![1280, 5120])), &[name, "stored as i64", "f16"]);
    let all = |t: &mut headers::Tensors| {
        for (_, (_, shape)) in t.iter_mut().filter(|(name, _)| name.contains(".attn2.")) {
            shape[0] += 1;
        }
    };
    refused(&broken(&all), &["and 76 more"]);
    let groups = |t: &mut headers::Tensors| {
        for (_, (_, shape)) in t.iter_mut().filter(|(name, _)| name.starts_with("model.")) {
            shape.iter_mut().for_each(|d| *d = if *d % 320 == 0 { *d / 32 } else { *d });
        }
    };
    refused(&broken(&groups), &["m.safetensors", "do not fit together"]);
    // Sizes that cannot be: an empty tensor may claim any.
    let huge = |t: &mut headers::Tensors| {
        for (_, (_, shape)) in t.iter_mut().filter(|(name, _)| name.starts_with("model.")) {
            *shape = [0].into_iter().chain(shape.iter().map(|_| usize::MAX >> 2)).collect();
        }
    };
    refused(&broken(&huge), &["m.safetensors"]);
}
