//! How fast devices are: as earlier runs have measured, and before that by their class.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use impasto_device::{DeviceInfo, DeviceKind};
use serde::{Deserialize, Serialize};

use super::times::Times;

/// The rates of a device.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rates {
    /// Useful operations in a second, in whole networks.
    pub flops: f64,
    /// Bytes of weights in a second, from the file to where they are computed with.
    pub load: f64,
    /// Seconds in which a kernel is compiled, of drivers that do so in every process.
    #[serde(default)]
    pub compile: f64,
    /// They were measured here, in earlier runs.
    pub measured: bool,
}

impl Rates {
    /// What a device of its class may reach. Coarse: one run corrects it.
    fn of_class(about: &str, device: &DeviceInfo) -> Rates {
        let flops = match device.kind {
            DeviceKind::Discrete => 8e12,
            DeviceKind::Virtual => 4e12,
            DeviceKind::Integrated | DeviceKind::Other => 1e12,
            DeviceKind::Software => 1e10,
            DeviceKind::Cpu => {
                let paths = [("amx", 400e9), ("avx512bf16", 120e9), ("avx512", 60e9), ("avx2", 30e9)];
                let core = paths.iter().find(|(path, _)| about.contains(path)).map_or(5e9, |(_, rate)| *rate);
                core * device.cores.unwrap_or(1) as f64
            }
        };
        let compile = if device.kind == DeviceKind::Software { SOFTWARE_COMPILE } else { 0.0 };
        Rates { flops, load: 1e9, compile, measured: false }
    }
}

/// Seconds in which a software rasteriser compiles a kernel, about: lavapipe on a core of a server.
const SOFTWARE_COMPILE: f64 = 0.5;

/// What was done on a device, and how long it took.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WorkSample {
    pub flops: f64,
    pub computing: f64,
    pub bytes: f64,
    pub loading: f64,
    pub kernels: f64,
    pub compiling: f64,
}

/// Rates by device, kept between runs.
#[derive(Debug, Default)]
pub struct RateBook {
    file: Option<PathBuf>,
    kept: BTreeMap<String, Rates>,
    spent: Mutex<BTreeMap<String, WorkSample>>,
    pub(super) times: Times,
}

impl RateBook {
    /// The book in a file; what cannot be read is as if it were not there.
    pub fn open(file: Option<PathBuf>) -> Arc<RateBook> {
        let text = file.as_ref().and_then(|file| std::fs::read_to_string(file).ok());
        let kept = text.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default();
        Arc::new(RateBook { file, kept, ..RateBook::default() })
    }

    /// The rates of a device that says this of itself.
    pub fn rates(&self, about: &str, device: &DeviceInfo) -> Rates {
        let sound = |rates: &&Rates| rates.flops > 0.0 && rates.load > 0.0;
        let (kept, class) = (self.kept.get(about).filter(sound), Rates::of_class(about, device));
        let lazy = device.kind == DeviceKind::Software;
        // Other drivers keep what they have compiled.
        let compile = |rates: &Rates| if lazy && rates.compile > 0.0 { rates.compile } else { class.compile };
        kept.map_or(class, |rates| Rates { measured: true, compile: compile(rates), ..*rates })
    }

    /// Note what was done.
    pub(crate) fn note(&self, about: &str, more: WorkSample) {
        let mut spent = self.spent.lock().unwrap_or_else(PoisonError::into_inner);
        let sum = spent.entry(about.into()).or_default();
        sum.flops += more.flops;
        sum.computing += more.computing;
        sum.bytes += more.bytes;
        sum.loading += more.loading;
        sum.kernels += more.kernels;
        sum.compiling += more.compiling;
    }

    /// Write down what was measured. Rates are a convenience: what cannot be written is not.
    pub fn keep(&self) {
        let Some(file) = &self.file else { return };
        let mut kept = self.kept.clone();
        for (about, spent) in &*self.spent.lock().unwrap_or_else(PoisonError::into_inner) {
            // What ended at once says nothing.
            if spent.computing < 0.05 || spent.loading <= 0.0 {
                continue;
            }
            let before = kept.get(about).copied();
            let compile = match spent.kernels > 0.0 {
                true => spent.compiling / spent.kernels,
                false => before.map_or(0.0, |rates| rates.compile),
            };
            let (flops, load) = (spent.flops / spent.computing, spent.bytes / spent.loading);
            let new = Rates { flops, load, compile, measured: true };
            let old = before.unwrap_or(new);
            // The last run counts as much as all before it.
            let mean = |a: f64, b: f64| 0.5 * (a + b);
            let rates = Rates {
                flops: mean(old.flops, new.flops),
                load: mean(old.load, new.load),
                compile: mean(old.compile, new.compile),
                measured: true,
            };
            kept.insert(about.clone(), rates);
        }
        if let Ok(text) = serde_json::to_string(&kept) {
            let _ = impasto_store::put(file, text.as_bytes());
        }
    }
}
