//! The CUDA backend: what [`gpu`](crate::gpu) leaves to an API.
//!
//! `profile` tells planning what a device has, `memory` is its memory, `lists` are the recorded commands of a plan as graphs, `pipelines` its compiled
//! kernels, which `helpers` in other processes compile. `units` makes sure that matrix units compute what they should.

mod bench;
mod helpers;
mod lists;
mod memory;
mod pipelines;
mod profile;
mod units;

use std::sync::{Arc, Mutex, OnceLock};

use impasto_cuda::{CudaDevice, CudaDriver, CudaError, CudaStream};
use impasto_device::DeviceInfo;
use impasto_graph::Capabilities;

use crate::gpu::kernels::matrices::Units;
use crate::gpu::{Gpu, GpuProfile, GpuStep, Residence, Spaces};
use crate::{Backend, BackendError, DeviceOptions, Meter, Profile, Pulse, StepTime};
pub use helpers::TRIAL;
use lists::Lists;
use memory::{CudaMemory, Stage};
use pipelines::Pipelines;

#[cfg(test)]
pub(crate) use profile::profile as gpu_profile;

/// [`crate::profile`] of a CUDA device.
pub(crate) fn profile(device: &DeviceInfo, options: &DeviceOptions) -> Result<Arc<dyn Profile>, BackendError> {
    Ok(Arc::new(profile::profile(device, options)?))
}

/// [`crate::driver_memory`] of a CUDA device: modules, graphs, and local memory of kernels.
pub(crate) fn driver_memory(memory: u64) -> u64 {
    (memory / 32).clamp(64 << 20, 512 << 20)
}

/// [`crate::open`] of a CUDA device.
pub(crate) fn open(device: &DeviceInfo, options: &DeviceOptions) -> Result<Arc<dyn Backend>, BackendError> {
    let refuse = |reason: String| BackendError::Unsupported { device: device.name.clone(), reason };
    let (driver, found) = find(device).map_err(|e| refuse(e.to_string()))?;
    let gone = || refuse("the device that was seen a moment ago is not there any more".into());
    Ok(Arc::new(Cuda::open(&driver, &found.ok_or_else(gone)?, device, options)?))
}

fn start() -> Result<CudaDriver, CudaError> {
    let driver = CudaDriver::open()?;
    driver.init()?;
    driver.check()?;
    Ok(driver)
}

/// The device that a survey has found, as the driver describes it now: by its UUID, at its place in the driver's order or elsewhere in it.
fn find(device: &DeviceInfo) -> Result<(CudaDriver, Option<DeviceInfo>), CudaError> {
    let driver = start()?;
    let count = driver.count()?;
    let said = |index: usize| driver.describe(index).map(|said| impasto_device::cuda_info(index, said));
    let is_it = |other: &DeviceInfo| other.uuid == device.uuid && other.label == device.label;
    let mut order: Vec<usize> = (0..count).collect();
    order.sort_by_key(|index| *index != device.index);
    for index in order {
        let other = said(index)?;
        if is_it(&other) {
            return Ok((driver, Some(other)));
        }
    }
    Ok((driver, None))
}

/// The devices of the driver as it describes them, without a trial: for tests, since a driver can crash here.
pub fn untried() -> Result<Vec<DeviceInfo>, BackendError> {
    let all = || -> Result<Vec<DeviceInfo>, CudaError> {
        let driver = start()?;
        (0..driver.count()?).map(|index| Ok(impasto_device::cuda_info(index, driver.describe(index)?))).collect()
    };
    all().map_err(|e| BackendError::Unsupported { device: "cuda".into(), reason: e.to_string() })
}

/// A CUDA device. Cheap to clone; clones are the same device.
#[derive(Clone)]
pub(crate) struct Cuda(Arc<Inner>);

/// Queues of work: kernels, and copies beside them.
pub(super) struct Streams {
    pub(super) compute: CudaStream,
    pub(super) copy: CudaStream,
}

struct Inner {
    profile: Arc<GpuProfile>,
    device: CudaDevice,
    pipelines: Arc<Pipelines>,
    streams: Arc<Streams>,
    /// By which the host reaches the device; one thread at a time.
    stage: Arc<Mutex<Option<Stage>>>,
    pulse: Pulse,
    /// Operations that are handed over at once.
    at_once: u64,
    /// Steps are timed one by one.
    timed: bool,
    /// The same device in 32-bit floats, made when it is first needed.
    exact: OnceLock<Option<Cuda>>,
}

