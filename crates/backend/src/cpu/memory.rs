//! Memory for tensors: aligned, exactly as large as planned, refused without a panic.

use std::alloc::{Layout, alloc, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::sync::Arc;

use crate::{BackendError, Meter};

/// Alignment of every tensor: a cache line, and the widest vector.
pub(crate) const ALIGNMENT: u64 = 64;

/// A piece of memory that is ours.
pub(crate) struct CpuMemory {
    ptr: NonNull<u8>,
    layout: Layout,
    bytes: u64,
    meter: Arc<Meter>,
}

// SAFETY: the memory is plain bytes that this value owns; who may touch which part when is the plan's business.
unsafe impl Send for CpuMemory {}
// SAFETY: as above; shared access only hands out the pointer.
unsafe impl Sync for CpuMemory {}

/// Bytes that a thread reads into: aligned for numbers of every type, and kept from one piece to the next.
#[derive(Default)]
pub(crate) struct ReadBuffer(Vec<Line>);

#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line(#[allow(dead_code, reason = "read as bytes")] [u8; 64]);

impl ReadBuffer {
    /// So many bytes, of any content.
    pub(crate) fn bytes(&mut self, bytes: usize) -> &mut [u8] {
        if self.0.len() * size_of::<Line>() < bytes {
            self.0.resize(bytes.div_ceil(size_of::<Line>()), Line([0; 64]));
        }
        // SAFETY: the lines have so many bytes, and are nothing else.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_mut_ptr().cast(), bytes) }
    }
}

/// Bytes of the host that begin at a cache line: a parameter as a device keeps it, in host memory.
pub struct AlignedBytes {
    buffer: ReadBuffer,
    len: usize,
}

impl AlignedBytes {
    pub(crate) fn zeroed(len: usize) -> AlignedBytes {
        let mut buffer = ReadBuffer::default();
        buffer.bytes(len);
        AlignedBytes { buffer, len }
    }
}

impl From<&[u8]> for AlignedBytes {
    fn from(bytes: &[u8]) -> AlignedBytes {
        let mut copy = AlignedBytes::zeroed(bytes.len());
        copy.copy_from_slice(bytes);
        copy
    }
}

impl std::ops::Deref for AlignedBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the buffer has so many bytes since `zeroed`.
        unsafe { std::slice::from_raw_parts(self.buffer.0.as_ptr().cast(), self.len) }
    }
}

impl std::ops::DerefMut for AlignedBytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.buffer.bytes(self.len)
    }
}

impl CpuMemory {
    /// Zeroed memory of exactly this size, counted.
    pub(crate) fn new(bytes: u64, meter: &Arc<Meter>) -> Result<CpuMemory, BackendError> {
        CpuMemory::by(alloc_zeroed, bytes, meter)
    }

    /// The same of any content, for what is written as a whole before it is read. Zeros would be written here, on one thread; so fresh pages are
    /// touched by the threads that fill them.
    pub(crate) fn unwritten(bytes: u64, meter: &Arc<Meter>) -> Result<CpuMemory, BackendError> {
        CpuMemory::by(alloc, bytes, meter)
    }

    fn by(allocate: unsafe fn(Layout) -> *mut u8, bytes: u64, meter: &Arc<Meter>) -> Result<CpuMemory, BackendError> {
        let exhausted = || BackendError::Exhausted { device: "cpu".into(), bytes };
        let size = usize::try_from(bytes).map_err(|_| exhausted())?.max(1);
        let layout = Layout::from_size_align(size, ALIGNMENT as usize).map_err(|_| exhausted())?;
        if !meter.take(bytes) {
            return Err(exhausted());
        }
        #[cfg(feature = "faults")]
        if impasto_faults::alloc("cpu", bytes) {
            meter.refuse(bytes);
            return Err(exhausted());
        }
        // SAFETY: the size is not zero.
        let Some(ptr) = NonNull::new(unsafe { allocate(layout) }) else {
            meter.refuse(bytes);
            return Err(exhausted());
        };
        Ok(CpuMemory { ptr, layout, bytes, meter: meter.clone() })
    }

    pub(crate) fn ptr(&self) -> *mut u8 {
        self.ptr.as_ptr()
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for CpuMemory {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout, freed once.
        unsafe { dealloc(self.ptr.as_ptr(), self.layout) };
        self.meter.give_back(self.bytes);
    }
}
