//! `impasto convert` as a user meets it. What a user would lose: a model on a full disk, or after Ctrl-C, that looks whole and is not.

use crate::world::text;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

fn model() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../weights/tests/fixtures/convert/model.safetensors")
}

fn impasto(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_impasto")).args(args).output().expect("the program starts")
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").file_name());
    entries.map(|name| name.to_string_lossy().into_owned()).collect()
}

#[test]
fn a_model_is_converted_told_of_and_inspected() {
    let folder = TempDir::new().expect("a folder");
    let (model, out) = (model(), folder.path().join("out.gguf"));
    let (model, out) = (model.to_str().expect("plain"), out.to_str().expect("plain"));
    let rules = "no such tensor=q4_0";
    let done = impasto(&["convert", "-m", model, "-o", out, "--type", "Q8_0", "--tensor-type-rules", rules]);
    assert!(done.status.success(), "{}", text(&done.stderr));
    let (said, notes) = (text(&done.stdout), text(&done.stderr));
    for word in ["before", "after", "q8_0", "bf16", "flux", "MB/s"] {
        assert!(said.contains(word), "{word}: {said}");
    }
    assert!(notes.contains("'no such tensor=q4_0' fits no tensor"), "{notes}");
    assert!(notes.contains("f16 in place of q8_0") && notes.contains("double_blocks.0.odd.weight"), "{notes}");

    let again = impasto(&["convert", "-m", model, "-o", out, "--type", "q4_0"]);
    assert_eq!(again.status.code(), Some(1));
    assert!(text(&again.stderr).contains("--force"), "{}", text(&again.stderr));
    let forced = impasto(&["convert", "-m", model, "-o", out, "--type", "q4_0", "--force", "--json"]);
    let line: serde_json::Value = serde_json::from_slice(&forced.stdout).expect("one JSON object");
    assert_eq!((&line["architecture"], &line["after"]["q4_0"]["tensors"]), (&"flux".into(), &3.into()));
    assert_eq!(line["fallbacks"].as_array().map(Vec::len), Some(2));

    let shown: serde_json::Value =
        serde_json::from_slice(&impasto(&["inspect", out, "--json"]).stdout).expect("one JSON object");
    assert_eq!(shown["formats"], serde_json::json!(["GGUF"]));
    assert_eq!((&shown["architecture"], &shown["elements"]["q4_0"]["tensors"]), (&"flux".into(), &3.into()));
    assert_eq!(shown["metadata"]["general.file_type"], "2");
    for (args, problem) in [
        (["--type", "q9"], "q9"),
        (["--type", "f8_e4m3"], "GGUF has no type f8_e4m3"),
        (["--tensor-type-rules", "(=q8_0"], "wrong pattern"),
    ] {
        let bad = impasto(&[&["convert", "-m", model, "-o", out, "--force"], &args[..]].concat());
        assert_eq!(bad.status.code(), Some(2), "{args:?}");
        assert!(text(&bad.stderr).contains(problem), "{}", text(&bad.stderr));
    }
    assert_eq!(names(folder.path()), ["out.gguf"]);
}

#[test]
fn files_of_components_are_merged_under_the_names_of_single_checkpoints() {
    let folder = TempDir::new().expect("a folder");
    let (model, out) = (model(), folder.path().join("out.safetensors"));
    let (model, out) = (model.to_str().expect("plain"), out.to_str().expect("plain"));
    let done = impasto(&["convert", "--diffusion-model", model, "--vae", model, "-o", out, "--type", "bf16"]);
    assert!(done.status.success(), "{}", text(&done.stderr));
    let shown: serde_json::Value =
        serde_json::from_slice(&impasto(&["inspect", out, "--json"]).stdout).expect("one JSON object");
    assert_eq!((&shown["total"]["tensors"], &shown["elements"]["bf16"]["tensors"]), (&22.into(), &22.into()));
    let unused = shown["unused"].as_array().expect("names");
    for name in ["model.diffusion_model.img_in.weight", "vae.img_in.weight"] {
        assert!(unused.contains(&name.into()), "{name}: {unused:?}");
    }
    // What is merged already gets no second prefix.
    let again = folder.path().join("again.safetensors");
    let again = again.to_str().expect("plain");
    let done = impasto(&["convert", "--diffusion-model", out, "-o", again, "--json"]);
    let line: serde_json::Value = serde_json::from_slice(&done.stdout).expect("one JSON object");
    assert_eq!(line["after"]["bf16"]["tensors"], 22);
    let (first, second) = (std::fs::read(out).expect("read"), std::fs::read(again).expect("read"));
    assert!(first == second, "a file that is converted to what it is stays the same");
    for args in [&["-o", again][..], &["-m", model, "--vae", model, "-o", again], &["--vae", model, "-o", again]] {
        assert_eq!(impasto(&[&["convert"], args].concat()).status.code(), Some(2), "{args:?}");
    }
}

