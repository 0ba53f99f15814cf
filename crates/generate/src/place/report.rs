//! A run, said beforehand: every module, every byte, and how long it will take.

use serde::Serialize;

use super::fit::SplitMode;
use super::rates::Rates;
use crate::GenerateError;

/// One network of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ModulePlan {
    /// The module.
    pub module: &'static str,
    /// Where it computes.
    pub computes_on: String,
    /// Where its weights are kept: a device, `cpu` for host memory, `disk`.
    pub weights_on: String,
    /// How its file, or `--type`, has its weights, what most bytes are stored as first.
    pub weight_types: Vec<&'static str>,
    /// Elements in blocks that are kept as numbers, since no product reads those blocks: windows of several taps, vectors, rows of no whole blocks.
    pub widened: u64,
    /// Bytes of its weights as the device computes with them, with those of LoRAs beside them.
    pub weight_bytes: u64,
    /// Bytes of LoRAs beside its weights, which are applied at run time.
    pub lora_bytes: u64,
    /// Bytes of weights that are on the device at once.
    pub resident_bytes: u64,
    /// Bytes of weights that are brought to the device in each run, since they do not all fit there.
    pub streamed_bytes: u64,
    /// Bytes that are kept in host memory for a device that is not the host: weights, and activations that rest there.
    pub host_bytes: u64,
    /// Bytes of activations and scratch.
    pub arena_bytes: u64,
    /// The largest tensor that a kernel reads or writes.
    pub largest_buffer: u64,
    /// The largest that it may.
    pub buffer_limit: u64,
    /// In which way it runs.
    pub split_mode: SplitMode,
    /// How often it runs.
    pub runs: u64,
    /// Useful operations of one run.
    pub flops: u64,
    /// Kernels that are compiled for it, about.
    pub kernels: u64,
    /// Seconds in all, with those of compiling where the driver does that in every process.
    pub seconds: f64,
    /// They follow from what earlier runs have measured.
    pub measured: bool,
    /// Why it cannot run, and what would have to change.
    pub problem: Option<String>,
}

impl ModulePlan {
    /// Bytes that it takes on its device.
    pub fn device_bytes(&self) -> u64 {
        self.resident_bytes + self.arena_bytes
    }

    /// With the time that it will take at these rates.
    pub(crate) fn timed(mut self, rates: Rates) -> ModulePlan {
        // Weights are brought while others are computed with.
        let run = (self.flops as f64 / rates.flops).max(self.streamed_bytes as f64 / rates.load);
        let compiling = self.kernels as f64 * rates.compile;
        self.seconds = compiling + self.weight_bytes as f64 / rates.load + self.runs as f64 * run;
        self.measured = rates.measured;
        self
    }
}

/// The most bytes that a device is asked for at once; or two, where they are one card by two APIs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DevicePeak {
    /// The device, or both: `cuda0, vulkan0`.
    pub device: String,
    /// The bytes.
    pub bytes: u64,
    /// What there is, or may be used.
    pub limit: u64,
    /// Bytes of both that the program itself takes, where the device is the host.
    pub process: u64,
    /// Bytes beside the limit that are left to its driver.
    pub driver: u64,
}

impl DevicePeak {
    /// Refused where it is too much: weights that are kept in host memory may be more than there is.
    pub fn check(&self) -> Result<(), GenerateError> {
        let DevicePeak { device, bytes, limit, .. } = self;
        match bytes <= limit {
            true => Ok(()),
            false => Err(GenerateError::Refused(format!(
                "{device} would have to hold {bytes} bytes at once, the limit is {limit}; keep weights on disk (--params-backend disk) or choose \
                 another device"
            ))),
        }
    }
}

/// A whole run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RunPlan {
    /// Its networks, in the order in which they run.
    pub modules: Vec<ModulePlan>,
    /// The peak of each device.
    pub peaks: Vec<DevicePeak>,
    /// Why things are where they are, a line each.
    pub reasons: Vec<String>,
    /// What the user should know, a line each.
    pub notes: Vec<String>,
}

impl RunPlan {
    /// Whether everything can run.
    pub fn fits(&self) -> bool {
        self.modules.iter().all(|module| module.problem.is_none()) && self.peaks.iter().all(|p| p.bytes <= p.limit)
    }

    /// Seconds in all.
    pub fn seconds(&self) -> f64 {
        self.modules.iter().map(|module| module.seconds).sum()
    }
}
