//! Which backend a device is for, whatever API it is reached by. Callers have a [`DeviceInfo`] and [`DeviceOptions`], and name no API.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use impasto_device::{Api, DeviceInfo};
use serde::{Deserialize, Serialize};

use crate::cpu::{self, Isa};
use crate::{Backend, BackendError, Profile, Pulse, cuda, vulkan};

/// What products are computed in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Precision {
    /// What the device is fastest in, with sums in f32. The same in every process on a machine.
    #[default]
    Auto,
    /// 32-bit floats.
    F32,
    /// f16 factors with f32 sums, on devices that have them.
    F16,
    /// bf16 factors with f32 sums, also where that is slow.
    Bf16,
}

impl FromStr for Precision {
    type Err = BackendError;

    fn from_str(text: &str) -> Result<Precision, BackendError> {
        match text {
            "auto" => Ok(Precision::Auto),
            "f32" => Ok(Precision::F32),
            "f16" => Ok(Precision::F16),
            "bf16" => Ok(Precision::Bf16),
            _ => Err(BackendError::Setting(format!("'{text}' is no precision; there are auto, f32 and bf16"))),
        }
    }
}

/// How a device is to be used. What a device does not have (threads of a GPU, buffers of the CPU) is ignored there.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct DeviceOptions {
    /// What products are computed in.
    pub precision: Precision,
    /// Memory that plans may use; by default what the device has, or this process may use.
    pub memory: Option<u64>,
    /// The largest single allocation and the largest binding of a GPU; by default what it allows.
    pub max_buffer: Option<u64>,
    /// Where compiled kernels are kept between runs; by default nowhere.
    pub cache: Option<PathBuf>,
    /// Threads of the CPU; by default as many as this process may use.
    pub threads: Option<usize>,
    /// Force an instruction path of the CPU.
    pub isa: Option<Isa>,
    /// Compute without matrix units also where a GPU claims some.
    pub without_matrix_units: bool,
    /// Time each step of a plan by itself, also where that makes them slower.
    pub time_steps: bool,
    /// Treat a GPU as one whose memory the host does not see, also where it does: for tests.
    pub as_if_discrete: bool,
    /// Verify each plan, and each kernel after each pass; kernels are neither taken from the cache nor put there. Debug builds verify in any case, and cache.
    pub verify: bool,
    /// Beats as work is done; a wish to stop is heard between two submissions. It belongs to a process and is not sent to another.
    #[serde(skip)]
    pub pulse: Pulse,
}

impl PartialEq for DeviceOptions {
    /// Equal settings; whoever watches the pulse is none.
    fn eq(&self, other: &DeviceOptions) -> bool {
        let settings = |o: &DeviceOptions| {
            let flags = (o.precision, o.isa, o.without_matrix_units, o.time_steps, o.as_if_discrete, o.verify);
            (flags, o.memory, o.max_buffer, o.threads)
        };
        settings(self) == settings(other) && self.cache == other.cache
    }
}

impl DeviceOptions {
    /// Whether plans and kernels are verified: always in debug builds.
    pub(crate) fn verifies(&self) -> bool {
        self.verify || cfg!(debug_assertions)
    }

    /// Where compiled kernels are kept. What was kept was not verified now, so with `verify` it is nowhere.
    pub(crate) fn kernel_cache(&self) -> Option<&Path> {
        self.cache.as_deref().filter(|_| !self.verify)
    }
}

/// Makes something of a device that is to be used in this way.
type Make<T> = fn(&DeviceInfo, &DeviceOptions) -> Result<Arc<T>, BackendError>;

/// How the devices of an API are planned for and opened.
struct Driver {
    profile: Make<dyn Profile>,
    open: Make<dyn Backend>,
    /// Bytes that it takes beside plans on a device of so many.
    beside: fn(u64) -> u64,
}

/// The one place that knows which APIs there are; none of those that this build cannot compute on.
fn driver(api: Api) -> Option<Driver> {
    match api {
        Api::Cpu => Some(Driver { profile: cpu::profile, open: cpu::open, beside: |_| 0 }),
        Api::Vulkan => Some(Driver { profile: vulkan::profile, open: vulkan::open, beside: |_| 0 }),
        Api::Cuda => Some(Driver { profile: cuda::profile, open: cuda::open, beside: cuda::driver_memory }),
    }
}

fn find(device: &DeviceInfo) -> Result<Driver, BackendError> {
    let reason = || format!("this build cannot compute on {}", device.api.title());
    driver(device.api).ok_or_else(|| BackendError::Unsupported { device: device.name.clone(), reason: reason() })
}

/// What planning needs to know of a device that is not open. No driver is entered.
///
/// ```
/// use impasto_backend::{DeviceOptions, profile};
/// use impasto_device::{Api, DeviceInfo, DeviceKind};
/// use impasto_graph::Limits;
///
/// let limits = Limits { memory: 8 << 30, max_allocation: 4 << 30, max_binding: (4 << 30) - 1 };
/// let card = DeviceInfo::imagined("vulkan0", Api::Vulkan, DeviceKind::Discrete, limits);
/// let small = DeviceOptions { memory: Some(1 << 30), ..DeviceOptions::default() };
/// assert_eq!(profile(&card, &small)?.limits().memory, 1 << 30);
/// # Ok::<(), impasto_backend::BackendError>(())
/// ```
pub fn profile(device: &DeviceInfo, options: &DeviceOptions) -> Result<Arc<dyn Profile>, BackendError> {
    (find(device)?.profile)(device, options)
}

/// Opens a device in this process. Only after `impasto_device` has tried it in a child: a driver can crash here.
///
/// The result is shared: sessions, and the same device in 32-bit floats, hold it too.
pub fn open(device: &DeviceInfo, options: &DeviceOptions) -> Result<Arc<dyn Backend>, BackendError> {
    (find(device)?.open)(device, options)
}

/// Bytes of a device that its driver takes beside plans, as machine code and recorded commands: who plans with all that is free leaves them.
pub fn driver_memory(device: &DeviceInfo) -> u64 {
    driver(device.api).map_or(0, |driver| (driver.beside)(device.limits.memory))
}