#[test]
fn a_lora_and_types_that_nobody_decodes_are_named() {
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join("lora.safetensors");
    let header = r#"{"lora_unet_mid.lora_up.weight":{"dtype":"F16","shape":[2,3],"data_offsets":[0,12]}}"#;
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.bytes().chain([0; 12]));
    std::fs::write(&path, bytes).expect("written");
    let shown = text(&impasto(&["inspect", path.to_str().expect("plain")]).stdout);
    assert!(shown.contains("safetensors: a LoRA"), "{shown}");

    // One tensor of a type that came after this program.
    let path = folder.path().join("new.gguf");
    let mut bytes = b"GGUF\x03\0\0\0\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0".to_vec();
    bytes.extend([&1u64.to_le_bytes()[..], b"w", &1u32.to_le_bytes(), &64u64.to_le_bytes()].concat());
    bytes.extend([&999u32.to_le_bytes()[..], &0u64.to_le_bytes()].concat());
    bytes.resize(bytes.len().next_multiple_of(32) + 32, 0);
    std::fs::write(&path, bytes).expect("written");
    let name = path.to_str().expect("plain");
    let shown = text(&impasto(&["inspect", name]).stdout);
    assert!(shown.contains("cannot be decoded: GGUF type 999"), "{shown}");
    let out = folder.path().join("out.gguf");
    let refused = impasto(&["convert", "-m", name, "-o", out.to_str().expect("plain")]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(text(&refused.stderr).contains("'w' is stored as GGUF type 999"), "{}", text(&refused.stderr));
}

#[cfg(unix)]
#[test]
fn a_full_disk_leaves_nothing() {
    let folder = TempDir::new().expect("a folder");
    let out = folder.path().join("out.gguf");
    std::fs::write(&out, "old").expect("written");
    let (program, model) = (env!("CARGO_BIN_EXE_impasto"), model());
    let command = r#"ulimit -f 8 && exec "$0" convert -m "$1" -o "$2" --type q8_0 --force"#;
    let done = Command::new("sh").args(["-c", command, program]).args([&model, &out]).output().expect("a shell");
    assert_eq!(done.status.code(), Some(1), "{}", text(&done.stderr));
    assert!(text(&done.stderr).contains("cannot be written"), "{}", text(&done.stderr));
    assert_eq!(names(folder.path()), ["out.gguf"]);
    assert_eq!(std::fs::read(&out).expect("it is there"), b"old");
}

#[cfg(unix)]
#[test]
fn ctrl_c_leaves_nothing() {
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join("large.safetensors");
    let (rows, columns) = (16 << 10, 4096);
    let header =
        format!(r#"{{"w":{{"dtype":"F16","shape":[{rows},{columns}],"data_offsets":[0,{}]}}}}"#, rows * columns * 2);
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.bytes());
    // Halves between 0.25 and 4 of both signs, of which scales take time to find.
    bytes.extend((0..rows * columns).flat_map(|i: usize| {
        let hash = (i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48;
        (0x3000 + (hash as u16 & 0x8fff)).to_le_bytes()
    }));
    std::fs::write(&path, bytes).expect("written");
    let out = folder.path().join("out.gguf");
    let mut child = Command::new(env!("CARGO_BIN_EXE_impasto"))
        .args(["convert", "--type", "q3_k", "--threads", "1", "-m"])
        .args([&path, Path::new("-o"), &out])
        .stderr(std::process::Stdio::null())
        .spawn()
        .expect("the program starts");
    while names(folder.path()).len() < 2 && child.try_wait().expect("a child").is_none() {
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    let killed = Command::new("kill").args(["-INT", &child.id().to_string()]).status().expect("kill");
    assert!(killed.success());
    assert_eq!(child.wait().expect("it ends").code(), Some(130));
    assert_eq!(names(folder.path()), ["large.safetensors"]);
}
