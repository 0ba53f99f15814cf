//! The Vulkan backend: what [`gpu`](crate::gpu) leaves to an API.
//!
//! `profile` tells planning what a device has, `memory` is its memory, `lists` are the recorded commands of a plan, `pipelines` its compiled
//! kernels. `units` makes sure that matrix units compute what they should.

mod bench;
mod lists;
mod memory;
mod pipelines;
mod profile;
mod units;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};

use impasto_device::{DeviceInfo, DeviceKind};
use impasto_graph::Capabilities;
use impasto_vulkan::{Loader, PhysicalDevice, VulkanDevice, VulkanError};

use crate::gpu::kernels::matrices::Units;
use crate::gpu::{Gpu, GpuProfile, GpuStep, Residence, Spaces};
use crate::{Backend, BackendError, DeviceOptions, Meter, Profile, Pulse, StepTime};
use lists::Lists;
use memory::{Stage, VulkanMemory};
use pipelines::Pipelines;

/// [`crate::profile`] of a Vulkan device.
pub(crate) fn profile(device: &DeviceInfo, options: &DeviceOptions) -> Result<Arc<dyn Profile>, BackendError> {
    Ok(Arc::new(profile::profile(device, options)?))
}

/// [`crate::open`] of a Vulkan device.
pub(crate) fn open(device: &DeviceInfo, options: &DeviceOptions) -> Result<Arc<dyn Backend>, BackendError> {
    let refuse = |reason: String| BackendError::Unsupported { device: device.name.clone(), reason };
    let physical = find(device).map_err(|e| refuse(e.to_string()))?;
    let gone = || refuse("the device that was seen a moment ago is not there any more".into());
    Ok(Arc::new(Vulkan::open(device, &physical.ok_or_else(gone)?, options)?))
}

/// The device that a survey has found: by its UUID, at its place in the loader's order or elsewhere in it.
fn find(device: &DeviceInfo) -> Result<Option<PhysicalDevice>, VulkanError> {
    let devices = Loader::open()?.create_instance()?.enumerate()?;
    let is_it = |physical: &PhysicalDevice| physical.describe().uuid == device.uuid;
    let at_its_place = devices.get(device.index).filter(|physical| is_it(physical)).cloned();
    Ok(at_its_place.or_else(|| devices.into_iter().find(is_it)))
}

/// The devices of the loader as their drivers describe them, without a trial: for tests, since a driver can crash here.
pub fn untried() -> Result<Vec<DeviceInfo>, BackendError> {
    let failed = |e: VulkanError| BackendError::Unsupported { device: "vulkan".into(), reason: e.to_string() };
    let devices = Loader::open().and_then(|loader| loader.create_instance()?.enumerate()).map_err(failed)?;
    Ok(devices
        .iter()
        .enumerate()
        .map(|(index, physical)| impasto_device::vulkan_info(index, physical.describe()))
        .collect())
}

/// A Vulkan device. Cheap to clone; clones are the same device.
#[derive(Clone)]
pub(crate) struct Vulkan(Arc<Inner>);

struct Inner {
    profile: Arc<GpuProfile>,
    device: VulkanDevice,
    pipelines: Pipelines,
    /// By which the host reaches memory that it does not see; one thread at a time.
    stage: Arc<Mutex<Option<Stage>>>,
    cache: Option<PathBuf>,
    pulse: Pulse,
    /// As in [`DeviceOptions`].
    as_if_discrete: bool,
    /// As in [`Pipelines`].
    lazy: bool,
    /// The same device in 32-bit floats, made when it is first needed.
    exact: OnceLock<Option<Vulkan>>,
}

