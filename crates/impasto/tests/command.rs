//! The command as a user meets it: what it prints, and what it says when something is wrong.

use crate::world::text;
use std::process::{Command, Output};

fn impasto(args: &[&str], cpu: Option<&str>) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_impasto"));
    command.args(args).env_remove("IMPASTO_CPU");
    if let Some(cpu) = cpu {
        command.env("IMPASTO_CPU", cpu);
    }
    command.output().expect("the program starts")
}

#[test]
fn bench_prints_one_json_object_a_line() {
    let out = impasto(&["bench", "cpu", "--json", "--filter", "gemm_8192", "--seconds", "0.01"], Some("portable"));
    assert!(out.status.success(), "{}", text(&out.stderr));
    let lines: Vec<serde_json::Value> =
        text(&out.stdout).lines().map(|l| serde_json::from_str(l).expect("a line is JSON")).collect();
    assert_eq!(lines.len(), 1);
    assert_eq!(lines[0]["name"], "gemm_8192x320x320");
    assert_eq!(lines[0]["isa"], "portable");
    for key in ["gflops", "peak_gflops", "ratio"] {
        assert!(lines[0][key].as_f64().is_some_and(|v| v > 0.0), "{key} in {}", lines[0]);
    }
}

#[test]
fn an_unknown_instruction_path_is_an_error_that_lists_them() {
    let out = impasto(&["bench", "cpu"], Some("mmx"));
    assert_eq!(out.status.code(), Some(1));
    let message = text(&out.stderr);
    assert!(message.starts_with("error: IMPASTO_CPU='mmx'"), "{message}");
    for name in ["amx", "avx512bf16", "avx512", "avx2", "portable"] {
        assert!(message.contains(name), "{message}");
    }
}

#[test]
fn an_unknown_precision_or_no_threads_are_bad_arguments() {
    for args in [["bench", "cpu", "--precision", "f64"], ["bench", "cpu", "--threads", "0"]] {
        let out = impasto(&args, None);
        assert_eq!(out.status.code(), Some(2), "{}", text(&out.stderr));
        assert!(text(&out.stderr).contains(args[3]), "{}", text(&out.stderr));
    }
}

#[test]
fn every_path_that_is_used_passed_its_trial_in_a_child() {
    // Through the program, because a test has no hook: with it, a path is either proved or named with a reason.
    let out = impasto(&["bench", "cpu", "--filter", "nothing"], None);
    assert!(out.status.success());
    for line in text(&out.stderr).lines() {
        assert!(line.contains(": not used: "), "{line}");
    }
    let none = impasto(&["--version"], None);
    assert_eq!(text(&none.stdout), format!("impasto {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn inspect_adds_up_a_model_and_refuses_what_is_none() {
    let folder = tempfile::TempDir::new().expect("a temporary folder");
    let path = folder.path().join("m.safetensors");
    let header = r#"{"model.diffusion_model.out.2.weight":{"dtype":"F16","shape":[4,3],"data_offsets":[0,24]},
        "first_stage_model.decoder.conv_out.bias":{"dtype":"F32","shape":[3],"data_offsets":[24,36]}}"#;
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.bytes().chain([0; 36]));
    std::fs::write(&path, &bytes).expect("it can be written");
    let name = path.to_str().expect("a plain path");

    let out = impasto(&["inspect", name, "--json"], None);
    let found: serde_json::Value = serde_json::from_slice(&out.stdout).expect("it is JSON");
    assert_eq!(found["total"], serde_json::json!({"tensors": 2, "parameters": 15, "bytes": 36}));
    assert_eq!(found["unused"].as_array().map(Vec::len), Some(2), "two tensors are no network");
    let shown = text(&impasto(&["inspect", name], None).stdout);
    assert!(shown.contains("no diffusion model") && shown.contains("not used: 2 tensors"), "{shown}");

    std::fs::write(&path, &bytes[..bytes.len() - 1]).expect("it can be written");
    let cut = impasto(&["inspect", name], None);
    assert_eq!(cut.status.code(), Some(1));
    assert!(text(&cut.stderr).contains("first_stage_model.decoder.conv_out.bias"), "{}", text(&cut.stderr));
}

