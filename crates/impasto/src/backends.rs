//! A device to compute on, by its name.

use std::sync::Arc;

use impasto_backend::cpu::{Cpu, CpuOptions, Precision};
use impasto_backend::vulkan::{Vulkan, VulkanOptions};
use impasto_backend::{Backend, BackendError};
use impasto_device::{Api, ApiReport, DeviceInfo, SurveyOptions, survey};
use impasto_vulkan::{Loader, Physical, VulkanError};

/// How a device is to be used.
#[derive(Clone, Copy, Debug, Default)]
pub struct BackendOptions {
    /// The CPU, and what products are computed in everywhere.
    pub cpu: CpuOptions,
    /// Memory that plans may use; by default what the device has.
    pub memory: Option<u64>,
    /// The largest single piece of memory; by default what the device allows.
    pub max_buffer: Option<u64>,
}

/// Opens a device: `cpu`, `vulkan0`, ... A driver is tried in a child process before it is opened in this one.
pub fn backend(name: &str, options: &BackendOptions) -> Result<Arc<dyn Backend>, BackendError> {
    match name.trim_end_matches(|c: char| c.is_ascii_digit()) {
        "cpu" if name == "cpu" => {
            let memory = options.memory.or(options.cpu.memory);
            Ok(Arc::new(Cpu::new(&CpuOptions { memory, ..options.cpu })?))
        }
        "vulkan" if name != "vulkan" => vulkan(name, options),
        _ => Err(BackendError::Setting(format!(
            "'{name}' is no device that this build computes on; there are cpu and the Vulkan devices that `impasto devices` lists, \
             such as vulkan0"
        ))),
    }
}

fn vulkan(name: &str, options: &BackendOptions) -> Result<Arc<dyn Backend>, BackendError> {
    let refuse = |reason: String| BackendError::Unsupported { device: name.to_owned(), reason };
    let asked = SurveyOptions { apis: vec![Api::Vulkan], asked_for: true, ..crate::survey_options() };
    let found = survey(&asked);
    let Some(view) = found.find(name) else {
        let there: Vec<&str> = found.views().map(|view| view.name.as_str()).collect();
        let why = match found.apis.first().and_then(ApiReport::fault) {
            Some(fault) => format!("Vulkan {}", fault.in_short()),
            None => "`impasto devices` says more".to_owned(),
        };
        return Err(refuse(format!("there is no such device, only {} ({why})", there.join(", "))));
    };
    if !view.is_healthy() {
        return Err(refuse(format!("it failed its trial: {:?}; `impasto devices` says more", view.standing)));
    }
    if view.manifest.is_some() {
        let variables = view.environment().into_iter().filter_map(|(name, value)| Some((name, value?)));
        let line: Vec<String> =
            variables.map(|(name, value)| format!("{}={}", name.to_string_lossy(), value.to_string_lossy())).collect();
        return Err(refuse(format!(
            "another driver on this machine is broken, and this process would load it too; set {} and run again",
            line.join(" ")
        )));
    }
    if options.cpu.precision == Precision::Bf16 {
        return Err(refuse("it computes in f16 or f32, not in bf16; use --type auto or --type f32".to_owned()));
    }
    let physical = open(view).map_err(|e| refuse(e.to_string()))?;
    let physical =
        physical.ok_or_else(|| refuse("the device that was seen a moment ago is not there any more".to_owned()))?;
    let options = VulkanOptions {
        exact: options.cpu.precision == Precision::F32,
        memory: options.memory,
        max_buffer: options.max_buffer,
        cache: impasto_store::user_folder().map(|folder| folder.join("kernels")),
    };
    Ok(Arc::new(Vulkan::open(name, &physical, &options)?))
}

/// The device that the survey saw, in this process.
fn open(view: &DeviceInfo) -> Result<Option<Physical>, VulkanError> {
    let devices = Loader::open()?.create_instance()?.enumerate()?;
    let is_it = |physical: &Physical| physical.describe().uuid == view.uuid;
    let at_its_place = devices.get(view.index).filter(|physical| is_it(physical)).cloned();
    Ok(at_its_place.or_else(|| devices.into_iter().find(is_it)))
}
