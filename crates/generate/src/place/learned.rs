//! What a run has learned of its devices by how they failed.

use std::collections::{BTreeMap, BTreeSet};

use impasto_graph::Limits;

use super::names::ModuleName;

/// What a run has learned of its devices.
#[derive(Clone, Debug, Default)]
pub struct Learned {
    /// What could be had of those that turned out to be fuller than they said.
    limits: BTreeMap<String, Limits>,
    /// What they cannot compute.
    cannot: BTreeSet<(ModuleName, String)>,
    /// What they compute in 32-bit floats, since it was too much for smaller ones.
    exact: BTreeSet<(ModuleName, String)>,
    /// Those that were lost and opened anew: once is enough.
    reopened: BTreeSet<String>,
}

impl Learned {
    /// A device was asked for `planned` bytes in all, gave `had` of them and refused the next `refused`. What to plan with from now on.
    pub fn fuller(&mut self, device: &str, now: Limits, planned: u64, had: u64, refused: u64) {
        // Little was had and much was refused: it may be the piece that is too large, not all of them together.
        let smaller = Limits { max_allocation: now.max_allocation.min(refused / 2), ..now };
        let in_pieces = now.max_allocation != u64::MAX && smaller != now;
        let limits = match in_pieces && had < planned / 2 && refused > planned / 8 {
            true => smaller,
            false => Limits { memory: had.max(planned / 2).min(planned.saturating_sub(1)).min(now.memory), ..now },
        };
        let known = self.limits.entry(device.into()).or_insert(limits);
        known.memory = known.memory.min(limits.memory);
        known.max_allocation = known.max_allocation.min(limits.max_allocation);
    }

    /// What is there to be had of a device, if less than it says.
    pub fn limits(&self, device: &str) -> Option<Limits> {
        self.limits.get(device).copied()
    }

    /// A module cannot be on a device.
    pub fn refuse(&mut self, module: ModuleName, device: &str) {
        self.cannot.insert((module, device.into()));
    }

    /// Whether a module may be on a device.
    pub fn allows(&self, module: ModuleName, device: &str) -> bool {
        !self.cannot.contains(&(module, device.to_owned()))
    }

    /// Devices that a module cannot be on.
    pub fn refused(&self, module: ModuleName) -> usize {
        self.cannot.iter().filter(|(of, _)| *of == module).count()
    }

    /// A module computes in 32-bit floats on a device from now on.
    pub fn in_f32(&mut self, module: ModuleName, device: &str) {
        self.exact.insert((module, device.into()));
    }

    /// Whether it does.
    pub fn is_in_f32(&self, module: ModuleName, device: &str) -> bool {
        self.exact.contains(&(module, device.to_owned()))
    }

    /// A device is opened anew; `false` if it was before.
    pub fn reopen(&mut self, device: &str) -> bool {
        self.reopened.insert(device.into())
    }
}