impl Vulkan {
    /// Opens a device under the name that it was found by.
    fn open(found: &DeviceInfo, physical: &PhysicalDevice, options: &DeviceOptions) -> Result<Vulkan, BackendError> {
        let name = &found.name;
        // What the driver says now, not what it said when the device was found: whoever planned with that compares.
        let said = impasto_device::vulkan_info(found.index, physical.describe());
        let profile = profile::profile(&DeviceInfo { name: name.clone(), ..said }, options)?;
        let device = VulkanDevice::open(physical).map_err(|e| failed(name, 0, e))?;
        let budget = profile.limits().memory;
        // Software rasterisers compile a kernel when it first runs.
        let lazy = found.kind == DeviceKind::Software;
        let made = |profile: GpuProfile| {
            let profile = Arc::new(profile);
            let pulse = options.pulse.clone();
            let cache = options.kernel_cache();
            let pipelines = Pipelines::new(device.clone(), &profile, cache, pulse.clone(), lazy);
            Vulkan(Arc::new(Inner {
                profile,
                device: device.clone(),
                pipelines,
                stage: Arc::default(),
                cache: cache.map(Path::to_owned),
                pulse,
                as_if_discrete: options.as_if_discrete,
                lazy,
                exact: OnceLock::new(),
            }))
        };
        let claimed = made(profile);
        // Some drivers claim matrices that compute something else.
        let believed = claimed.units().is_none() || units::hold(&claimed)?;
        let vulkan = if believed { claimed } else { made(GpuProfile::clone(claimed.gpu_profile()).without_units()) };
        device.meter().set_budget(budget);
        // Only now: what it does to be opened does not fail on purpose.
        #[cfg(feature = "faults")]
        device.set_name(name);
        Ok(vulkan)
    }

    /// The matrix units that kernels use, if the device has some that compute what they should.
    fn units(&self) -> Option<Units> {
        self.gpu_profile().units()
    }

    fn name(&self) -> &str {
        &self.gpu_profile().name
    }

    fn pulse(&self) -> &Pulse {
        &self.0.pulse
    }

    fn device(&self) -> &VulkanDevice {
        &self.0.device
    }

    fn failed(&self, bytes: u64, error: VulkanError) -> BackendError {
        failed(self.name(), bytes, error)
    }

    /// The same of work that was handed over: whatever a driver answers then but that memory is gone, it is not one to go on with.
    fn died(&self, error: VulkanError) -> BackendError {
        match self.failed(0, error) {
            BackendError::Unsupported { device, reason } => BackendError::Lost { device, reason },
            other => other,
        }
    }
}

fn failed(device: &str, bytes: u64, error: VulkanError) -> BackendError {
    let device = device.to_owned();
    match error {
        e if e.is_exhausted() => BackendError::Exhausted { device, bytes },
        e if e.is_lost() => BackendError::Lost { device, reason: e.to_string() },
        e => BackendError::Unsupported { device, reason: e.to_string() },
    }
}

impl Gpu for Vulkan {
    type Memory = VulkanMemory;
    type Commands = Lists;

    fn gpu_profile(&self) -> &Arc<GpuProfile> {
        &self.0.profile
    }

    fn device_meter(&self) -> &Meter {
        self.device().meter()
    }

    fn measure_peak(&self) -> Result<f64, BackendError> {
        bench::peak_gflops(self)
    }

    fn exact(&self) -> Option<Vulkan> {
        let Inner { profile, device, stage, cache, pulse, exact, as_if_discrete, lazy, .. } = &*self.0;
        let make = || {
            let profile = GpuProfile::clone(profile).exactly()?;
            let pipelines = Pipelines::new(device.clone(), &profile, cache.as_deref(), pulse.clone(), *lazy);
            Some(Vulkan(Arc::new(Inner {
                profile: Arc::new(profile),
                device: device.clone(),
                pipelines,
                stage: stage.clone(),
                cache: cache.clone(),
                pulse: pulse.clone(),
                as_if_discrete: *as_if_discrete,
                lazy: *lazy,
                exact: OnceLock::new(),
            })))
        };
        exact.get_or_init(make).clone()
    }

    fn allocate(&self, home: Residence, lengths: impl Iterator<Item = u64>) -> Result<VulkanMemory, BackendError> {
        VulkanMemory::new(self, home, lengths)
    }

    fn record(
        &self,
        steps: Vec<GpuStep>,
        cuts: &[usize],
        spaces: &Spaces<VulkanMemory>,
    ) -> Result<Lists, BackendError> {
        Lists::new(self, steps, cuts, spaces)
    }

    fn submit(&self, commands: &mut Lists, segment: usize) -> Result<(), BackendError> {
        commands.run(self, segment)
    }

    fn note_times(&self, commands: &Lists, times: &mut [StepTime]) -> Result<(), BackendError> {
        commands.note(self, times)
    }
}
