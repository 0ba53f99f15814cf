//! The most memory that a thread had at once, so that a test can say what a file made of it.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

thread_local! {
    static NOW: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

/// Notes that so many bytes more, or fewer, are in use. A thread that ends has nothing to note it in.
fn count(bytes: isize) {
    let now = NOW.try_with(|now| {
        now.set(now.get() + bytes);
        now.get()
    });
    let _ = PEAK.try_with(|peak| peak.set(peak.get().max(now.unwrap_or(0))));
}

// SAFETY: every call goes to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// What `work` gives, and the bytes that this thread had at most beyond those that were there before.
pub fn peak_of<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = NOW.get();
    PEAK.set(before);
    let result = work();
    (result, PEAK.get().saturating_sub(before).max(0) as usize)
}