/// A component of a diffusers folder: every parameter of these graphs, zero.
fn component(folder: &std::path::Path, name: &str, config: &str, graphs: &[impasto::graph::Graph]) {
    let (mut fields, mut at) = (std::collections::BTreeMap::new(), 0);
    for graph in graphs {
        for (name, value) in graph.params() {
            let ty = graph.ty(value);
            let end = at + 4 * ty.elements();
            let entry = format!(r#"{name:?}:{{"dtype":"F32","shape":{:?},"data_offsets":[{at},{end}]}}"#, ty.shape);
            if fields.insert(name.to_string(), entry).is_none() {
                at = end;
            }
        }
    }
    let header = format!("{{{}}}", fields.into_values().collect::<Vec<_>>().join(","));
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.resize(bytes.len() + at as usize, 0);
    let folder = folder.join(name);
    std::fs::create_dir_all(&folder).expect("it can be made");
    std::fs::write(folder.join("model.fp16.safetensors"), bytes).expect("it can be written");
    std::fs::write(folder.join("config.json"), config).expect("it can be written");
}

#[test]
fn inspect_shows_a_diffusers_folder_as_one_model() {
    use impasto::model::{
        ClipConfig, ElementTypes, HiddenState, UnetConfig, VaeConfig, clip, unet, vae_decoder, vae_encoder,
    };
    let folder = tempfile::TempDir::new().expect("a temporary folder");
    let small = ClipConfig { vocabulary: 99, width: 64, layers: 2, heads: 4, inner: 64, ..ClipConfig::clip_l() };
    let network = UnetConfig { channels: vec![32, 64], depth: vec![0, 1], context: 64, ..UnetConfig::sd15() };
    let vae = VaeConfig { channels: vec![32, 32], ..VaeConfig::sd() };
    let n = ElementTypes::F32;
    let encoder = clip(&small, 1, HiddenState { skip: 0, norm: true }, n).expect("it builds");
    let config = r#"{"model_type":"clip_text_model","num_attention_heads":4,"hidden_act":"quick_gelu"}"#;
    component(folder.path(), "text_encoder", config, &[encoder]);
    let network = unet(&network, 1, [4, 4], 77, n).expect("it builds");
    component(folder.path(), "unet", r#"{"_class_name":"UNet2DConditionModel","attention_head_dim":8}"#, &[network]);
    let parts = [vae_decoder(&vae, 1, [4, 4], n), vae_encoder(&vae, 1, [8, 8], n)].map(|g| g.expect("it builds"));
    component(folder.path(), "vae", r#"{"_class_name":"AutoencoderKL"}"#, &parts);
    std::fs::create_dir(folder.path().join("scheduler")).expect("it can be made");
    let scheduler = folder.path().join("scheduler/scheduler_config.json");
    std::fs::write(&scheduler, r#"{"prediction_type":"v_prediction"}"#).expect("it can be written");

    let name = folder.path().to_str().expect("a plain path");
    let out = impasto(&["inspect", name, "--json"], None);
    let found: serde_json::Value = serde_json::from_slice(&out.stdout).expect("it is JSON");
    assert_eq!(found["files"].as_array().map(Vec::len), Some(3));
    assert_eq!(found["networks"].as_array().map(Vec::len), Some(3));
    assert_eq!((&found["family"], &found["prediction"]), (&"Stable Diffusion 1".into(), &"v".into()));
    let want = serde_json::json!([{"width": 64, "layers": 2, "heads": 4, "activation": "quick_gelu"}]);
    assert_eq!((&found["text"], &found["problem"]), (&want, &serde_json::Value::Null));
    assert_eq!(found["notes"].as_array().map(Vec::len), Some(3), "each component is the variant fp16");
    let shown = text(&impasto(&["inspect", name], None).stdout);
    for line in ["predicts the velocity (v)", "text of width 64: 2 layers, 4 heads, quick_gelu", "'fp16' was taken"] {
        assert!(shown.contains(line), "'{line}' is not in: {shown}");
    }

    // Several components are not converted by accident; merged, they are one model that predicts the same.
    let merged = folder.path().join("merged.gguf");
    let merged = merged.to_str().expect("a plain path");
    let convert =
        |more: &[&str]| impasto(&[&["convert", "-m", name, "-o", merged, "--type", "q8_0"], more].concat(), None);
    let refused = text(&convert(&[]).stderr);
    assert!(refused.contains("text_encoder, unet, vae") && refused.contains("--merge"), "{refused}");
    let done = convert(&["--merge"]);
    assert!(done.status.success(), "{}", text(&done.stderr));
    let out = impasto(&["inspect", merged, "--json"], None);
    let found: serde_json::Value = serde_json::from_slice(&out.stdout).expect("it is JSON");
    assert_eq!((&found["family"], &found["prediction"]), (&"Stable Diffusion 1".into(), &"v".into()), "{found}");
    assert_eq!((&found["architecture"], found["missing"].as_array().map(Vec::len)), (&"sd1".into(), Some(0)));
    assert_eq!(found["networks"].as_array().map(Vec::len), Some(3));
    let done = convert(&["--component", "unet", "--force"]);
    assert!(done.status.success(), "{}", text(&done.stderr));
    let out = impasto(&["inspect", merged, "--json"], None);
    let found: serde_json::Value = serde_json::from_slice(&out.stdout).expect("it is JSON");
    assert_eq!((found["networks"].as_array().map(Vec::len), &found["architecture"]), (Some(1), &"sd1".into()));
    std::fs::remove_file(merged).expect("it is ours");

    std::fs::remove_dir_all(folder.path().join("vae")).expect("it is ours");
    let shown = text(&impasto(&["inspect", name], None).stdout);
    assert!(shown.contains("no autoencoder, give one with --vae"), "{shown}");
    std::fs::write(&scheduler, "{").expect("it can be written");
    let shown = text(&impasto(&["inspect", name], None).stdout);
    assert!(shown.contains("scheduler_config.json: is no JSON"), "{shown}");
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_impasto"))
        .args(["bench", "plan"])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .expect("the program starts");
    drop(child.stdout.take());
    let out = child.wait_with_output().expect("it ends");
    assert!(out.status.success() && out.stderr.is_empty(), "{}", text(&out.stderr));
}

#[test]
fn bench_kernel_compiles_what_breaks_others_into_few_ids_and_equal_bits() {
    let lines = |args: &[&str]| -> Vec<serde_json::Value> {
        let out = impasto(&[&["bench", "kernel", "--json"], args].concat(), None);
        assert!(out.status.success(), "{}", text(&out.stderr));
        text(&out.stdout).lines().map(|l| serde_json::from_str(l).expect("a line is JSON")).collect()
    };
    let ours = lines(&["--no-baseline"]);
    assert_eq!(ours.len(), 6);
    for line in &ours {
        assert_eq!(line["equal"], true, "{line}");
        assert!(line["peak_bytes"].as_u64().is_none_or(|b| b < 200_000_000), "{line}");
    }
    // The other optimiser is asked about the smallest one only: it takes minutes for the others.
    let [line] = &lines(&["sparse 500 500 2"])[..] else { panic!("one line was asked for") };
    let [ids, theirs] = ["ids", "baseline_ids"].map(|key| line[key].as_u64().expect("spirv-opt is installed"));
    assert!(ids <= theirs, "{line}");
    let wrong = impasto(&["bench", "kernel", "sparse 5"], None);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(text(&wrong.stderr).contains("'sparse 2048 2048 2'"), "{}", text(&wrong.stderr));
}

#[test]
fn the_kernels_of_the_program_can_be_looked_at() {
    let list = impasto(&["kernel", "list", "--json"], None);
    assert!(list.status.success(), "{}", text(&list.stderr));
    let lines: Vec<serde_json::Value> =
        text(&list.stdout).lines().map(|l| serde_json::from_str(l).expect("a line is JSON")).collect();
    assert!(lines.len() >= 15, "{lines:?}");
    for line in &lines {
        assert!(line["ids"].as_u64() > Some(10) && line["ids"].as_u64() <= line["unoptimised_ids"].as_u64(), "{line}");
    }
    let folder = tempfile::TempDir::new().expect("a temporary folder");
    let dump = folder.path().to_str().expect("a plain path");
    for (stage, says) in
        [("built", "var"), ("ssa", "kernel gemm"), ("optimised", "kernel gemm"), ("spirv", "OpEntryPoint")]
    {
        let out = impasto(&["kernel", "show", "linear", "--stage", stage, "--dump", dump, "--verify"], None);
        assert!(out.status.success() && text(&out.stdout).contains(says), "{stage}: {}", text(&out.stderr));
    }
    let dumped = std::fs::read_dir(folder.path()).expect("the folder").flatten();
    let shipped = dumped.filter(|one| one.path().join("shipped.spv").exists()).count();
    assert_eq!(shipped, 4, "each time the words were dumped");
    let plain = impasto(&["kernel", "show", "softmax", "--opt", "0"], None);
    assert!(text(&plain.stderr).contains("unoptimised, as was asked for"), "{}", text(&plain.stderr));
    for (args, says) in [
        (["show", "nothing", "--opt", "1"], "there are linear"),
        (["show", "linear", "--stage", "x"], "there are built"),
    ] {
        let out = impasto(&[&["kernel"], &args[..]].concat(), None);
        assert!(!out.status.success() && text(&out.stderr).contains(says), "{}", text(&out.stderr));
    }
}
