//! Where the time of a run goes: by module, device and kind of op.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

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

type ByOp = BTreeMap<(&'static str, String, &'static str), OpTime>;

/// Times that are added up, if anybody wants to know.
#[derive(Debug, Default)]
pub(super) struct Times(Mutex<Option<ByOp>>);

impl Times {
    /// From here on.
    pub(super) fn begin(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(BTreeMap::new());
    }

    /// What a run of a module took.
    pub(super) fn note(&self, module: &'static str, device: &str, steps: impl FnOnce() -> Vec<StepTime>) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(kept) = kept.as_mut() else { return };
        for step in steps() {
            let new = || OpTime { module, device: device.into(), op: step.op, count: 0, seconds: 0.0, flops: 0 };
            let sum = kept.entry((module, device.into(), step.op)).or_insert_with(new);
            (sum.count, sum.seconds, sum.flops) = (sum.count + 1, sum.seconds + step.seconds, sum.flops + step.flops);
        }
    }

    /// What took longest, first.
    pub(super) fn all(&self) -> Vec<OpTime> {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all: Vec<OpTime> = kept.iter().flat_map(BTreeMap::values).cloned().collect();
        all.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
        all
    }
}
