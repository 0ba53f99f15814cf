//! Who holds memory when: modules run one after the other, and make room for each other where they must.

use std::collections::{BTreeMap, BTreeSet};

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
    let apart = diffusion.card().name != decoder.card().name;
    let on_disk = [diffusion, decoder].iter().any(|module| module.home() == Home::Disk);
    let (together, memory) = match a.computes_on == b.computes_on {
        // One of them may know that there is less than the device says.
        true => (together, diffusion.device().limits().memory.min(decoder.device().limits().memory)),
        false => (together + decoder.device().fixed_bytes(), diffusion.card().bytes.min(decoder.card().bytes)),
    };
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
        // By card, and there by device.
        let (mut peaks, mut used) = (BTreeMap::<String, u64>::new(), BTreeMap::<String, BTreeSet<String>>::new());
        for phase in phases {
            let mut held: BTreeMap<String, BTreeMap<String, u64>> = BTreeMap::new();
            for (module, loaded) in phase {
                let report = module.report(1);
                if loaded {
                    let devices = held.entry(module.card().name.clone()).or_default();
                    let fixed = module.device().fixed_bytes();
                    *devices.entry(report.computes_on.clone()).or_insert(fixed) += report.device_bytes();
                }
                *held.entry("cpu".into()).or_default().entry("cpu".into()).or_default() += report.host_bytes;
            }
            for (card, devices) in held {
                let peak = peaks.entry(card.clone()).or_default();
                *peak = devices.values().sum::<u64>().max(*peak);
                used.entry(card).or_default().extend(devices.into_keys());
            }
        }
        let host = places.te.host();
        let peak = |(card, plans): (String, u64)| {
            let on_it = || [&places.te, &places.diffusion, &places.vae].into_iter().filter(|p| p.card().name == card);
            let devices: Vec<String> = used.remove(&card).into_iter().flatten().collect();
            let limit = match devices.len() {
                0 | 1 => on_it()
                    .find(|place| devices.iter().any(|name| name == place.device.name()))
                    .map(|place| place.device.limits().memory),
                _ => on_it().map(|place| place.card().bytes).min(),
            };
            let process = if card == "cpu" { host.process } else { 0 };
            let [bytes, limit] = [plans, limit.unwrap_or(host.plans)].map(|bytes| bytes.saturating_add(process));
            let driver = on_it().map(|place| place.card().driver).max().unwrap_or(0);
            DevicePeak { device: devices.join(", "), bytes, limit, process, driver }
        };
        peaks.into_iter().map(peak).filter(|peak| peak.bytes > 0).collect()
    }
}
