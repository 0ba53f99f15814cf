//! Devices that are open: one instance for each, shared by all that use it, closed when the last of them is gone.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use std::time::Duration;

use impasto_backend::{Backend, BackendError};

use super::loaded::LoadedModules;

/// How a device is opened by its name.
pub type Open = dyn Fn(&str) -> Result<Arc<dyn Backend>, BackendError> + Send + Sync;

/// The devices of a process.
pub struct Pool {
    open: Box<Open>,
    opened: Mutex<HashMap<String, Weak<dyn Backend>>>,
    /// Devices that have failed in this process and are not opened again, and why.
    failed: Mutex<HashMap<String, String>>,
    loaded: LoadedModules,
}

impl Pool {
    /// No device is open yet. Modules stay loaded for `keep_alive` after their last use.
    pub fn new(
        keep_alive: Duration,
        open: impl Fn(&str) -> Result<Arc<dyn Backend>, BackendError> + Send + Sync + 'static,
    ) -> Arc<Pool> {
        let loaded = LoadedModules::new(keep_alive);
        Arc::new(Pool { open: Box::new(open), opened: Mutex::default(), failed: Mutex::default(), loaded })
    }

    /// The modules that are loaded on these devices and idle.
    pub(crate) fn loaded(&self) -> &LoadedModules {
        &self.loaded
    }

    /// The device of this name, which is opened if nobody has it open.
    pub fn get(&self, name: &str) -> Result<Arc<dyn Backend>, BackendError> {
        if let Some(reason) = self.failure(name) {
            return Err(BackendError::Lost { device: name.into(), reason });
        }
        // Held while it opens, so that two users who come at once get one instance.
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(backend) = opened.get(name).and_then(Weak::upgrade) {
            return Ok(backend);
        }
        let backend = (self.open)(name)?;
        opened.insert(name.into(), Arc::downgrade(&backend));
        Ok(backend)
    }

    /// The device of this name, if it is open.
    pub fn is_open(&self, name: &str) -> bool {
        let opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        opened.get(name).is_some_and(|backend| backend.strong_count() > 0)
    }

    /// Kernels that were compiled for the devices that are open.
    pub(crate) fn compiled(&self) -> u64 {
        let opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        opened.values().filter_map(Weak::upgrade).map(|backend| backend.meter().compiled()).sum()
    }

    /// Whether a device that is open can be opened anew after it was lost.
    pub fn reopens(&self, name: &str) -> bool {
        let opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        opened.get(name).and_then(Weak::upgrade).is_some_and(|backend| backend.reopens())
    }

    /// Let go of a device that was lost, so that the next who wants it opens it anew.
    pub fn forget(&self, name: &str) {
        self.loaded.forget_device(name);
        self.opened.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
    }

    /// A device has failed: nobody gets it again in this process.
    pub fn fail(&self, name: &str, reason: &str) {
        self.forget(name);
        self.failed.lock().unwrap_or_else(PoisonError::into_inner).insert(name.into(), reason.into());
    }

    /// Why a device is not to be had in this process, if it has failed.
    pub fn failure(&self, name: &str) -> Option<String> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }
}
