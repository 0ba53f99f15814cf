//! How a worker is started and watched.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use impasto_device::UseGuard;

/// Receives lines of a worker's log.
pub type Log = dyn Fn(&str) + Send + Sync;

/// How a worker is started and watched.
#[derive(Clone)]
pub struct WorkerOptions {
    /// The executable to start instead of this program, for programs that cannot call [`hook`](impasto_device::hook).
    pub helper: Option<PathBuf>,
    /// Variables to set or to remove in its environment, beside those of the device.
    pub env: Vec<(OsString, Option<OsString>)>,
    /// How long a worker may do nothing at least before it is taken for hung, 20 s by default; more while drivers compile, and what is
    /// estimated for its work comes on top.
    pub patience: Option<Duration>,
    /// After so long with nothing loaded the worker ends and gives all its memory back; the next use starts another.
    pub idle: Duration,
    /// Memory that it may take beyond what is planned; by default a quarter of the machine's, at most 4 GiB.
    pub slack: Option<u64>,
    /// Operations that the device does in a second, as far as is known.
    pub flops: Option<f64>,
    /// What is remembered of the driver across runs.
    pub guard: Option<UseGuard>,
    /// A stop flag: the device is left between two command buffers.
    pub stop: Option<Arc<AtomicBool>>,
    /// Receives what the worker logs.
    pub log: Option<Arc<Log>>,
}

impl Default for WorkerOptions {
    /// This program, ten seconds of idling, nothing known, nothing remembered.
    fn default() -> Self {
        WorkerOptions {
            helper: None,
            env: vec![],
            patience: None,
            idle: Duration::from_secs(10),
            slack: None,
            flops: None,
            guard: None,
            stop: None,
            log: None,
        }
    }
}
