//! The devices of this machine, found safely, and opened when they are needed.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use impasto_backend::cpu::CpuOptions;
use impasto_backend::vulkan::{VulkanOptions, VulkanProfile};
use impasto_backend::{Backend, BackendError, Profile};
use impasto_device::{Api, ApiReport, DeviceInfo, Survey, SurveyOptions, UseGuard, free_memory, survey};
use impasto_generate::place::{Budget, Machine, Use};
use impasto_generate::settings::Isolate;
use impasto_worker::{Log, Remote, WorkerOptions, open_here};

/// How a device is to be used.
#[derive(Clone, Copy, Debug, Default)]
pub struct BackendOptions {
    /// The CPU, and what products are computed in everywhere.
    pub cpu: CpuOptions,
    /// Memory that plans may use; by default what the device has.
    pub memory: Option<u64>,
    /// The largest single piece of memory; by default what the device allows.
    pub max_buffer: Option<u64>,
    /// Whether a GPU is opened in a process of its own, so that its driver cannot take this one along.
    pub isolate: Isolate,
}

/// Opens one device: `cpu`, `vulkan0`, ... A driver is tried in a child process before it is opened.
pub fn backend(name: &str, options: &BackendOptions) -> Result<Arc<dyn Backend>, BackendError> {
    let apis = Api::DRIVEN.into_iter().filter(|api| name.starts_with(api.name())).collect();
    let found = survey(&SurveyOptions { apis, asked_for: true, ..crate::survey_options() });
    let how = Use {
        cpu: options.cpu,
        max_vram: Budget::of(name, options.memory),
        max_buffer: Budget::of(name, options.max_buffer),
        isolate: options.isolate,
        asked_for: true,
        ..Use::default()
    };
    let machine = machine(&found, how);
    let unsupported = |reason: String| BackendError::Unsupported { device: name.into(), reason };
    let Some(device) = machine.devices().iter().find(|device| device.name == name) else {
        let there: Vec<&str> = found.views().map(|view| view.name.as_str()).collect();
        let why = match found.apis.first().and_then(ApiReport::fault) {
            Some(fault) => fault.in_short(),
            None => "`impasto devices` says more".to_owned(),
        };
        return Err(unsupported(format!("there is no such device, only {} ({why})", there.join(", "))));
    };
    machine.profile(device).map_err(unsupported)?;
    machine.pool().get(name)
}

/// The devices that a survey has found. None is opened yet.
pub fn machine(found: &Survey, how: Use) -> Machine {
    let faults = found.apis.iter().filter_map(|api| Some((api.api, api.fault()?.in_short()))).collect();
    let free = |device: &DeviceInfo| free_memory(device, &crate::survey_options());
    let used = how.clone();
    let open = move |device: &DeviceInfo, options: &VulkanOptions| match used.is_isolated() {
        true => {
            Ok(Arc::new(Remote::open(device, options, worker_options(device, options, &used))?) as Arc<dyn Backend>)
        }
        false => Ok(Arc::new(open_here(device, options)?) as Arc<dyn Backend>),
    };
    Machine::new(found.views().cloned().collect(), faults, how, Box::new(free), Box::new(open))
}

fn worker_options(device: &DeviceInfo, options: &VulkanOptions, how: &Use) -> WorkerOptions {
    let survey = SurveyOptions { asked_for: how.asked_for, ..crate::survey_options() };
    // For tests and for very slow machines: how long a worker may do nothing at least.
    let patience = std::env::var("IMPASTO_WORKER_PATIENCE").ok().and_then(|text| text.parse().ok());
    let patience = patience.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    // Rates are noted under what a device says of itself.
    let profile = |features| VulkanProfile::new(&device.name, &device.label, device.limits, features, options).ok();
    let about = device.vulkan.as_ref().and_then(profile).map_or_else(|| device.label.clone(), |known| known.about());
    let flops = how.rates.rates(&about, device).flops;
    // Nobody may be there to read it.
    let log: Arc<Log> = Arc::new(|line: &str| drop(writeln!(std::io::stderr(), "{line}")));
    WorkerOptions {
        log: how.verbose.then_some(log),
        patience,
        flops: Some(flops),
        guard: Some(UseGuard::new(device, &survey)),
        stop: how.stop.clone(),
        ..WorkerOptions::default()
    }
}
