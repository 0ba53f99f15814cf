//! Diffusers folders that are broken. What a user would lose: the name of the file and of the field that is wrong.

use std::fs;
use std::path::Path;

use crate::headers::{Folder, SCHEDULER, write};
use impasto_model::{Model, ModelPaths};
use tempfile::TempDir;

fn folder(family: &'static str) -> TempDir {
    let folder = TempDir::new().expect("a temporary folder");
    Folder { family, variant: "", scheduler: SCHEDULER }.write(folder.path());
    folder
}

#[track_caller]
fn refused(folder: &Path, words: &[&str]) {
    let paths = ModelPaths { model: Some(folder.into()), ..ModelPaths::default() };
    let Err(error) = Model::open(&paths) else { panic!("it was taken") };
    let text = error.to_string();
    words.iter().for_each(|word| assert!(text.contains(word), "'{word}' is not in: {text}"));
}

#[test]
fn json_that_is_none() {
    let folder = folder("sd1");
    for file in [
        "model_index.json",
        "unet/config.json",
        "vae/config.json",
        "text_encoder/config.json",
        "scheduler/scheduler_config.json",
    ] {
        let path = folder.path().join(file);
        let good = fs::read_to_string(&path).expect("it is there");
        for (text, words) in [
            ("", &["no JSON"][..]),
            ("{", &["no JSON"]),
            ("[1, 2]", &["no JSON object"]),
            ("\u{0}\u{1}", &["no JSON"]),
            (&"[".repeat(100_000), &["no JSON"]),
            (&format!("{{\"a\":\"{}\"}}", "x".repeat(2 << 20)), &["1048576 bytes"]),
        ] {
            write(&path, text);
            refused(folder.path(), &[&[file], words].concat());
        }
        write(&path, &good);
    }
}

#[test]
fn fields_that_are_wrong_are_named_with_their_file() {
    let folder = folder("sd2");
    for (file, field, value, words) in [
        ("model_index.json", "_class_name", "7", &["a text is needed"][..]),
        ("unet/config.json", "_class_name", "\"FluxTransformer2DModel\"", &["UNet2DConditionModel is needed"]),
        ("unet/config.json", "attention_head_dim", "\"eight\"", &["\"eight\"", "count"]),
        ("unet/config.json", "attention_head_dim", "[5, 10]", &["2 numbers for 4 levels"]),
        ("unet/config.json", "attention_head_dim", "[]", &["0 numbers"]),
        ("unet/config.json", "attention_head_dim", "[5, 10, 20, -20]", &["count"]),
        ("unet/config.json", "attention_head_dim", "0", &["count"]),
        ("unet/config.json", "attention_head_dim", "7", &["7 heads to 320 channels"]),
        ("unet/config.json", "attention_head_dim", "123456789012345678901234567890", &["count"]),
        ("unet/config.json", "num_attention_heads", "{}", &["count"]),
        ("unet/config.json", "norm_num_groups", "16", &["is 16; only 32 is supported"]),
        ("unet/config.json", "norm_eps", "1e-6", &["only 0.00001 is supported"]),
        ("unet/config.json", "act_fn", "\"gelu\"", &["only \"silu\" is supported"]),
        ("unet/config.json", "time_cond_proj_dim", "256", &["256", "not supported"]),
        ("unet/config.json", "class_embed_type", "\"timestep\"", &["not supported"]),
        ("unet/config.json", "sample_size", "1e300", &["count"]),
        ("unet/config.json", "sample_size", "[1, 2, 3]", &["more than two"]),
        ("vae/config.json", "scaling_factor", "0", &["cannot be divided"]),
        ("vae/config.json", "scaling_factor", "1e300", &["32 bits"]),
        ("vae/config.json", "scaling_factor", "[1]", &["number"]),
        ("vae/config.json", "shift_factor", "true", &["number"]),
        ("vae/config.json", "latents_mean", "[0.1, 0.2]", &["not supported"]),
        ("vae/config.json", "norm_num_groups", "\"x\"", &["only 32"]),
        ("text_encoder/config.json", "hidden_act", "\"relu\"", &["'relu'", "quick_gelu"]),
        ("text_encoder/config.json", "num_attention_heads", "7", &["7", "1024"]),
        ("text_encoder/config.json", "num_attention_heads", "1.5", &["whole number"]),
        ("text_encoder/config.json", "layer_norm_eps", "1", &["only 0.00001"]),
        ("text_encoder/config.json", "model_type", "\"t5\"", &["'t5'", "clip_text_model is needed"]),
        ("scheduler/scheduler_config.json", "prediction_type", "\"sample\"", &["'sample'", "v_prediction"]),
        ("scheduler/scheduler_config.json", "prediction_type", "[]", &["text"]),
        ("scheduler/scheduler_config.json", "beta_schedule", "\"linear\"", &["only \"scaled_linear\""]),
        ("scheduler/scheduler_config.json", "num_train_timesteps", "1e18", &["only 1000"]),
        ("scheduler/scheduler_config.json", "rescale_betas_zero_snr", "1", &["true or false"]),
        (
            "scheduler/scheduler_config.json",
            "_class_name",
            "\"EDMEulerScheduler\"",
            &["EDMEulerScheduler", "not supported"],
        ),
        ("scheduler/scheduler_config.json", "_class_name", "null", &[]),
    ] {
        let path = folder.path().join(file);
        let good = fs::read_to_string(&path).expect("it is there");
        let mut json: serde_json::Value = serde_json::from_str(&good).expect("the fixture is JSON");
        // Also a number that no machine holds.
        json[field] = serde_json::from_str(value).unwrap_or(serde_json::Value::String("too large".into()));
        write(&path, &json.to_string());
        if words.is_empty() {
            let paths = ModelPaths { model: Some(folder.path().into()), ..ModelPaths::default() };
            assert!(Model::open(&paths).is_ok(), "{file}: {field} may be {value}");
        } else {
            refused(folder.path(), &[&[file, field], words].concat());
        }
        write(&path, &good);
    }
}

