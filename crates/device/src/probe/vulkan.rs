//! Vulkan, in the child.

use std::ffi::OsStr;
use std::time::Duration;

use impasto_vulkan::{Description, Instance, Loader, PhysicalDevice, VulkanDevice, VulkanError};
use serde::{Deserialize, Serialize};

use super::{TargetDevice, clean_label, kernel};
use crate::{TrialReport, sys};

/// A device as the child reports it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct VulkanRecord {
    pub index: usize,
    pub description: Description,
}

/// What the driver may report in all; more is a driver that lies.
const MAX_REPORTED: usize = 1024;

/// The only driver that is loaded in a child.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AloneDriver {
    pub library: String,
    /// How long the process stays after its devices are listed, since a thread of the driver may crash later.
    pub idle: Duration,
}

impl AloneDriver {
    pub fn to_argument(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// Lists the devices. With an argument its library is opened first for itself: a crash in its initialisers is told from one in
/// create-instance, and a library that is missing is named.
pub(crate) fn enumerate(report: &mut TrialReport) -> Result<(), String> {
    let alone = serde_json::from_str::<AloneDriver>(report.argument()).ok();
    if let Some(driver) = &alone {
        report.stage("load-driver");
        if let Err(error) = sys::open_library(OsStr::new(&driver.library)) {
            return Err(report.could_not_load(error));
        }
    }
    let instance = open(report)?;
    report.stage("enumerate");
    let devices = instance.enumerate().map_err(|error| error.to_string())?;
    report.stage("get-properties");
    for (index, physical) in devices.iter().enumerate().take(MAX_REPORTED) {
        report.record(&VulkanRecord { index, description: physical.describe() });
    }
    if let Some(idle) = alone.map(|driver| driver.idle).filter(|idle| !idle.is_zero()) {
        report.stage("idle");
        std::thread::sleep(idle);
    }
    leave(report)
}

/// Creates the device, allocates, runs a kernel and compares the result.
pub(crate) fn try_device(report: &mut TrialReport) -> Result<(), String> {
    let target = TargetDevice::from_argument(report.argument())?;
    let physical = find(report, &target)?;
    run_kernel(report, &physical).map_err(|error| error.to_string())??;
    leave(report)
}

/// Reports the free memory.
pub(crate) fn memory(report: &mut TrialReport) -> Result<(), String> {
    let target = TargetDevice::from_argument(report.argument())?;
    let physical = find(report, &target)?;
    report.record(&physical.free_memory());
    leave(report)
}

/// A driver's farewell can crash as well as its welcome, and it takes time that nobody needs: what was to be found out is found
/// out, and the end of the process frees everything.
fn leave(report: &mut TrialReport) -> Result<(), String> {
    report.leave_at_once();
    Ok(())
}

fn open(report: &mut TrialReport) -> Result<Instance, String> {
    report.stage("load");
    let loader = match Loader::open() {
        Ok(loader) => loader,
        Err(error) => return Err(report.could_not_load(error.to_string())),
    };
    report.stage("create-instance");
    let instance = loader.create_instance().map_err(|error| error.to_string())?;
    // Never dropped: see `leave`.
    std::mem::forget(instance.clone());
    Ok(instance)
}

fn find(report: &mut TrialReport, target: &TargetDevice) -> Result<PhysicalDevice, String> {
    let instance = open(report)?;
    report.stage("enumerate");
    let devices = instance.enumerate().map_err(|error| error.to_string())?;
    report.stage("get-properties");
    let is_it = |physical: &&PhysicalDevice| {
        let description = physical.describe();
        clean_label(&description.label) == target.label && description.uuid == target.uuid
    };
    let at_its_place = devices.get(target.index).filter(is_it);
    let found = at_its_place.or_else(|| devices.iter().find(is_it)).cloned();
    found.ok_or_else(|| "the device that was seen a moment ago is not there any more".into())
}

fn run_kernel(report: &mut TrialReport, physical: &PhysicalDevice) -> Result<Result<(), String>, VulkanError> {
    report.stage("create-device");
    let device = VulkanDevice::open(physical)?;
    report.stage("allocate");
    let input = kernel::input();
    let bytes = u64::from(kernel::COUNT) * 4;
    let source = device.buffer(bytes)?;
    source.write(&input.iter().flat_map(|number| number.to_ne_bytes()).collect::<Vec<_>>())?;
    let result = device.buffer(bytes)?;
    // What the kernel does not write must not look right by chance.
    result.write(&vec![0xA5; bytes as usize])?;
    report.stage("build-kernel");
    let words = match kernel::spirv() {
        Ok(words) => words,
        Err(error) => return Ok(Err(error)),
    };
    #[allow(unsafe_code)]
    // SAFETY: the module is ours, with two buffers, and each thread touches its own number in them.
    let pipeline = unsafe { device.pipeline(&words, &kernel::INTERFACE) }?;
    report.stage("dispatch");
    device.run(&pipeline, &[&source, &result], &[], [kernel::COUNT / kernel::GROUP, 1, 1])?;
    report.stage("compare");
    let mut bytes = vec![0; bytes as usize];
    result.read(&mut bytes)?;
    let output: Vec<u32> =
        bytes.chunks_exact(4).map(|four| u32::from_ne_bytes([four[0], four[1], four[2], four[3]])).collect();
    std::mem::forget((source, result, pipeline, device));
    Ok(kernel::compare(&input, &output))
}
