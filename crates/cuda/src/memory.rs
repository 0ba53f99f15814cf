//! Memory of a device, and memory of the host that a device reaches.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;

use impasto_graph::Meter;

use crate::device::CudaDevice;
use crate::error::CudaError;

/// The kind of memory that a buffer is allocated in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CudaLocation {
    /// Memory of the device.
    Device,
    /// Pinned host memory by which the host reaches the device. It counts as the device's.
    Staging,
    /// Pinned host memory that holds values offloaded from the device. It does not count as the device's.
    Offloaded,
}

/// Memory that kernels and copies read and write.
#[derive(Debug)]
pub struct CudaBuffer {
    device: CudaDevice,
    location: CudaLocation,
    address: u64,
    /// Where the host sees it.
    host: Option<NonNull<u8>>,
    bytes: u64,
}

// SAFETY: the addresses are good in every thread; who writes when is said by each function.
unsafe impl Send for CudaBuffer {}
// SAFETY: as above.
unsafe impl Sync for CudaBuffer {}

/// Reachable by every context of the process, and by kernels.
const PORTABLE_AND_MAPPED: u32 = 1 | 2;

impl CudaDevice {
    fn meter_of(&self, location: CudaLocation) -> &Meter {
        if location == CudaLocation::Offloaded { self.offload_meter() } else { self.meter() }
    }

    /// Allocates memory, within the budget of the device.
    pub fn allocate(&self, bytes: u64, location: CudaLocation) -> Result<CudaBuffer, CudaError> {
        let meter = self.meter_of(location);
        if !meter.take(bytes) {
            return Err(CudaError::OverBudget { wanted: bytes });
        }
        #[cfg(feature = "faults")]
        if self.0.name.get().is_some_and(|name| impasto_faults::alloc(name, bytes)) {
            meter.refuse(bytes);
            return Err(CudaError::Call { call: "cuMemAlloc_v2", code: crate::error::OUT_OF_MEMORY });
        }
        let size = usize::try_from(bytes.max(4)).unwrap_or(usize::MAX);
        let taken = match location {
            CudaLocation::Device => self.take(size).map(|address| (address, None)),
            CudaLocation::Staging | CudaLocation::Offloaded => self.pin(size),
        };
        let (address, host) = taken.inspect_err(|_| meter.refuse(bytes))?;
        Ok(CudaBuffer { device: self.clone(), location, address, host, bytes })
    }

    fn take(&self, size: usize) -> Result<u64, CudaError> {
        let mut address = 0;
        // SAFETY: the address is written to.
        unsafe { self.enter()?.memory_allocate(&mut address, size) }?;
        Ok(address)
    }

    fn pin(&self, size: usize) -> Result<(u64, Option<NonNull<u8>>), CudaError> {
        let (functions, mut place, mut address) = (self.enter()?, std::ptr::null_mut::<c_void>(), 0);
        // SAFETY: the place is written to.
        unsafe { functions.host_allocate(&mut place, size, PORTABLE_AND_MAPPED) }?;
        // SAFETY: the memory was just allocated so that devices reach it.
        if let Err(error) = unsafe { functions.host_address(&mut address, place, 0) } {
            // SAFETY: nobody has it yet.
            let _ = unsafe { functions.host_free(place) };
            return Err(error);
        }
        Ok((address, NonNull::new(place.cast())))
    }
}

impl CudaBuffer {
    /// Its size.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Where kernels find it.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Whether the host can read and write it.
    pub fn is_visible(&self) -> bool {
        self.host.is_some()
    }

    /// Bytes of the buffer where the host sees them, so that several threads can fill different ones at once.
    ///
    /// # Safety
    /// Until the slice is gone nobody else reads or writes these bytes: no other thread, and no kernel or copy of the device.
    #[allow(
        clippy::mut_from_ref,
        reason = "who else has the bytes is the caller's promise, as of any memory that is shared with a device"
    )]
    pub unsafe fn slice_mut(&self, offset: u64, bytes: usize) -> Result<&mut [u8], CudaError> {
        self.check(offset, bytes)?;
        let start = self.host.ok_or(CudaError::Wrong("the host has no way into this buffer"))?;
        // SAFETY: the bytes lie within the memory, which was just checked and lives as long as the buffer; the rest is the caller's.
        Ok(unsafe { std::slice::from_raw_parts_mut(start.as_ptr().add(offset as usize), bytes) })
    }

    /// Copies bytes to a place in the buffer, and waits for that. No kernel may use them meanwhile.
    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), CudaError> {
        self.check(offset, bytes.len())?;
        // SAFETY: the bytes lie within the memory, which was just checked.
        unsafe { self.device.enter()?.copy_in(self.address + offset, bytes.as_ptr().cast(), bytes.len()) }
    }

    /// Copies bytes from a place in the buffer, and waits for that. No kernel may write them meanwhile.
    pub fn read_at(&self, offset: u64, bytes: &mut [u8]) -> Result<(), CudaError> {
        self.check(offset, bytes.len())?;
        // SAFETY: as in `write_at`.
        unsafe { self.device.enter()?.copy_out(bytes.as_mut_ptr().cast(), self.address + offset, bytes.len()) }
    }

    fn check(&self, offset: u64, bytes: usize) -> Result<(), CudaError> {
        let wanted = offset.saturating_add(bytes as u64);
        if wanted > self.bytes { Err(CudaError::TooLarge { wanted, have: self.bytes }) } else { Ok(()) }
    }
}

impl Drop for CudaBuffer {
    fn drop(&mut self) {
        if let Ok(functions) = self.device.enter() {
            let _ = match self.host {
                // SAFETY: it is this buffer's, and the driver frees no memory before what it was handed has ended.
                Some(host) => unsafe { functions.host_free(host.as_ptr().cast()) },
                // SAFETY: as above.
                None => unsafe { functions.memory_free(self.address) },
            };
        }
        self.device.meter_of(self.location).give_back(self.bytes);
    }
}

/// Bytes of a buffer.
#[derive(Clone, Debug)]
pub struct CudaRange {
    /// The buffer.
    pub buffer: Arc<CudaBuffer>,
    /// Where they begin in it.
    pub offset: u64,
    /// How many.
    pub bytes: u64,
}

impl CudaRange {
    /// Where kernels find them.
    pub fn address(&self) -> u64 {
        self.buffer.address() + self.offset
    }

    /// A part of it.
    pub fn within(&self, offset: u64, bytes: u64) -> CudaRange {
        CudaRange { buffer: self.buffer.clone(), offset: self.offset + offset, bytes }
    }

    /// Whether the bytes lie in the buffer.
    pub(crate) fn check(&self) -> Result<(), CudaError> {
        let (wanted, have) = (self.offset.saturating_add(self.bytes), self.buffer.bytes());
        if wanted > have { Err(CudaError::TooLarge { wanted, have }) } else { Ok(()) }
    }
}
