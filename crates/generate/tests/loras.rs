//! LoRAs of every dialect against diffusers, PEFT and torch, on small models of the true structure. What a user would lose: the style or the face that a
//! LoRA gives elsewhere, without a word.
//!
//! `tools/lora_fixtures.py` made the pictures; weights of models and LoRAs come from tensors' names.

mod common;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use common::generated::numbers;
use common::{Small, Tensor, write_safetensors};
use impasto_backend::Backend;
use impasto_backend::cpu::{Cpu, CpuOptions, Precision};
use impasto_generate::picture::Picture;
use impasto_generate::place::Placement;
use impasto_generate::settings::Settings;
use impasto_generate::{Event, GenerateError, Job, run};
use impasto_model::{Model, ModelPaths};
use impasto_weights::Checkpoint;
use serde_json::{Value, json};
use tempfile::TempDir;

fn fixtures(end: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(format!("loras.{end}"))
}

fn cases(of: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(fixtures("json")).expect("the fixture is in the repository");
    let all: Vec<Value> = serde_json::from_str(&text).expect("it is JSON");
    all.into_iter().filter(|case| case["base"] == of).collect()
}

/// The tensors of a case, made from their names.
fn tensors(case: &Value) -> BTreeMap<String, Tensor> {
    let tensor = |(name, spec): (&String, &Value)| {
        let shape: Vec<usize> = serde_json::from_value(spec[0].clone()).expect("a shape");
        let (mean, amplitude) = (spec[1].as_f64().expect("a mean"), spec[2].as_f64().expect("an amplitude"));
        let numbers = numbers(name, shape.iter().product()).map(|u| (mean + amplitude * u) as f32).collect();
        (name.clone(), (shape, numbers))
    };
    case["tensors"].as_object().expect("tensors").iter().map(tensor).collect()
}

/// A file with metadata.
fn write_with_metadata(path: &Path, tensors: &BTreeMap<String, Tensor>, metadata: &Value) {
    write_safetensors(path, tensors);
    let bytes = std::fs::read(path).expect("written");
    let length = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")) as usize;
    let mut header: Value = serde_json::from_slice(&bytes[8..8 + length]).expect("a header");
    header["__metadata__"] = metadata.clone();
    let header = header.to_string();
    let all = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &bytes[8 + length..]].concat();
    std::fs::write(path, all).expect("written");
}

fn settings(of: &[(&str, &str)]) -> Settings {
    let mut settings = Settings::default();
    let usual = [
        ("prompt", "A red house under a yellow sun, by the sea!"),
        ("steps", "6"),
        ("cfg-scale", "7"),
        ("seed", "7"),
        ("rng", "cpu"),
        ("sampling-method", "euler"),
        ("scheduler", "discrete"),
        ("width", "64"),
        ("height", "64"),
    ];
    for (name, text) in usual.iter().chain(of) {
        settings.set(name, text).expect("a setting");
    }
    settings
}

fn paint(model: &Arc<Model>, settings: &Settings) -> Result<Picture, GenerateError> {
    let job = Job::new(settings, model)?;
    let cpu = Cpu::new(&CpuOptions { precision: Precision::F32, ..CpuOptions::default() }).expect("there is a CPU");
    let backend: Arc<dyn Backend> = Arc::new(cpu);
    let mut made = None;
    run(&job, &Placement::on(&backend), None, &mut |event| {
        if let Event::Picture { picture, .. } = event {
            made = Some(picture.clone());
        }
        Ok(true)
    })?;
    Ok(made.expect("a picture is ready"))
}

fn psnr(a: &[u8], b: &[u8]) -> f64 {
    assert_eq!(a.len(), b.len(), "pictures of two sizes");
    let error: f64 = a.iter().zip(b).map(|(&x, &y)| (f64::from(x) - f64::from(y)).powi(2)).sum();
    10.0 * (255.0 * 255.0 * a.len() as f64 / error).log10()
}

fn open(path: &Path) -> Arc<Model> {
    let paths = ModelPaths { model: Some(path.into()), ..ModelPaths::default() };
    Arc::new(Model::open(&paths).unwrap_or_else(|e| panic!("{e}")))
}

fn folder(small: &Small) -> (TempDir, Arc<Model>) {
    let folder = tempfile::tempdir().expect("a folder");
    small.write_folder(folder.path());
    let model = open(folder.path());
    (folder, model)
}

fn compare(base: &str, small: &Small) {
    let (folder, model) = folder(small);
    let pictures = Checkpoint::open(&fixtures("safetensors")).expect("the fixture is in the repository");
    let plain = paint(&model, &settings(&[])).expect("a picture");
    for case in cases(base) {
        let name = case["name"].as_str().expect("a name");
        let file = folder.path().join(format!("{name}.safetensors"));
        write_with_metadata(&file, &tensors(&case), &case["metadata"]);
        let want = pictures.read_all(pictures.tensor(name).expect("a picture")).expect("it is whole");
        let lora = format!("{}={}", file.display(), case["strength"]);
        let settings = settings(&[("lora", &lora)]);
        let job = Job::new(&settings, &model).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(job.notes.is_empty(), "{name}: {:?}", job.notes);
        let found = psnr(&paint(&model, &settings).expect("a picture").rgb, &want);
        println!("{name}: {found:.1} dB, without it {:.1} dB", psnr(&plain.rgb, &want));
        assert!(found >= 50.0 && psnr(&plain.rgb, &want) < 30.0, "{name}: {found:.1} dB, 50 are needed");
    }
}

#[test]
fn every_dialect_on_stable_diffusion_1() {
    compare("sd1", &Small::sd1());
}

#[test]
fn every_dialect_on_stable_diffusion_xl() {
    compare("xl", &Small::sdxl());
}
