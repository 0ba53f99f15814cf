//! An allocator that puts tensor memory right before a page that nobody may touch: a kernel that reads or writes past
//! its end dies there, instead of finding something harmless.

use std::alloc::{GlobalAlloc, Layout, System};

pub struct Guard;

const PAGE: usize = 4096;
/// Tensors are aligned to cache lines, and nothing else is.
const LINE: usize = 64;

/// The pages that hold an allocation, between two forbidden ones.
fn pages(layout: Layout) -> usize {
    layout.size().next_multiple_of(PAGE)
}

// SAFETY: small alignments are left to the system's allocator; the others get pages of their own from the kernel, large
// enough for their size and aligned to at least a cache line, which `dealloc` gives back as a whole.
unsafe impl GlobalAlloc for Guard {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.align() < LINE {
            // SAFETY: the caller's promise is passed on.
            return unsafe { System.alloc(layout) };
        }
        let slack = if layout.align() > PAGE { layout.align() } else { 0 };
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: new pages at an address of the kernel's choice touch nothing that is in use.
        let map =
            unsafe { libc::mmap(std::ptr::null_mut(), pages(layout) + 2 * PAGE + slack, protection, flags, -1, 0) };
        if map == libc::MAP_FAILED {
            return std::ptr::null_mut();
        }
        let first = (map as usize + PAGE).next_multiple_of(layout.align().max(PAGE));
        let end = first + pages(layout);
        // SAFETY: both pages belong to the mapping and hold nothing.
        unsafe {
            libc::mprotect((first - PAGE) as *mut _, PAGE, libc::PROT_NONE);
            libc::mprotect(end as *mut _, PAGE, libc::PROT_NONE);
        }
        // As close to the end as the alignment allows.
        let at = if slack > 0 { first } else { (end - layout.size()) / layout.align() * layout.align() };
        at as *mut u8
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        match layout.align() < LINE {
            // SAFETY: the caller's promise is passed on.
            true => unsafe { System.alloc_zeroed(layout) },
            // SAFETY: as above; new pages are zero.
            false => unsafe { self.alloc(layout) },
        }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        if layout.align() < LINE {
            // SAFETY: the caller's promise is passed on.
            return unsafe { System.dealloc(ptr, layout) };
        }
        let first = ptr as usize / PAGE * PAGE;
        // SAFETY: these are the pages that `alloc` made for this pointer.
        unsafe { libc::munmap((first - PAGE) as *mut _, pages(layout) + 2 * PAGE) };
    }
}
