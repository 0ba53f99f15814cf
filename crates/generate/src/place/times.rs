//! Where the time of a run goes, by module, device and kind of op, and the memory that it takes of each device.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use impasto_backend::StepTime;
use serde::Serialize;

/// Time of one kind of op in one module.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OpTime {
    /// The module.
    pub module: &'static str,
    /// Where it computed.
    pub device: String,
    /// The op.
    pub op: &'static str,
    /// How often it was done.
    pub count: u64,
    /// Seconds in all, by the device's clock where it has one.
    pub seconds: f64,
    /// Useful operations, in all.
    pub flops: u64,
}

/// Sums of a run, by module, device and op, and peaks of memory, by device.
#[derive(Debug, Default)]
struct RunProfile {
    ops: BTreeMap<(&'static str, String, &'static str), OpTime>,
    peaks: BTreeMap<String, u64>,
}

/// Times and peaks that are kept, if anybody wants to know.
#[derive(Debug, Default)]
pub(super) struct Times(Mutex<Option<RunProfile>>);

impl Times {
    fn lock(&self) -> MutexGuard<'_, Option<RunProfile>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From here on.
    pub(super) fn begin(&self) {
        *self.lock() = Some(RunProfile::default());
    }

    /// What a run of a module took, and the most bytes that its device has had to give until then.
    pub(super) fn note(&self, module: &'static str, device: &str, steps: impl FnOnce() -> Vec<StepTime>, peak: u64) {
        let mut kept = self.lock();
        let Some(kept) = kept.as_mut() else { return };
        for step in steps() {
            let new = || OpTime { module, device: device.into(), op: step.op, count: 0, seconds: 0.0, flops: 0 };
            let sum = kept.ops.entry((module, device.into(), step.op)).or_insert_with(new);
            (sum.count, sum.seconds, sum.flops) = (sum.count + 1, sum.seconds + step.seconds, sum.flops + step.flops);
        }
        let most = kept.peaks.entry(device.into()).or_default();
        *most = peak.max(*most);
    }

    /// What took longest, first.
    pub(super) fn all(&self) -> Vec<OpTime> {
        let mut all: Vec<OpTime> = self.lock().iter().flat_map(|kept| kept.ops.values()).cloned().collect();
        all.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
        all
    }

    /// The most bytes that each device has had to give at once.
    pub(super) fn peaks(&self) -> BTreeMap<String, u64> {
        self.lock().as_ref().map_or_else(BTreeMap::new, |kept| kept.peaks.clone())
    }
}