#[test]
fn components_that_are_missing_or_empty() {
    let xl = folder("xl");
    let at = |name: &str| xl.path().join(name);
    for (component, words) in [
        ("unet", &["no diffusion model", "--diffusion-model"][..]),
        ("vae", &["no autoencoder", "--vae"]),
        ("text_encoder", &["CLIP-L", "--clip_l"]),
        ("text_encoder_2", &["OpenCLIP-G", "--clip_g"]),
    ] {
        fs::rename(at(component), at("away")).expect("it is there");
        refused(xl.path(), words);
        fs::create_dir(at(component)).expect("it can be made");
        refused(xl.path(), &[component, "has no .safetensors file"]);
        // One letter is no pickle, and a page that says 404 no model.
        fs::write(at(component).join("model.bin"), "x").expect("it can be written");
        refused(xl.path(), &[component, "model.bin", "too few for a model"]);
        fs::write(at(component).join("model.safetensors"), "<html>not found</html>").expect("it can be written");
        refused(xl.path(), &[component, "no model file"]);
        fs::remove_dir_all(at(component)).expect("it is ours");
        fs::rename(at("away"), at(component)).expect("it is there");
    }
    // The right file in the wrong place.
    fs::rename(at("vae"), at("away")).expect("it is there");
    fs::create_dir(at("vae")).expect("it can be made");
    fs::copy(at("text_encoder").join("model.safetensors"), at("vae").join("model.safetensors")).expect("it is there");
    refused(xl.path(), &["vae", "no autoencoder", "found: text encoder, width 768"]);
    let empty = TempDir::new().expect("a temporary folder");
    refused(empty.path(), &["has no .safetensors file"]);
    write(&empty.path().join("model_index.json"), r#"{"_class_name":"FluxPipeline"}"#);
    refused(empty.path(), &["no diffusion model"]);
    fs::create_dir(empty.path().join("transformer")).expect("it can be made");
    refused(empty.path(), &["FluxPipeline", "Supported are Stable Diffusion 1, 2, XL and 3"]);
}

#[cfg(unix)]
#[test]
fn files_that_may_not_be_read() {
    use std::os::unix::fs::PermissionsExt;
    let folder = folder("sd1");
    for name in ["unet", "unet/diffusion_pytorch_model.safetensors", "unet/config.json", "model_index.json"] {
        let path = folder.path().join(name);
        let mode = fs::metadata(&path).expect("it is there").permissions().mode();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o000)).expect("it is ours");
        // The one whom permissions do not bind sees nothing wrong.
        let bound = if path.is_dir() { fs::read_dir(&path).is_err() } else { fs::File::open(&path).is_err() };
        if bound {
            refused(folder.path(), &[name.split('/').next().expect("a name"), "cannot be opened"]);
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("it is ours");
    }
}
