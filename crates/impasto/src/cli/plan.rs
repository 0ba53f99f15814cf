//! `impasto plan`: what a run would do, said before it is done.

use std::collections::BTreeMap;
use std::process::ExitCode;

use impasto::device::context_memory;
use impasto::generate::place::{DevicePeak, Machine, ModulePlan, RunPlan};
use impasto::generate::settings::Settings;
use impasto::generate::{self, Job};
use impasto::{Engine, EngineOptions};

use super::paint;
use super::show::{self, bytes, rows};

/// Plan a run as `generate` would make it, here or on the devices that are described.
pub fn plan(settings: &Settings, devices: &[String]) -> anyhow::Result<ExitCode> {
    // What the prompt says hardly matters to memory: it may be left out.
    let settings = &Settings { prompt: settings.prompt.clone().or(Some(String::new())), ..settings.clone() };
    let engine = match devices {
        [] => paint::engine(settings, None)?,
        devices => Engine::on(impasto::imagined_machine(EngineOptions::new(settings)?, devices)?),
    };
    let job = Job::new(settings, &impasto::open_model(&engine, settings)?)?;
    engine.device_notes()?.iter().for_each(|line| eprintln!("{line}"));
    let places = engine.place(&job)?;
    paint::explain(settings, &places);
    let planned = generate::plan(&job, &places)?;
    match settings.json {
        Some(true) => show::json(&planned),
        _ => table(&planned, &job, &contexts(&planned, engine.machine()?)),
    }
    Ok(if planned.fits() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What contexts of the devices that a plan uses take, by peak.
fn contexts(plan: &RunPlan, machine: &Machine) -> BTreeMap<String, u64> {
    // Only who has said how much is free is here to be asked.
    let here = plan.peaks.iter().filter(|peak| peak.driver > 0);
    let of = |peak: &DevicePeak| {
        let devices = machine.devices().iter().filter(|device| peak.device.split(", ").any(|name| name == device.name));
        let taken = devices.filter_map(|device| context_memory(device, &impasto::survey_options())).sum();
        (peak.device.clone(), taken)
    };
    here.map(of).filter(|(_, taken)| *taken > 0).collect()
}

fn table(plan: &RunPlan, job: &Job, contexts: &BTreeMap<String, u64>) {
    let pictures = if job.count == 1 { "1 picture".into() } else { format!("{} pictures", job.count) };
    show::line(format_args!("{}x{}, {} steps, {pictures}", job.width, job.height, job.steps));
    let head = ["module", "computes on", "weights on", "weights", "arena", "largest buffer / limit", "split", "time"];
    let mut lines = vec![head.map(str::to_owned)];
    lines.extend(plan.modules.iter().map(row));
    rows(&lines);
    for peak in &plan.peaks {
        let over = if peak.bytes > peak.limit { ": too much" } else { "" };
        let own = match peak.process {
            0 => String::new(),
            process => format!(", {} of them the program itself", bytes(process)),
        };
        let beside = match (peak.driver, contexts.get(&peak.device)) {
            (0, _) => String::new(),
            (driver, None) => format!(", {} left to the driver", bytes(driver)),
            (driver, Some(context)) => {
                format!(", {} left to the driver beside its context of {}", bytes(driver), bytes(*context))
            }
        };
        let (peak, limit, device) = (bytes(peak.bytes), bytes(peak.limit), &peak.device);
        show::line(format_args!("peak on {device}: {peak} of {limit}{own}{beside}{over}"));
    }
    let measured = plan.modules.iter().all(|module| module.measured);
    let how = if measured { "by the rates of earlier runs" } else { "estimated, until runs have measured the devices" };
    show::line(format_args!("{:.1} s in all, {how}", plan.seconds()));
    for module in plan.modules.iter().filter(|module| module.widened > 0) {
        show::line(format_args!(
            "note: {}: {:.1} million quantised weights are kept as numbers: kernels over several pixels, and rows of no whole blocks",
            module.module,
            module.widened as f64 / 1e6
        ));
    }
    for module in plan.modules.iter().filter(|module| module.lora_bytes > 0) {
        let (name, count) = (&module.module, bytes(module.lora_bytes));
        show::line(format_args!("{name}: {count} of its weights are LoRAs, applied at run time"));
    }
    for module in &plan.modules {
        if let Some(problem) = &module.problem {
            show::line(format_args!("{} does not fit: {problem}", module.module));
        }
    }
}

/// The types of weights, where they are not one of the usual floats.
fn types(module: &ModulePlan) -> String {
    let usual = ["f32", "f16", "bf16"];
    match module.weight_types.iter().all(|name| usual.contains(name)) {
        true => String::new(),
        false => format!(" {}", module.weight_types[..module.weight_types.len().min(3)].join("+")),
    }
}

fn row(module: &ModulePlan) -> [String; 8] {
    let about = if module.measured { "" } else { "~" };
    let none = module.problem.is_some();
    let size = |count: u64| if none { "-".to_owned() } else { bytes(count) };
    [
        module.module.into(),
        module.computes_on.clone(),
        if none { "-".into() } else { module.weights_on.clone() },
        match (module.streamed_bytes, types(module)) {
            (0, types) => size(module.weight_bytes) + &types,
            (_, types) => format!("{}{types}, {} at once", size(module.weight_bytes), size(module.resident_bytes)),
        },
        size(module.arena_bytes),
        format!("{} / {}", size(module.largest_buffer), bytes(module.buffer_limit)),
        if none { "none".into() } else { module.split_mode.to_string() },
        if none { "-".into() } else { format!("{about}{:.1} s", module.seconds) },
    ]
}
