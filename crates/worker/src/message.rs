//! All that a process and its worker say to each other.

use std::path::PathBuf;

use impasto_backend::vulkan::VulkanOptions;
use impasto_backend::{BackendError, Origin, Pulse};
use impasto_device::DeviceInfo;
use impasto_graph::{Limits, Plan};
use serde::{Deserialize, Serialize};

/// Changed whenever what is said changes its meaning. Both sides are of one program; another one is refused by this and by the build.
pub(crate) const VERSION: u32 = 1;

/// What this program was built from.
pub(crate) fn build() -> String {
    format!("{} {}", env!("CARGO_PKG_VERSION"), std::env::consts::ARCH)
}

/// The device that is meant: by its UUID, at its place in the loader's order or elsewhere in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Target {
    pub name: String,
    pub index: usize,
    pub uuid: Option<[u8; 16]>,
}

impl Target {
    pub fn of(device: &DeviceInfo) -> Target {
        Target { name: device.name.clone(), index: device.index, uuid: device.uuid }
    }
}

/// How the device is to be used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HowToUse {
    pub exact: bool,
    pub memory: Option<u64>,
    pub max_buffer: Option<u64>,
    pub cache: Option<PathBuf>,
    pub as_if_discrete: bool,
}

impl HowToUse {
    pub fn of(options: &VulkanOptions) -> HowToUse {
        let VulkanOptions { exact, memory, max_buffer, cache, as_if_discrete, pulse: _ } = options;
        HowToUse {
            exact: *exact,
            memory: *memory,
            max_buffer: *max_buffer,
            cache: cache.clone(),
            as_if_discrete: *as_if_discrete,
        }
    }

    pub fn options(self, pulse: &Pulse) -> VulkanOptions {
        let HowToUse { exact, memory, max_buffer, cache, as_if_discrete } = self;
        VulkanOptions { exact, memory, max_buffer, cache, as_if_discrete, pulse: pulse.clone() }
    }
}

/// Bytes that belong to a message: in the memory that both reach, or one behind the other in the message's tail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Where {
    Memory(u64),
    Tail,
}

/// Where parameters come from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Source {
    /// The worker finds them itself.
    Origin(Origin),
    /// The worker asks for each.
    Ask,
}

/// What the parent asks for. Each is answered by one [`Reply`], but for those that say so.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Request {
    /// Open the device; the first of all.
    Open { version: u32, build: String, target: Target, how: HowToUse, idle_seconds: f64 },
    /// A graph in its textual form and its plan, of which those that follow speak; `exact` is for the device computing in 32-bit floats.
    Plan { graph: String, plan: Plan, exact: bool },
    /// Pack the plan's parameters and keep them in host memory, under a number.
    Keep { id: u64, source: Source },
    /// Bring the plan's parameters to the device, under a number.
    Pack { id: u64, source: Source },
    /// Take the plan's memory, with these parameters, under a number.
    Prepare { id: u64, weights: u64, feed: Option<Source> },
    /// Run a session: where its inputs are, and where its outputs go.
    Run { id: u64, inputs: Vec<Where>, outputs: Vec<Where> },
    /// The times of a session's steps.
    Times { id: u64 },
    /// Give back what has this number. Not answered.
    Unload { id: u64 },
    /// How fast products could be.
    Peak,
    /// Forget the peak of memory.
    StartOver,
    /// A parameter that was asked for. Not answered.
    Param(Result<GivenParam, Failure>),
    /// Stop what is being done; it ends as interrupted. Not answered.
    Cancel,
}

/// A parameter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct GivenParam {
    pub storage: String,
    pub shape: Vec<usize>,
    pub bytes: u64,
    pub lies: Where,
}

/// Bytes of the device that are taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Taken {
    pub now: u64,
    pub peak: u64,
    /// When the device refused more.
    pub had: u64,
}

/// What the worker says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Reply {
    /// The device is open, and says this of itself.
    Opened { about: String, limits: Limits, alignment: u64, fixed_bytes: u64, has_units: bool },
    /// It is done. Bytes that it took, where it took some.
    Done { bytes: u64, taken: Taken },
    /// A run is done; its outputs are where they were to go.
    Ran { taken: Taken, streaming: Option<(u64, f64, f64)> },
    /// Seconds, eight bytes each in the tail.
    Times,
    /// Thousand million operations a second.
    Peak(f64),
    /// It cannot be done.
    Failed { why: Failure, taken: Taken },

    /// No answer: a parameter was read.
    WasRead { name: String, elements: u64 },
    /// No answer: a parameter is needed.
    NeedParam { name: String },
    /// No answer: the worker lives, and has done so many pieces of work.
    Beat { beats: u64, taken: Taken },
    /// No answer: something that a user may want to read.
    Log(String),
}

/// What went wrong, as it goes over the channel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Failure {
    Exhausted { bytes: u64 },
    Lost { reason: String },
    Unsupported { reason: String },
    Param { name: String, problem: String },
    Interrupted,
    Other(String),
}

impl From<BackendError> for Failure {
    fn from(error: BackendError) -> Failure {
        match error {
            BackendError::Exhausted { bytes, .. } => Failure::Exhausted { bytes },
            BackendError::Lost { reason, .. } => Failure::Lost { reason },
            BackendError::Unsupported { reason, .. } => Failure::Unsupported { reason },
            BackendError::Param { name, problem } => Failure::Param { name, problem },
            BackendError::Interrupted { .. } => Failure::Interrupted,
            other => Failure::Other(other.to_string()),
        }
    }
}

impl Failure {
    pub fn on(self, device: &str) -> BackendError {
        let device = device.to_owned();
        match self {
            Failure::Exhausted { bytes } => BackendError::Exhausted { device, bytes },
            Failure::Lost { reason } => BackendError::Lost { device, reason },
            Failure::Unsupported { reason } => BackendError::Unsupported { device, reason },
            Failure::Param { name, problem } => BackendError::Param { name, problem },
            Failure::Interrupted => BackendError::Interrupted { device },
            Failure::Other(reason) => BackendError::Unsupported { device, reason },
        }
    }
}
