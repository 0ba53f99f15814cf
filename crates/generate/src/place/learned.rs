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
        let planned = planned.min(now.memory);
        // Little was had and much was refused: it may be the piece that is too large, not all of them together.
        let smaller = Limits { max_allocation: now.max_allocation.min(refused / 2), ..now };
        let in_pieces = now.max_allocation != u64::MAX && smaller != now;
        let limits = match in_pieces && had < planned / 2 && refused > planned / 8 {
            true => smaller,
            // Always less than before, or it would be tried for ever.
            false => Limits { memory: had.max(planned / 2).min(planned.saturating_sub(1)), ..now },
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever a device does, there is an end: each refusal leaves less to ask for.
    #[test]
    fn every_refusal_leaves_less() {
        let mut state = 88_172_645_463_325_252u64;
        let mut next = |below: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % below.max(1)
        };
        for _ in 0..10_000 {
            let memory = if next(4) == 0 { u64::MAX } else { 1 + next(1 << 34) };
            let piece = if next(2) == 0 { u64::MAX } else { 1 + next(1 << 32) };
            let mut now = Limits { memory, max_allocation: piece, max_binding: piece };
            let (mut learned, mut refusals) = (Learned::default(), 0);
            // As long as a plan of some bytes could still be made.
            while now.memory > 0 && now.max_allocation > 0 {
                learned.fuller("it", now, next(1 << 35), next(1 << 34), next(1 << 34));
                let then = learned.limits("it").expect("it was learned");
                assert!(then.memory <= now.memory && then.max_allocation <= now.max_allocation && then != now);
                (now, refusals) = (then, refusals + 1);
                if refusals > 200 {
                    break;
                }
            }
        }
    }
}