impl Cuda {
    /// Opens a device under the name that it was found by.
    fn open(
        driver: &CudaDriver,
        now: &DeviceInfo,
        found: &DeviceInfo,
        options: &DeviceOptions,
    ) -> Result<Cuda, BackendError> {
        let name = &found.name;
        // What the driver says now, not what it said when the device was found: whoever planned with that compares.
        let profile = profile::profile(&DeviceInfo { name: name.clone(), ..now.clone() }, options)?;
        let opened = |e| failed(name, 0, e);
        let device = CudaDevice::open(driver, now.index).map_err(opened)?;
        let streams = Streams { compute: device.stream().map_err(opened)?, copy: device.stream().map_err(opened)? };
        let features = now.cuda.clone().unwrap_or_default();
        let pipelines = Pipelines::new(&device, now, &features, options)
            .map_err(|reason| BackendError::Unsupported { device: name.clone(), reason })?;
        let budget = profile.limits().memory;
        let made = |profile: GpuProfile, streams: Arc<Streams>, pipelines: Arc<Pipelines>| {
            Cuda(Arc::new(Inner {
                profile: Arc::new(profile),
                device: device.clone(),
                pipelines,
                streams,
                stage: Arc::default(),
                pulse: options.pulse.clone(),
                at_once: lists::flops_at_once(&features),
                timed: options.time_steps,
                exact: OnceLock::new(),
            }))
        };
        let claimed = made(profile, Arc::new(streams), Arc::new(pipelines));
        // A driver's compiler can be wrong.
        let believed = claimed.units().is_none() || units::hold(&claimed, &claimed.streams().compute)?;
        let cuda = match believed {
            true => claimed,
            false => made(
                GpuProfile::clone(claimed.gpu_profile()).without_units(),
                claimed.0.streams.clone(),
                claimed.0.pipelines.clone(),
            ),
        };
        device.meter().set_budget(budget);
        // Only now: what it does to be opened does not fail on purpose.
        #[cfg(feature = "faults")]
        device.set_name(name);
        Ok(cuda)
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

    fn device(&self) -> &CudaDevice {
        &self.0.device
    }

    fn streams(&self) -> &Streams {
        &self.0.streams
    }

    fn pipelines(&self) -> CompileFor<'_> {
        CompileFor(self)
    }

    fn failed(&self, bytes: u64, error: CudaError) -> BackendError {
        failed(self.name(), bytes, error)
    }

    /// The same of work that was handed over: whatever a driver answers then but that memory is gone, it is not one to go on with.
    fn died(&self, error: CudaError) -> BackendError {
        match self.failed(0, error) {
            BackendError::Unsupported { device, reason } => BackendError::Lost { device, reason },
            other => other,
        }
    }
}

/// Compilation of kernels with the errors of a device.
struct CompileFor<'c>(&'c Cuda);

impl CompileFor<'_> {
    /// These kernels, in order. What is missing is compiled.
    fn all(&self, kernels: &[&impasto_kernel::Kernel]) -> Result<Vec<Arc<pipelines::CompiledKernel>>, BackendError> {
        let cuda = self.0;
        cuda.0.pipelines.all(kernels, cuda.pulse()).map_err(|e| match e {
            pipelines::CompileError::Interrupted => BackendError::Interrupted { device: cuda.name().into() },
            pipelines::CompileError::Driver(e) if e.is_lost() || e.is_exhausted() => cuda.failed(0, e),
            other => cuda.unsupported(other.to_string()),
        })
    }
}

fn failed(device: &str, bytes: u64, error: CudaError) -> BackendError {
    let device = device.to_owned();
    match error {
        e if e.is_exhausted() => BackendError::Exhausted { device, bytes },
        e if e.is_lost() => BackendError::Lost { device, reason: e.to_string() },
        e => BackendError::Unsupported { device, reason: e.to_string() },
    }
}

impl Gpu for Cuda {
    type Memory = CudaMemory;
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

    fn exact(&self) -> Option<Cuda> {
        let Inner { profile, device, pipelines, streams, stage, pulse, at_once, timed, exact } = &*self.0;
        let make = || {
            Some(Cuda(Arc::new(Inner {
                profile: Arc::new(GpuProfile::clone(profile).exactly()?),
                device: device.clone(),
                pipelines: pipelines.clone(),
                streams: streams.clone(),
                stage: stage.clone(),
                pulse: pulse.clone(),
                at_once: *at_once,
                timed: *timed,
                exact: OnceLock::new(),
            })))
        };
        exact.get_or_init(make).clone()
    }

    fn allocate(&self, home: Residence, lengths: impl Iterator<Item = u64>) -> Result<CudaMemory, BackendError> {
        CudaMemory::new(self, home, lengths)
    }

    fn record(&self, steps: Vec<GpuStep>, cuts: &[usize], spaces: &Spaces<CudaMemory>) -> Result<Lists, BackendError> {
        Lists::new(self, steps, cuts, spaces)
    }

    fn submit(&self, commands: &mut Lists, segment: usize) -> Result<(), BackendError> {
        commands.run(self, segment)
    }

    fn note_times(&self, commands: &Lists, times: &mut [StepTime]) -> Result<(), BackendError> {
        commands.note(self, times)
    }
}
