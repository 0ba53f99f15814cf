//! Models with one tensor missing, renamed or too many. What a user would lose: another picture than the model's, without a word.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::headers::{Tensors, sparse};
use impasto_model::{FAMILIES, Model, ModelPaths, original_names};
use impasto_testkit::model::Small;
use impasto_weights::Checkpoint;
use tempfile::TempDir;

fn open(path: &Path) -> Result<Model, String> {
    Model::open(&ModelPaths { model: Some(path.into()), ..ModelPaths::default() }).map_err(|error| error.to_string())
}

/// The names and shapes in a file.
fn tensors(path: &Path) -> Tensors {
    let file = Checkpoint::open(path).expect("it opens");
    file.tensors().map(|t| (t.name.clone(), ("F32".into(), t.shape.clone()))).collect()
}

/// A model of the tests in both layouts, its values all zero: what is opened, and the files in it.
fn written(model: &Small, folder: &Path) -> Vec<(PathBuf, Vec<PathBuf>)> {
    let (diffusers, original) = (folder.join("diffusers"), folder.join("original.safetensors"));
    model.write_folder(&diffusers);
    model.write_original(&original);
    let files =
        ["unet/diffusion_pytorch_model", "vae/diffusion_pytorch_model", "text_encoder/model", "text_encoder_2/model"];
    let files = files.iter().map(|name| diffusers.join(format!("{name}.safetensors"))).filter(|path| path.exists());
    vec![(diffusers.clone(), files.collect()), (original.clone(), vec![original])]
}

/// Takes each tensor of a model away in turn, by removing or by renaming it.
fn check_each_tensor_is_needed(family: &str, model: &Small) {
    let folder = TempDir::new().expect("a folder");
    let mut tried = 0;
    for (whole, files) in written(model, folder.path()) {
        for file in files {
            let all = tensors(&file);
            sparse(&file, &all, &[]);
            assert_eq!(open(&whole).map(|model| model.pipeline.name()), Ok(family), "{}", whole.display());
            for name in all.keys() {
                let mut rest = all.clone();
                let tensor = rest.remove(name).expect("it is there");
                tried += 1;
                if tried % 2 == 0 {
                    rest.insert(format!("{name}.orig"), tensor);
                }
                sparse(&file, &rest, &[]);
                let Err(text) = open(&whole) else { panic!("{}: taken without '{name}'", file.display()) };
                assert!(text.contains(&format!("'{name}'")), "'{name}' is not in: {text}");
            }
            sparse(&file, &all, &[]);
        }
    }
    assert!(tried > 500, "{tried}");
}

/// What `convert` calls the tensors of a folder is what an original checkpoint calls them.
#[test]
fn folders_have_the_names_of_original_checkpoints() {
    for model in [Small::sd1(), Small::sd2_v(), Small::sdxl()] {
        let folder = TempDir::new().expect("a folder");
        written(&model, folder.path());
        let original = tensors(&folder.path().join("original.safetensors"));
        for (component, prefix) in [("unet", "model.diffusion_model."), ("vae", "first_stage_model.")] {
            let file = folder.path().join(format!("diffusers/{component}/diffusion_pytorch_model.safetensors"));
            let shapes = tensors(&file).into_iter().map(|(name, (_, shape))| (name, shape)).collect();
            let (_, names) = original_names(FAMILIES, &shapes).expect("a network");
            let known: BTreeSet<&String> = names.keys().collect();
            assert!(known.iter().copied().eq(shapes.keys()), "{component}: every tensor has a name there");
            // Convolutions over one pixel are written as matrices in these tests.
            let without_ones = |shape: Vec<usize>| shape.into_iter().filter(|&d| d != 1).collect::<Vec<_>>();
            let found: BTreeMap<String, Vec<usize>> =
                names.into_values().map(|(name, shape)| (format!("{prefix}{name}"), without_ones(shape))).collect();
            let theirs = original.clone().into_iter().filter(|(name, _)| name.starts_with(prefix));
            let theirs = theirs.map(|(name, (_, shape))| (name, without_ones(shape))).collect();
            assert_eq!(found, theirs, "{component}");
        }
    }
}

#[test]
fn stable_diffusion_1_without_one_tensor_is_refused_by_its_name() {
    check_each_tensor_is_needed("Stable Diffusion 1", &Small::sd1());
}

#[test]
fn stable_diffusion_2_without_one_tensor_is_refused_by_its_name() {
    check_each_tensor_is_needed("Stable Diffusion 2", &Small::sd2_v());
}

