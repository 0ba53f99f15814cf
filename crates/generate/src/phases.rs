//! Who holds memory when: modules run one after the other, and make room for each other where they must.

use std::collections::BTreeMap;

use crate::module::Module;
use crate::place::{DevicePeak, Home, Placement};

/// The modules of a run, in the order of its phases.
pub(crate) struct Phases<'a> {
    /// Those that are given back before the diffusion model is loaded, one after the other.
    pub before: Vec<&'a Module>,
    pub diffusion: Option<&'a Module>,
    pub decoder: Option<&'a Module>,
}

/// Whether the diffusion model and the decoder fit beside each other. What is kept on disk stays nowhere else after its phase.
pub(crate) fn both_fit(diffusion: &Module, decoder: &Module) -> bool {
    let (a, b) = (diffusion.report(1), decoder.report(1));
    let together = a.device_bytes() + b.device_bytes() + diffusion.device().fixed_bytes();
    let apart = a.computes_on != b.computes_on;
    let on_disk = [diffusion, decoder].iter().any(|module| module.home() == Home::Disk);
    // One of them may know that there is less than the device says.
    let memory = diffusion.device().limits().memory.min(decoder.device().limits().memory);
    !on_disk && (apart || together <= memory)
}

impl Phases<'_> {
    /// The most that each device holds at once.
    pub fn peaks(&self, places: &Placement) -> Vec<DevicePeak> {
        let keep = self.diffusion.zip(self.decoder).is_some_and(|(a, b)| both_fit(a, b));
        // In each phase, who is there, and whether also on its device or in host memory only.
        let mut phases: Vec<Vec<(&Module, bool)>> = self.before.iter().map(|&module| vec![(module, true)]).collect();
        for (working, other) in [(self.diffusion, self.decoder), (self.decoder, self.diffusion)] {
            phases.push(working.map(|m| (m, true)).into_iter().chain(other.map(|m| (m, keep))).collect());
        }
        let mut peaks: BTreeMap<String, u64> = BTreeMap::new();
        for phase in phases {
            let mut held: BTreeMap<String, u64> = BTreeMap::new();
            for (module, loaded) in phase {
                let report = module.report(1);
                if loaded {
                    let fixed = module.device().fixed_bytes();
                    *held.entry(report.computes_on.clone()).or_insert(fixed) += report.device_bytes();
                }
                *held.entry("cpu".into()).or_default() += report.host_bytes;
            }
            for (device, bytes) in held {
                let peak = peaks.entry(device).or_default();
                *peak = bytes.max(*peak);
            }
        }
        let host = places.te.host();
        let limit = |device: &str| {
            let mut places = [&places.te, &places.diffusion, &places.vae].into_iter();
            let place = places.find(|place| place.device.name() == device);
            place.map_or(host.plans, |place| place.device.limits().memory)
        };
        let peak = |(device, plans): (String, u64)| {
            let process = if device == "cpu" { host.process } else { 0 };
            let [bytes, limit] = [plans, limit(&device)].map(|bytes| bytes.saturating_add(process));
            DevicePeak { device, bytes, limit, process }
        };
        peaks.into_iter().map(peak).filter(|peak| peak.bytes > 0).collect()
    }
}
