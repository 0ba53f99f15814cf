//! Between a device that works and whoever watches it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A count that grows as long as work goes on, and a wish to stop that is looked at between pieces of it. Clones are the same pulse.
///
/// ```
/// use impasto_backend::Pulse;
/// let pulse = Pulse::default();
/// pulse.beat();
/// assert_eq!((pulse.beats(), pulse.must_stop()), (1, false));
/// pulse.stop(true);
/// assert!(pulse.clone().must_stop());
/// ```
#[derive(Clone, Debug, Default)]
pub struct Pulse(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    beats: AtomicU64,
    stop: AtomicBool,
}

impl Pulse {
    /// A piece of work is done.
    pub fn beat(&self) {
        self.0.beats.fetch_add(1, Ordering::Relaxed);
    }

    /// Pieces of work that are done.
    pub fn beats(&self) -> u64 {
        self.0.beats.load(Ordering::Relaxed)
    }

    /// Ask to stop, or take that back.
    pub fn stop(&self, stop: bool) {
        self.0.stop.store(stop, Ordering::Relaxed);
    }

    /// Whether somebody has asked to stop.
    pub fn must_stop(&self) -> bool {
        self.0.stop.load(Ordering::Relaxed)
    }
}
