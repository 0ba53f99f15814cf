//! A run, planned and not made: what it will take where, and how long.

use impasto_model::Model;

use crate::autoencoder::Autoencoder;
use crate::conditioning::{Lengths, encoders};
use crate::denoise::Denoiser;
use crate::module::Module;
use crate::phases::Phases;
use crate::place::{ModuleName, ModulePlan, Place, Placement, RunPlan, SplitMode};
use crate::settings::Preview;
use crate::{GenerateError, Job};

/// Seconds that a module will take at a place.
pub(crate) fn seconds(job: &Job, model: &Model, module: ModuleName, place: &Place) -> Result<f64, GenerateError> {
    let planned = modules(job, model, module, place, &Lengths::of(job, model)?)?;
    Ok(planned.iter().map(|(module, runs)| module.report(*runs).seconds).sum())
}

/// The networks of a module, and how often each runs.
fn modules(
    job: &Job,
    model: &Model,
    module: ModuleName,
    place: &Place,
    lengths: &Lengths,
) -> Result<Vec<(Module, u64)>, GenerateError> {
    match module {
        ModuleName::Te => Ok(encoders(job, model, place, lengths)?.into_iter().map(|module| (module, 1)).collect()),
        ModuleName::Diffusion => {
            let denoiser = Denoiser::plan(job, model, place, lengths)?;
            let runs = job.count * job.looks() * denoiser.passes(lengths);
            Ok(vec![(denoiser.module, runs as u64)])
        }
        _ => {
            let Autoencoder { decoder, encoder, .. } = Autoencoder::plan(job, model, place, job.start.is_some())?;
            let (how, every) = job.preview;
            let shown = if matches!(how, Preview::Tae | Preview::Vae) { job.steps / every.max(1) } else { 0 };
            let decoded = (job.count * (1 + shown)) as u64;
            Ok(encoder.map(|module| (module, 1)).into_iter().chain([(decoder, decoded)]).collect())
        }
    }
}

/// Plans a job as [`run`](crate::run()) will make it. Opens no device, and of the model's files needs headers only.
pub fn plan(job: &Job, places: &Placement) -> Result<RunPlan, GenerateError> {
    let model = &*job.model;
    let lengths = Lengths::of(job, model)?;
    let mut rows = vec![];
    let mut planned = |name: ModuleName, place: &Place| match modules(job, model, name, place, &lengths) {
        Ok(found) => {
            rows.extend(found.iter().map(|(module, runs)| module.report(*runs)));
            Ok(found.into_iter().map(|(module, _)| module).collect::<Vec<_>>())
        }
        Err(error @ GenerateError::Plan { .. }) => {
            rows.push(refused(name, place, &error));
            Ok(vec![])
        }
        Err(error) => Err(error),
    };
    let texts = planned(ModuleName::Te, &places.te)?;
    let diffusion = planned(ModuleName::Diffusion, &places.diffusion)?;
    let mut vae = planned(ModuleName::Vae, &places.vae)?;
    let decoder = vae.pop();
    let before = texts.iter().chain(&vae).collect();
    let phases = Phases { before, diffusion: diffusion.first(), decoder: decoder.as_ref() };
    let (reasons, notes) = (places.reasons.clone(), places.notes.clone());
    Ok(RunPlan { peaks: phases.peaks(places), modules: rows, reasons, notes })
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
        weight_types: vec![],
        widened: 0,
        weight_bytes: 0,
        lora_bytes: 0,
        resident_bytes: 0,
        streamed_bytes: 0,
        host_bytes: 0,
        arena_bytes: 0,
        largest_buffer: 0,
        buffer_limit: place.device.limits().max_binding,
        split_mode: SplitMode::Elsewhere,
        runs: 0,
        flops: 0,
        kernels: 0,
        seconds: 0.0,
        measured: false,
        problem: Some(format!("{error}; try {instead}")),
    }
}
