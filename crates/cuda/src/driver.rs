//! The driver's library, and what it says of its devices.

use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;

use libloading::Library;
use serde::{Deserialize, Serialize};

use crate::error::CudaError;
use crate::table::Functions;

/// The file name of the driver's library.
pub const LIBRARY: &str = if cfg!(windows) { "nvcuda.dll" } else { "libcuda.so.1" };

/// NVIDIA's driver, opened. Cheap to clone. It stays loaded until the process ends: its threads may run on.
#[derive(Clone, Debug)]
pub struct CudaDriver(pub(crate) Arc<Functions>);

/// What plans and kernels ask of a device: plain data, known without its driver.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CudaFeatures {
    /// The compute capability, major and minor.
    pub capability: (u32, u32),
    /// The newest CUDA that the driver knows, major and minor.
    pub version: (u32, u32),
    /// Multiprocessors.
    pub multiprocessors: u32,
    /// Their clock in kHz, at most.
    pub clock: u32,
    /// Bytes of shared memory that a block may have if it asks for them.
    pub shared: u32,
    /// Bytes of L2.
    pub l2: u64,
}

/// A device as its driver describes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CudaDescription {
    /// What its maker calls it.
    pub label: String,
    /// The same through every API.
    pub uuid: Option<[u8; 16]>,
    /// Such as `0000:3b:00.0`.
    pub pci: Option<String>,
    /// Bytes of memory.
    pub memory: u64,
    /// It has the memory of the machine.
    pub integrated: bool,
    /// Threads of a warp.
    pub warp: u32,
    /// What plans and kernels ask for.
    pub features: CudaFeatures,
}

// Numbers of attributes in the driver's interface.
const WARP_SIZE: c_int = 10;
const CLOCK: c_int = 13;
const MULTIPROCESSORS: c_int = 16;
const INTEGRATED: c_int = 18;
const L2: c_int = 38;
const CAPABILITY: [c_int; 2] = [75, 76];
const SHARED_OPTIN: c_int = 97;

impl CudaDriver {
    /// Loads the library, whose initialisers run here.
    pub fn open() -> Result<CudaDriver, CudaError> {
        // SAFETY: the driver's initialisers may do anything; `impasto_device` has let them in a child first.
        let opened = unsafe { Library::new(LIBRARY) };
        let library = opened.map_err(|error| CudaError::NoDriver { library: LIBRARY, why: system_words(&error) })?;
        let library: &'static Library = Box::leak(Box::new(library));
        Ok(CudaDriver(Arc::new(Functions::load(library))))
    }

    /// Starts the driver.
    pub fn init(&self) -> Result<(), CudaError> {
        // SAFETY: 0 is the only flag that there is.
        unsafe { self.0.init(0) }
    }

    /// Whether the driver has all functions without which nothing can be computed.
    pub fn check(&self) -> Result<(), CudaError> {
        self.0.missing().map_or(Ok(()), Err)
    }

    /// The newest CUDA that the driver knows, major and minor.
    pub fn version(&self) -> Result<(u32, u32), CudaError> {
        let mut version = 0;
        // SAFETY: the number is written to.
        unsafe { self.0.driver_version(&mut version) }?;
        let version = u32::try_from(version).unwrap_or(0);
        Ok((version / 1000, version % 1000 / 10))
    }

    /// Devices, in the driver's order.
    pub fn count(&self) -> Result<usize, CudaError> {
        let mut count = 0;
        // SAFETY: the number is written to.
        unsafe { self.0.device_count(&mut count) }?;
        Ok(usize::try_from(count).unwrap_or(0))
    }

    /// The driver's number of a device.
    pub(crate) fn device(&self, index: usize) -> Result<c_int, CudaError> {
        let index = c_int::try_from(index).unwrap_or(c_int::MAX);
        let mut device = 0;
        // SAFETY: the number is written to.
        unsafe { self.0.device_get(&mut device, index) }?;
        Ok(device)
    }

    /// What the driver says of a device.
    pub fn describe(&self, index: usize) -> Result<CudaDescription, CudaError> {
        let device = self.device(index)?;
        // SAFETY: the text has the length that the driver is told.
        let label = text(|buffer, length| unsafe { self.0.device_name(buffer, length, device) })?;
        // SAFETY: as above.
        let pci = text(|buffer, length| unsafe { self.0.device_pci(buffer, length, device) }).ok();
        let mut memory = 0_usize;
        // SAFETY: the number is written to.
        unsafe { self.0.device_memory(&mut memory, device) }?;
        let some = |which| self.attribute(device, which).ok().and_then(|value| u32::try_from(value).ok()).unwrap_or(0);
        let capability = [self.attribute(device, CAPABILITY[0])?, self.attribute(device, CAPABILITY[1])?];
        let [major, minor] = capability.map(|number| u32::try_from(number).unwrap_or(0));
        let features = CudaFeatures {
            capability: (major, minor),
            version: self.version().unwrap_or_default(),
            multiprocessors: some(MULTIPROCESSORS),
            clock: some(CLOCK),
            shared: some(SHARED_OPTIN),
            l2: some(L2).into(),
        };
        Ok(CudaDescription {
            label,
            uuid: self.uuid(device).ok().filter(|uuid| *uuid != [0; 16]),
            pci,
            memory: memory as u64,
            integrated: some(INTEGRATED) != 0,
            warp: some(WARP_SIZE),
            features,
        })
    }

    /// The second version tells parts of a card (MIG) from each other.
    fn uuid(&self, device: c_int) -> Result<[u8; 16], CudaError> {
        let mut uuid = [0_u8; 16];
        let place = uuid.as_mut_ptr().cast::<c_void>();
        // SAFETY: 16 bytes are written to.
        match unsafe { self.0.device_uuid_v2(place, device) } {
            // SAFETY: as above.
            Err(CudaError::Missing { .. }) => unsafe { self.0.device_uuid(place, device) }?,
            other => other?,
        }
        Ok(uuid)
    }

    fn attribute(&self, device: c_int, which: c_int) -> Result<c_int, CudaError> {
        let mut value = 0;
        // SAFETY: the number is written to.
        unsafe { self.0.device_attribute(&mut value, which, device) }?;
        Ok(value)
    }
}

/// A text that the driver writes.
fn text(ask: impl FnOnce(*mut c_char, c_int) -> Result<(), CudaError>) -> Result<String, CudaError> {
    let mut buffer = [0_u8; 256];
    // One byte less than there is, so that the text ends whatever the driver does.
    ask(buffer.as_mut_ptr().cast(), 255)?;
    let end = buffer.iter().position(|&byte| byte == 0).unwrap_or(buffer.len());
    Ok(String::from_utf8_lossy(&buffer[..end]).replace(|c: char| c.is_control(), "?"))
}

/// The system's own words, which name the file that is missing.
fn system_words(error: &dyn std::error::Error) -> String {
    error.source().map_or_else(|| error.to_string(), system_words)
}
