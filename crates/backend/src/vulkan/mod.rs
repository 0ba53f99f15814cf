//! The Vulkan backend.
//!
//! The way of a plan: `weights` packs parameters, `session` prepares each step (`linear`, `conv`, `attention`, `norm`, `elementwise`,
//! `movement`, `lookup`) as runs of kernels and writes them down once. Kernels are written in our own language (`kernels`), for one shape
//! each, and compiled by our own compiler (`pipelines`).

mod attention;
mod bench;
mod conv;
mod elementwise;
mod gated;
pub mod kernels;
mod linear;
mod lists;
mod lookup;
mod memory;
mod movement;
mod near;
mod norm;
mod pipelines;
mod profile;
mod session;
mod units;
mod weights;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock};

use impasto_graph::{Capabilities, DType, Graph, Limits, Plan, Used, Value, Weight};
use impasto_vulkan::{Device, Meter, Physical, VulkanError};

use crate::{Backend, BackendError, HostWeights, Profile, Pulse, Session, WeightSource, Weights};
use kernels::matrices::Units;
pub use lists::MOST_FLOPS;
use memory::Stage;
use pipelines::Pipelines;
pub use profile::VulkanProfile;

/// How a Vulkan device is to be used.
#[derive(Clone, Debug, Default)]
pub struct VulkanOptions {
    /// Compute in 32-bit floats also where the device has smaller ones.
    pub exact: bool,
    /// Memory that plans may use; by default what the driver says is free, or where it does not say, what the device has.
    pub memory: Option<u64>,
    /// The largest single piece of memory and the largest binding; by default what the device allows.
    pub max_buffer: Option<u64>,
    /// Where compiled kernels are kept between runs; by default nowhere.
    pub cache: Option<PathBuf>,
    /// Beats as work is done; who asks it to stop is heard between two lists of commands.
    pub pulse: Pulse,
    /// Go the way of a device whose memory the host does not see, also where it does: for tests.
    pub as_if_discrete: bool,
}

/// A Vulkan device. Cheap to clone; clones are the same device.
#[derive(Clone)]
pub struct Vulkan(Arc<Inner>);

struct Inner {
    profile: VulkanProfile,
    device: Device,
    pipelines: Pipelines,
    /// By which the host reaches memory that it does not see; one thread at a time.
    stage: Arc<Mutex<Option<Stage>>>,
    cache: Option<PathBuf>,
    pulse: Pulse,
    /// The same device in 32-bit floats, made when it is first needed.
    exact: OnceLock<Option<Vulkan>>,
}

impl Vulkan {
    /// Opens a device under a name. Only after `impasto_device` has tried it in a child: a driver can crash here.
    pub fn open(name: &str, physical: &Physical, options: &VulkanOptions) -> Result<Vulkan, BackendError> {
        let profile = VulkanProfile::of(name, &physical.describe(), options)?;
        let device = Device::open(physical).map_err(|e| failed(name, 0, e))?;
        let budget = profile.limits().memory;
        let made = |profile: VulkanProfile| {
            let pulse = options.pulse.clone();
            let pipelines = Pipelines::new(device.clone(), options.cache.as_deref(), profile.units(), pulse.clone());
            let (stage, cache, exact) = (Arc::default(), options.cache.clone(), OnceLock::new());
            Vulkan(Arc::new(Inner { profile, device: device.clone(), pipelines, stage, cache, pulse, exact }))
        };
        let claimed = made(profile);
        // Some drivers claim matrices that compute something else.
        let believed = claimed.units().is_none() || units::hold(&claimed)?;
        let vulkan = if believed { claimed } else { made(claimed.profile().clone().without_units()) };
        device.meter().set_budget(budget);
        // Only now: what it does to be opened does not fail on purpose.
        #[cfg(feature = "faults")]
        device.set_name(name);
        Ok(vulkan)
    }

