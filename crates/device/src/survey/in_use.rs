//! What is remembered of drivers that passed every trial and died in use, in a worker process whose end we saw.
//!
//! It is kept apart from what trials have found: a trial that goes well says nothing against it, only work that was done does.

use super::evidence::Evidence;
use super::guard::{CrashRecord, Guard};
use super::manifest::{Manifest, Reading};
use super::{Api, Context, DeviceInfo, SurveyOptions, vulkan};

const IN_USE: &str = " in use";

/// The name under which the deaths in use of a driver are remembered.
pub(super) fn in_use(driver: &str) -> String {
    format!("{driver}{IN_USE}")
}

/// The crash record that blocks a driver, of its trials or of its use.
pub(super) fn blocked_record(guard: &Guard, driver: &str, key: &[String]) -> Option<CrashRecord> {
    let used = || Some(CrashRecord { driver: driver.into(), ..guard.blocked(&in_use(driver), key)? });
    guard.blocked(driver, key).or_else(used)
}

/// The crash guard of a device that is used in a process of its own, whose death can be told.
///
/// ```
/// use impasto_device::{Store, SurveyOptions, UseGuard, survey};
/// use std::sync::Arc;
///
/// let options = SurveyOptions { apis: vec![], store: Arc::new(Store::none()), ..SurveyOptions::default() };
/// let found = survey(&options);
/// let guard = UseGuard::new(found.find("cpu").unwrap(), &options);
/// assert!(guard.may_try_again());
/// ```
#[derive(Clone, Debug)]
pub struct UseGuard {
    device: DeviceInfo,
    options: SurveyOptions,
}

impl UseGuard {
    /// The guard of a device that a survey with these options has found.
    pub fn new(device: &DeviceInfo, options: &SurveyOptions) -> UseGuard {
        UseGuard { device: device.clone(), options: options.clone() }
    }

    /// Its process died before it had done any work. Two such deaths, and the driver is left alone for a day unless somebody asks for it.
    pub fn died(&self, what: &str) {
        let context = self.context();
        if let Some((driver, key)) = self.driver(&context) {
            context.guard.crashed(&in_use(&driver), &key, what);
        }
    }

    /// It did its work: its deaths in use are forgotten.
    pub fn worked(&self) {
        let context = self.context();
        // Which driver a device has can cost children to find out: only where something is to be forgotten.
        if context.guard.remembers(|driver| driver.ends_with(IN_USE))
            && let Some((driver, _)) = self.driver(&context)
        {
            context.guard.worked(&[in_use(&driver)]);
        }
    }

    /// Whether it may be used again: it did not die twice of late, or the user has asked for it.
    pub fn may_try_again(&self) -> bool {
        if self.options.asked_for || self.options.store.folder().is_none() {
            return true;
        }
        let context = self.context();
        self.driver(&context).is_none_or(|(driver, key)| blocked_record(&context.guard, &driver, &key).is_none())
    }

    fn context(&self) -> Context {
        let guard = Guard::open(self.options.store.clone());
        Context { options: self.options.clone(), evidence: Evidence::gather(), guard }
    }

    /// The driver of the device and what it is now.
    fn driver(&self, context: &Context) -> Option<(String, Vec<String>)> {
        match self.device.api {
            Api::Vulkan => {}
            Api::Cuda => return Some((impasto_cuda::LIBRARY.to_owned(), context.evidence.cuda_key())),
            Api::Cpu => return None,
        }
        let readable = |manifest: &&Manifest| matches!(manifest.reading, Reading::Library { .. });
        let manifests: Vec<&Manifest> = context.evidence.manifests.iter().filter(readable).collect();
        let manifest = match (&self.device.manifest, &manifests[..]) {
            (Some(path), _) => context.evidence.manifests.iter().find(|manifest| manifest.path == *path)?,
            (None, [one]) => one,
            (None, several) => vulkan::of_device(context, several, &self.device)?,
        };
        Some((vulkan::id(&manifest.path), context.evidence.driver_key(manifest)))
    }
}
