//! The devices of this machine, found safely, and opened when they are needed.

use std::sync::Arc;

use impasto_backend::cpu::CpuOptions;
use impasto_backend::vulkan::{Vulkan, VulkanOptions};
use impasto_backend::{Backend, BackendError};
use impasto_device::{Api, ApiReport, DeviceInfo, Survey, SurveyOptions, free_memory, survey};
use impasto_generate::place::{Budget, Machine, Use};
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

/// Opens one device: `cpu`, `vulkan0`, ... A driver is tried in a child process before it is opened in this one.
pub fn backend(name: &str, options: &BackendOptions) -> Result<Arc<dyn Backend>, BackendError> {
    let apis = Api::DRIVEN.into_iter().filter(|api| name.starts_with(api.name())).collect();
    let found = survey(&SurveyOptions { apis, asked_for: true, ..crate::survey_options() });
    let how = Use {
        cpu: options.cpu,
        max_vram: Budget::of(name, options.memory),
        max_buffer: Budget::of(name, options.max_buffer),
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
    Machine::new(found.views().cloned().collect(), faults, how, Box::new(free), Box::new(open))
}

/// Opens the device that the survey saw, in this process.
fn open(device: &DeviceInfo, options: &VulkanOptions) -> Result<Arc<dyn Backend>, BackendError> {
    let refuse = |reason: String| BackendError::Unsupported { device: device.name.clone(), reason };
    let physical = find(device).map_err(|e| refuse(e.to_string()))?;
    let physical =
        physical.ok_or_else(|| refuse("the device that was seen a moment ago is not there any more".into()))?;
    Ok(Arc::new(Vulkan::open(&device.name, &physical, options)?))
}

fn find(view: &DeviceInfo) -> Result<Option<Physical>, VulkanError> {
    let devices = Loader::open()?.create_instance()?.enumerate()?;
    let is_it = |physical: &Physical| physical.describe().uuid == view.uuid;
    let at_its_place = devices.get(view.index).filter(|physical| is_it(physical)).cloned();
    Ok(at_its_place.or_else(|| devices.into_iter().find(is_it)))
}
