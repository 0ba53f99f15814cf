//! Planned bytes = allocated bytes, and a run allocates nothing. If this failed, a plan that fits could still run out of
//! memory in the middle of a picture.
//!
//! One test in a binary of its own: its allocator counts what every thread does.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::SeqCst};

use common::case::Case;
use common::cpus::machines;
use common::networks::tiny_networks;
use common::rng::{Rng, seed};
use impasto_graph::{HostTensor, Plan};
use impasto_model::ElementTypes;

/// Bytes of tensor memory now, and the most there ever were. Nothing else is aligned to a cache line.
static TENSORS: AtomicI64 = AtomicI64::new(0);
static MOST: AtomicI64 = AtomicI64::new(0);
/// Calls of the allocator, of any kind.
static CALLS: AtomicU64 = AtomicU64::new(0);

struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

impl Counting {
    fn count(layout: Layout, sign: i64) {
        CALLS.fetch_add(1, SeqCst);
        if layout.align() >= 64 {
            let now = TENSORS.fetch_add(sign * layout.size() as i64, SeqCst) + sign * layout.size() as i64;
            MOST.fetch_max(now, SeqCst);
        }
    }
}

// SAFETY: everything is left to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Counting::count(layout, 1);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        Counting::count(layout, 1);
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        Counting::count(layout, -1);
        Counting::count(Layout::from_size_align(size, layout.align()).unwrap_or(layout), 1);
        // SAFETY: as above.
        unsafe { System.realloc(ptr, layout, size) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        Counting::count(layout, -1);
        // SAFETY: as above.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[test]
fn planned_bytes_are_allocated_bytes_and_a_run_allocates_nothing() -> Result<(), Box<dyn std::error::Error>> {
    let rng = &mut Rng::new(seed());
    for numbers in [ElementTypes::F32, ElementTypes::BF16] {
        for graph in tiny_networks(numbers)? {
            let case = Case::new(graph, rng);
            for machine in machines().iter().filter(|m| m.threads != 2) {
                let plan = Plan::new(&case.graph, &*machine.backend.profile())?;
                let planned = (plan.arena_bytes() + plan.weight_bytes()) as i64;
                let before = TENSORS.load(SeqCst);
                MOST.store(before, SeqCst);
                let weights = machine.backend.pack(&case.graph, &plan, &case)?;
                assert_eq!(TENSORS.load(SeqCst) - before, plan.weight_bytes() as i64, "{machine}: parameters");
                let mut session = machine.backend.prepare(&case.graph, &plan, &weights)?;
                assert_eq!(TENSORS.load(SeqCst) - before, planned, "{machine}: parameters and arena");
                assert_eq!(MOST.load(SeqCst) - before, planned, "{machine}: for a moment there was more");

                let inputs = case.inputs();
                let mut outputs: Vec<HostTensor> =
                    session.outputs().iter().map(|(_, ty)| HostTensor::zeros(ty)).collect();
                session.run(&inputs, &mut outputs)?;
                for _ in 0..3 {
                    let calls = CALLS.load(SeqCst);
                    let result = session.run(&inputs, &mut outputs);
                    let calls = CALLS.load(SeqCst) - calls;
                    result?;
                    assert_eq!(calls, 0, "{machine}: a run called the allocator");
                }
                drop((session, weights));
                assert_eq!(TENSORS.load(SeqCst), before, "{machine}: something was not given back");
            }
        }
    }
    Ok(())
}
