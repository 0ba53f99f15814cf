//! Whole runs on two devices, with weights in three homes and in ever less memory. What a user would lose: the same picture wherever modules are
//! placed, and a budget that is kept.
#![cfg(target_os = "linux")]

#[path = "../common/mod.rs"]
mod common;
mod failover;
mod homes;
mod sweep;

use std::sync::Arc;

use common::Small;
use impasto_backend::Backend;
use impasto_backend::cpu::{Cpu, CpuOptions, Precision};
use impasto_backend::vulkan::{Vulkan, VulkanOptions};
use impasto_generate::picture::Picture;
use impasto_generate::place::{Place, Placement};
use impasto_generate::settings::Settings;
use impasto_generate::{Event, GenerateError, Job, generate};
use impasto_model::{Model, ModelPaths};
use impasto_vulkan::{Kind, Loader, Physical};

/// The software device, or the one that `IMPASTO_TEST_DEVICE` names.
fn physical() -> Physical {
    let needs =
        "a Vulkan device is needed: install libvulkan1 and mesa-vulkan-drivers (tools/test.sh does so on Debian)";
    let devices = Loader::open().expect(needs).create_instance().expect(needs).enumerate().expect(needs);
    let wanted = std::env::var("IMPASTO_TEST_DEVICE").ok();
    let found = devices.into_iter().find(|physical| match &wanted {
        Some(label) => physical.describe().label.contains(label),
        None => physical.describe().kind == Kind::Software,
    });
    found.expect(needs)
}

/// That device, in 32-bit floats.
fn vulkan() -> Arc<dyn Backend> {
    let options = VulkanOptions { exact: true, ..VulkanOptions::default() };
    Arc::new(Vulkan::open("vulkan0", &physical(), &options).expect("it opens"))
}

fn cpu() -> Arc<dyn Backend> {
    Arc::new(Cpu::new(&CpuOptions { precision: Precision::F32, ..CpuOptions::default() }).expect("there is a CPU"))
}

fn open(small: &Small) -> (tempfile::TempDir, Model) {
    let folder = tempfile::tempdir().expect("a folder");
    small.write_folder(folder.path());
    let paths = ModelPaths { model: Some(folder.path().into()), ..ModelPaths::default() };
    (folder, Model::open(&paths).unwrap_or_else(|e| panic!("{e}")))
}

fn job(model: &Model) -> Job {
    let mut settings = Settings::default();
    for (name, text) in [("prompt", "a red house"), ("steps", "2"), ("seed", "7"), ("width", "64"), ("height", "64")] {
        settings.set(name, text).expect("a setting");
    }
    Job::new(&settings, model, 0).expect("a job")
}

fn placement(te: &Place, diffusion: &Place, vae: &Place) -> Placement {
    let [te, diffusion, vae] = [te, diffusion, vae].map(Clone::clone);
    Placement::of_each(te, diffusion, vae)
}

fn paint(job: &Job, model: &Model, places: &Placement) -> Result<Picture, GenerateError> {
    let mut made = None;
    generate(job, model, places, &mut |event| {
        if let Event::Picture { picture, .. } = event {
            made = Some(picture.clone());
        }
        Ok(true)
    })?;
    Ok(made.expect("a picture is ready"))
}

fn psnr(a: &Picture, b: &Picture) -> f64 {
    let error: f64 = a.rgb.iter().zip(&b.rgb).map(|(&x, &y)| (f64::from(x) - f64::from(y)).powi(2)).sum();
    10.0 * (255.0 * 255.0 * a.rgb.len() as f64 / error.max(1e-9)).log10()
}
