//! An open device: its primary context.

use std::ffi::c_int;
use std::sync::Arc;
#[cfg(feature = "faults")]
use std::sync::OnceLock;

use impasto_graph::Meter;

use crate::driver::CudaDriver;
use crate::error::CudaError;
use crate::table::{Functions, Handle};

/// An open device. Cheap to clone; clones are the same one. All threads may use it.
#[derive(Clone, Debug)]
pub struct CudaDevice(pub(crate) Arc<Opened>);

#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) driver: CudaDriver,
    device: c_int,
    pub(crate) context: Handle,
    pub(crate) meter: Meter,
    pub(crate) offloaded: Meter,
    /// Under which it fails on purpose.
    #[cfg(feature = "faults")]
    pub(crate) name: OnceLock<String>,
}

// SAFETY: a context may be used by any thread, one after the other or at once; each call makes it current first.
unsafe impl Send for Opened {}
// SAFETY: as above.
unsafe impl Sync for Opened {}

impl CudaDevice {
    /// Creates the context of a device, or takes part in the one that this process has.
    pub fn open(driver: &CudaDriver, index: usize) -> Result<CudaDevice, CudaError> {
        let device = driver.device(index)?;
        let mut context = std::ptr::null_mut();
        // SAFETY: the handle is written to.
        unsafe { driver.0.context_retain(&mut context, device) }?;
        Ok(CudaDevice(Arc::new(Opened {
            driver: driver.clone(),
            device,
            context,
            meter: Meter::new(),
            offloaded: Meter::new(),
            #[cfg(feature = "faults")]
            name: OnceLock::new(),
        })))
    }

    /// Meters the device memory that the driver was asked for.
    pub fn meter(&self) -> &Meter {
        &self.0.meter
    }

    /// Meters the host memory that holds offloaded values.
    pub fn offload_meter(&self) -> &Meter {
        &self.0.offloaded
    }

    /// Bytes that can be allocated now.
    pub fn free_memory(&self) -> Result<u64, CudaError> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: both numbers are written to.
        unsafe { self.enter()?.memory_info(&mut free, &mut total) }?;
        Ok(free as u64)
    }

    /// Bytes that one more context takes: about what this one took, which nobody can see from within it.
    pub fn context_memory(&self) -> Result<u64, CudaError> {
        let before = self.free_memory()?;
        let (functions, mut other, mut free, mut total) = (self.enter()?, std::ptr::null_mut(), 0, 0);
        // SAFETY: the handle and both numbers are written to; the context is destroyed before anybody else learns of it.
        let after = unsafe {
            functions.context_create(&mut other, 0, self.0.device)?;
            let after = functions.memory_info(&mut free, &mut total);
            let _ = functions.context_destroy(other);
            after
        };
        after.map(|()| before.saturating_sub(free as u64))
    }

    /// Waits for all that was handed to the device.
    pub fn synchronise(&self) -> Result<(), CudaError> {
        // SAFETY: the context is this device's.
        unsafe { self.enter()?.context_synchronise() }
    }

    /// Sets the name under which faults are injected into it. Without one it has none.
    #[cfg(feature = "faults")]
    pub fn set_name(&self, name: &str) {
        let _ = self.0.name.set(name.to_owned());
    }

    /// Makes its context that of this thread, for the calls that follow.
    pub(crate) fn enter(&self) -> Result<&Functions, CudaError> {
        let functions = &*self.0.driver.0;
        // SAFETY: the context lives as long as this device.
        unsafe { functions.context_set(self.0.context) }?;
        Ok(functions)
    }

    /// Fails on purpose with the work that is handed over, where a test asks for that.
    #[cfg(feature = "faults")]
    pub(crate) fn submits(&self, call: &'static str) -> Result<(), CudaError> {
        match self.0.name.get().is_some_and(|name| impasto_faults::submit(name)) {
            true => Err(CudaError::Call { call, code: crate::error::LAUNCH_FAILED }),
            false => Ok(()),
        }
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        // SAFETY: everything that belongs to the context holds this device, so nothing is left of it.
        let _ = unsafe { self.driver.0.context_release(self.device) };
    }
}
