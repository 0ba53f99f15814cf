//! A run, planned and not made: what it will take where, and how long.

use std::collections::BTreeMap;

use impasto_model::Model;

use crate::autoencoder::Autoencoder;
use crate::conditioning::{Texts, Words};
use crate::denoise::Denoiser;
use crate::module::Module;
use crate::networks::both_fit;
use crate::place::{DevicePeak, Home, ModuleName, ModulePlan, Place, Placement, RunPlan, Rung};
use crate::settings::Preview;
use crate::{GenerateError, Job};

/// Seconds that a module will take at a place.
pub(crate) fn seconds(job: &Job, model: &Model, module: ModuleName, place: &Place) -> Result<f64, GenerateError> {
    let planned = modules(job, model, module, place, &Words::cut(job, model)?)?;
    Ok(planned.iter().map(|(module, runs)| module.report(*runs).seconds).sum())
}

/// The networks of a module, and how often each runs.
fn modules(
    job: &Job,
    model: &Model,
    module: ModuleName,
    place: &Place,
    words: &Words,
) -> Result<Vec<(Module, u64)>, GenerateError> {
    match module {
        ModuleName::Te => Ok(Texts::plan(job, model, place, words)?.into_modules().map(|m| (m, 1)).collect()),
        ModuleName::Diffusion => {
            let denoiser = Denoiser::plan(job, model, place, words, Autoencoder::latent(job, model))?;
            let runs = job.count * job.looks() * denoiser.passes(words);
            Ok(vec![(denoiser.module, runs as u64)])
        }
        _ => {
            let Autoencoder { decoder, encoder, .. } = Autoencoder::plan(job, model, place)?;
            let (how, every) = job.preview;
            let shown = if matches!(how, Preview::Tae | Preview::Vae) { job.steps / every.max(1) } else { 0 };
            let decoded = (job.count * (1 + shown)) as u64;
            Ok(encoder.map(|module| (module, 1)).into_iter().chain([(decoder, decoded)]).collect())
        }
    }
}

/// Plan a run as [`generate`](crate::generate()) will make it. Opens no device, and of the model's files needs headers only.
pub fn plan(job: &Job, model: &Model, places: &Placement) -> Result<RunPlan, GenerateError> {
    let words = Words::cut(job, model)?;
    let mut planned: Vec<(ModuleName, Module, u64)> = vec![];
    let mut rows = vec![];
    let parts =
        [(ModuleName::Te, &places.te), (ModuleName::Diffusion, &places.diffusion), (ModuleName::Vae, &places.vae)];
    for (name, place) in parts {
        match modules(job, model, name, place, &words) {
            Ok(found) => {
                rows.extend(found.iter().map(|(module, runs)| module.report(*runs)));
                planned.extend(found.into_iter().map(|(module, runs)| (name, module, runs)));
            }
            Err(error @ GenerateError::Plan { .. }) => rows.push(refused(name, place, &error)),
            Err(error) => return Err(error),
        }
    }
    let (reasons, notes) = (places.reasons.clone(), places.notes.clone());
    Ok(RunPlan { peaks: peaks(&planned, parts.map(|(_, place)| place)), modules: rows, reasons, notes })
}

/// A module that does not fit, with what would have to change.
fn refused(name: ModuleName, place: &Place, error: &GenerateError) -> ModulePlan {
    let device = place.device.name();
    let instead = if device == "cpu" {
        "a smaller picture".into()
    } else {
        format!("--backend {name}=cpu, or a smaller picture")
    };
    ModulePlan {
        module: name.name(),
        computes_on: device.into(),
        weights_on: String::new(),
        weight_bytes: 0,
        resident_bytes: 0,
        host_bytes: 0,
        arena_bytes: 0,
        largest_buffer: 0,
        buffer_limit: place.device.limits().max_binding,
        rung: Rung::Elsewhere,
        runs: 0,
        flops: 0,
        seconds: 0.0,
        measured: false,
        problem: Some(format!("{error}; try {instead}")),
    }
}

/// The most that each device holds at once, over the phases of the run.
fn peaks(planned: &[(ModuleName, Module, u64)], places: [&Place; 3]) -> Vec<DevicePeak> {
    let of = |wanted: ModuleName| planned.iter().filter(move |(name, ..)| *name == wanted).map(|(_, module, _)| module);
    let (diffusion, mut vae) = (of(ModuleName::Diffusion).next(), of(ModuleName::Vae).collect::<Vec<_>>());
    let decoder = vae.pop();
    let keep = diffusion.zip(decoder).is_some_and(|(a, b)| both_fit(a, b));
    // Who holds what in each phase: on its device, and in host memory.
    let mut phases: Vec<Vec<(&Module, bool)>> =
        of(ModuleName::Te).chain(vae).map(|module| vec![(module, true)]).collect();
    for (working, other) in [(diffusion, decoder), (decoder, diffusion)] {
        phases
            .push(working.map(|module| (module, true)).into_iter().chain(other.map(|module| (module, keep))).collect());
    }
    let mut peaks: BTreeMap<String, u64> = BTreeMap::new();
    for phase in phases {
        let mut held: BTreeMap<String, u64> = BTreeMap::new();
        for (module, loaded) in phase {
            let report = module.report(1);
            if loaded {
                let fixed = module.device().fixed_bytes();
                *held.entry(report.computes_on.clone()).or_insert(fixed) += report.device_bytes();
            }
            if module.home() == Home::Host {
                *held.entry("cpu".into()).or_default() += report.host_bytes;
            }
        }
        for (device, bytes) in held.into_iter().filter(|(_, bytes)| *bytes > 0) {
            let peak = peaks.entry(device).or_default();
            *peak = bytes.max(*peak);
        }
    }
    let limit = |device: &str| {
        let place = places.into_iter().find(|place| place.device.name() == device);
        place.map_or_else(host_memory, |place| place.device.limits().memory)
    };
    peaks.into_iter().map(|(device, bytes)| DevicePeak { limit: limit(&device), device, bytes }).collect()
}

/// Memory of the host that this process may have.
fn host_memory() -> u64 {
    impasto_device::cpu::memory().map_or(u64::MAX, |memory| memory.limit)
}
