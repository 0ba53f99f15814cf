//! Whole runs on two devices, with weights in three homes and in ever less memory. What a user would lose: the same picture wherever modules are
//! placed, and a budget that is kept.
#![cfg(target_os = "linux")]

mod failover;
mod homes;
mod quantised;
mod second_picture;
mod sweep;

use crate::backends::{cpu, found, psnr};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use impasto_backend::Backend;
use impasto_backend::cpu::Precision;
use impasto_generate::picture::Picture;
use impasto_generate::place::{Place, Placement};
use impasto_generate::settings::Settings;
use impasto_generate::{Event, GenerateError, Job, run};
use impasto_model::{Model, ModelPaths, NetworkId};
use impasto_testkit::model::generated::numbers;
use impasto_testkit::model::{Small, write_safetensors};

/// The software device in 32-bit floats.
fn vulkan() -> Arc<dyn Backend> {
    crate::backends::vulkan(Precision::F32)
}

fn open(small: &Small) -> (tempfile::TempDir, Arc<Model>) {
    let folder = tempfile::tempdir().expect("a folder");
    small.write_folder(folder.path());
    let paths = ModelPaths { model: Some(folder.path().into()), ..ModelPaths::default() };
    (folder, Arc::new(Model::open(&paths).unwrap_or_else(|e| panic!("{e}"))))
}

/// A small picture's settings, with these.
fn settings(of: &[(&str, &str)]) -> Settings {
    let mut settings = Settings::default();
    let usual = [("prompt", "a red house"), ("steps", "2"), ("seed", "7"), ("width", "64"), ("height", "64")];
    for (name, text) in usual.iter().chain(of) {
        settings.set(name, text).expect("a setting");
    }
    settings
}

/// Writes a LoRA of this rank for layers of the denoiser: attention, both layers of the MLP, convolutions of either size, and those of the time.
fn write_lora(path: &Path, model: &Model, rank: usize) {
    let network = model.network(NetworkId::Denoiser).expect("it has one");
    let layers = ["to_q", "to_k", "to_v", "to_out.0", "net.0.proj", "net.2", "conv1", "conv_shortcut", "linear_1"];
    let mut tensors = BTreeMap::new();
    for (param, shape) in network.params() {
        let Some(module) = param.strip_suffix(".weight").filter(|m| layers.iter().any(|end| m.ends_with(end))) else {
            continue;
        };
        let up = [vec![shape[0], rank], vec![1; shape.len() - 2]].concat();
        for (end, shape) in [("lora_A", [vec![rank], shape[1..].to_vec()].concat()), ("lora_B", up)] {
            let name = format!("unet.{module}.{end}.weight");
            let elements: usize = shape.iter().product();
            let scale = (elements as f64 / shape[0] as f64).sqrt();
            let numbers = numbers(&name, elements).map(|u| (u / scale) as f32).collect();
            tensors.insert(name, (shape, numbers));
        }
    }
    assert!(tensors.len() > 20, "{}", tensors.len());
    write_safetensors(path, &tensors);
}

/// The settings of a LoRA that is applied at run time.
fn at_runtime(path: &Path, strength: f32) -> [(&'static str, String); 2] {
    [("lora", format!("{}={strength}", path.display())), ("lora-apply-mode", "at_runtime".into())]
}

fn job(model: &Arc<Model>) -> Job {
    Job::new(&settings(&[]), model).expect("a job")
}

fn placement(te: &Place, diffusion: &Place, vae: &Place) -> Placement {
    let [te, diffusion, vae] = [te, diffusion, vae].map(Clone::clone);
    Placement::of_each(te, diffusion, vae)
}

fn paint(job: &Job, places: &Placement) -> Result<Picture, GenerateError> {
    let mut made = None;
    run(job, places, None, &mut |event| {
        if let Event::Picture { picture, .. } = event {
            made = Some(picture.clone());
        }
        Ok(true)
    })?;
    Ok(made.expect("a picture is ready"))
}