#[test]
fn stable_diffusion_xl_without_one_tensor_is_refused_by_its_name() {
    check_each_tensor_is_needed("Stable Diffusion XL", &Small::sdxl());
}

#[test]
fn a_tensor_too_many_among_the_networks_own_is_refused_by_its_name() {
    let folder = TempDir::new().expect("a folder");
    for (whole, files) in written(&Small::sd1(), folder.path()) {
        for file in files {
            let all = tensors(&file);
            // As if there were one more of what a network has several of.
            let numbered =
                |name: &String| name.split('.').any(|word| word == "0").then(|| name.replacen(".0.", ".77.", 1));
            let extra: BTreeSet<String> =
                all.keys().filter_map(numbered).filter(|name| !all.contains_key(name)).collect();
            for name in extra.iter().step_by(5) {
                let mut more = all.clone();
                more.insert(name.clone(), ("F32".into(), vec![8]));
                sparse(&file, &more, &[]);
                let text = open(&whole).map(|_| ()).expect_err(name);
                // What is counted as a layer lacks its other tensors.
                assert!(text.contains(".77.") || text.contains("is missing"), "{name}: {text}");
            }
            sparse(&file, &all, &[]);
        }
    }
}

#[test]
fn what_training_leaves_in_files_is_harmless() {
    let folder = TempDir::new().expect("a folder");
    let (original, files) = written(&Small::sd1(), folder.path()).pop().expect("the second layout");
    let mut all = tensors(&files[0]);
    let before = all.len();
    for name in [
        "cond_stage_model.transformer.text_model.embeddings.position_ids",
        "cond_stage_model.transformer.text_projection.weight",
        "cond_stage_model.logit_scale",
        "model_ema.diffusion_modelinput_blocks00weight",
        "model_ema.decay",
        "model_ema.num_updates",
        "first_stage_model.loss.logvar",
        "first_stage_model.loss.discriminator.main.3.num_batches_tracked",
        "alphas_cumprod",
        "alphas_cumprod_prev",
        "betas",
        "log_one_minus_alphas_cumprod",
        "posterior_mean_coef1",
        "sqrt_alphas_cumprod",
        "denoiser.sigmas",
        "epoch",
        "global_step",
        "optimizer_states.0",
        "control_model.input_blocks.0.0.weight",
        "lora_unet_down_blocks_0_attentions_0_proj_in.lora_up.weight",
        "model.diffusion_model.v_pred",
    ] {
        all.insert(name.into(), ("F32".into(), vec![1]));
    }
    sparse(&files[0], &all, &[]);
    let model = open(&original).unwrap_or_else(|text| panic!("{text}"));
    // One is read: it says what the model predicts.
    assert!(model.unused.len() >= all.len() - before - 1, "{:?}", model.unused);
}

#[test]
fn weights_that_are_not_what_their_configuration_says_are_refused() {
    let folder = TempDir::new().expect("a folder");
    let (whole, _) = written(&Small::sdxl(), folder.path()).remove(0);
    for (file, field, right, wrong) in [
        ("unet", "layers_per_block", "1", "2"),
        ("unet", "block_out_channels", "[64, 128]", "[64, 128, 128]"),
        ("unet", "down_block_types", r#"["DownBlock2D", "CrossAttnDownBlock2D"]"#, r#"["DownBlock2D", "DownBlock2D"]"#),
        ("unet", "transformer_layers_per_block", "[1, 2]", "[1, 3]"),
        ("unet", "cross_attention_dim", "128", "64"),
        ("unet", "use_linear_projection", "true", "false"),
        ("unet", "projection_class_embeddings_input_dim", "256", "512"),
        ("vae", "layers_per_block", "1", "2"),
        ("vae", "block_out_channels", "[32, 64, 64, 64]", "[32, 64, 64]"),
        ("vae", "use_quant_conv", "true", "false"),
        ("text_encoder", "num_hidden_layers", "2", "3"),
        ("text_encoder_2", "intermediate_size", "128", "256"),
    ] {
        let path = whole.join(file).join("config.json");
        let before = std::fs::read_to_string(&path).unwrap_or_else(|_| "{}".into());
        for (value, taken) in [(right, true), (wrong, false)] {
            let mut json: serde_json::Value = serde_json::from_str(&before).expect("it is JSON");
            json[field] = serde_json::from_str(value).expect("it is JSON");
            crate::headers::write(&path, &json.to_string());
            match open(&whole) {
                Ok(_) => assert!(taken, "{file}: {field} may not be {value}"),
                Err(text) => assert!(!taken && text.contains(field), "{file}: {field} may be {value}: {text}"),
            }
        }
        crate::headers::write(&path, &before);
    }
}
