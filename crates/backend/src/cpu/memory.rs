//! Memory for tensors: aligned, exactly as large as planned, refused without a panic.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::sync::Arc;

use crate::{BackendError, Meter};

/// Alignment of every tensor: a cache line, and the widest vector.
pub(crate) const ALIGNMENT: u64 = 64;
/// Large buffers begin at a huge page, so that the kernel can back them with huge pages.
const HUGE: usize = 2 << 20;

/// A piece of memory that is ours.
pub(crate) struct Memory {
    ptr: NonNull<u8>,
    layout: Layout,
    bytes: u64,
    meter: Arc<Meter>,
}

// SAFETY: the memory is plain bytes that this value owns; who may touch which part when is the plan's business.
unsafe impl Send for Memory {}
// SAFETY: as above; shared access only hands out the pointer.
unsafe impl Sync for Memory {}

impl Memory {
    /// Zeroed memory of exactly this size, counted.
    pub(crate) fn new(bytes: u64, meter: &Arc<Meter>) -> Result<Memory, BackendError> {
        let exhausted = || BackendError::Exhausted { device: "cpu".into(), bytes };
        let size = usize::try_from(bytes).map_err(|_| exhausted())?.max(1);
        let align = if size >= HUGE { HUGE } else { ALIGNMENT as usize };
        let layout = Layout::from_size_align(size, align).map_err(|_| exhausted())?;
        // There is no budget behind this one: the planner keeps to the limit.
        meter.take(bytes);
        #[cfg(feature = "faults")]
        if impasto_faults::alloc("cpu", bytes) {
            meter.refuse(bytes);
            return Err(exhausted());
        }
        // SAFETY: the size is not zero.
        let Some(ptr) = NonNull::new(unsafe { alloc_zeroed(layout) }) else {
            meter.refuse(bytes);
            return Err(exhausted());
        };
        #[cfg(target_os = "linux")]
        if size >= HUGE {
            // SAFETY: the range is our own allocation; the advice changes no contents, and its failure is harmless.
            unsafe { libc::madvise(ptr.as_ptr().cast(), size, libc::MADV_HUGEPAGE) };
        }
        Ok(Memory { ptr, layout, bytes, meter: meter.clone() })
    }

    pub(crate) fn ptr(&self) -> *mut u8 {
        self.ptr.as_ptr()
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout, freed once.
        unsafe { dealloc(self.ptr.as_ptr(), self.layout) };
        self.meter.give_back(self.bytes);
    }
}