    /// The matrix units that kernels use, if the device has some that compute what they should.
    fn units(&self) -> Option<Units> {
        self.profile().units()
    }

    /// What planning needs to know of it.
    pub fn profile(&self) -> &VulkanProfile {
        &self.0.profile
    }

    /// What products multiply, and what flows between layers.
    pub fn number(&self) -> DType {
        self.0.profile.number()
    }

    fn pulse(&self) -> &Pulse {
        &self.0.pulse
    }

    fn device(&self) -> &Device {
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

    fn unsupported(&self, reason: impl Into<String>) -> BackendError {
        BackendError::Unsupported { device: self.name().into(), reason: reason.into() }
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

impl Capabilities for Vulkan {
    fn limits(&self) -> Limits {
        self.profile().limits()
    }

    fn alignment(&self) -> u64 {
        self.profile().alignment()
    }

    fn supports(&self, graph: &Graph, value: Value) -> Result<(), String> {
        self.profile().supports(graph, value)
    }

    fn scratch_bytes(&self, graph: &Graph, value: Value) -> u64 {
        self.profile().scratch_bytes(graph, value)
    }

    fn may_overwrite(&self, graph: &Graph, value: Value, operand: usize) -> bool {
        self.profile().may_overwrite(graph, value, operand)
    }

    fn param_bytes(&self, graph: &Graph, param: Value, used: Used) -> u64 {
        self.profile().param_bytes(graph, param, used)
    }

    fn fixed_bytes(&self) -> u64 {
        self.profile().fixed_bytes()
    }

    fn host_memory(&self) -> u64 {
        self.profile().host_memory()
    }
}

impl Profile for Vulkan {
    fn name(&self) -> &str {
        self.profile().name()
    }

    fn about(&self) -> String {
        self.profile().about()
    }

    fn activations(&self) -> DType {
        self.profile().activations()
    }

    fn profile_in_f32(&self) -> Option<Arc<dyn Profile>> {
        self.profile().profile_in_f32()
    }
}

impl Backend for Vulkan {
    fn meter(&self) -> &Meter {
        self.device().meter()
    }

    fn peak_gflops(&self) -> Result<f64, BackendError> {
        bench::peak_gflops(self)
    }

    fn pack_one(&self, graph: &Graph, weight: &Weight, source: &dyn WeightSource) -> Result<Vec<u8>, BackendError> {
        self.profile().pack_one(graph, weight, source)
    }

    fn pack_on_host(&self, graph: &Graph, plan: &Plan, source: &dyn WeightSource) -> Result<HostWeights, BackendError> {
        match near::NearWeights::keep(self, graph, plan, source)? {
            Some(kept) => Ok(kept),
            None => HostWeights::plain(self, graph, plan, source),
        }
    }

    fn pack(&self, graph: &Graph, plan: &Plan, source: &dyn WeightSource) -> Result<Weights, BackendError> {
        let weights = weights::VulkanWeights::new(self, graph, plan, source)?;
        Ok(Weights::new(weights.bytes(), weights))
    }

    fn prepare(&self, graph: &Graph, plan: &Plan, weights: &Weights) -> Result<Box<dyn Session>, BackendError> {
        Ok(Box::new(session::VulkanSession::new(self, graph, plan, weights)?))
    }

    fn in_f32(&self) -> Option<Arc<dyn Backend>> {
        let Inner { profile, device, stage, cache, pulse, exact, .. } = &*self.0;
        let make = || {
            let (profile, device, pulse) = (profile.clone().exactly()?, device.clone(), pulse.clone());
            let pipelines = Pipelines::new(device.clone(), cache.as_deref(), None, pulse.clone());
            let (stage, cache, exact) = (stage.clone(), cache.clone(), OnceLock::new());
            Some(Vulkan(Arc::new(Inner { profile, device, pipelines, stage, cache, pulse, exact })))
        };
        Some(Arc::new(exact.get_or_init(make).clone()?))
    }
}
