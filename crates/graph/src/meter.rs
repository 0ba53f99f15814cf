//! What a device was asked for: bytes, and kernels to compile.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts the bytes that a device was asked for, now and at most, keeps them within a budget, and counts compiled kernels.
///
/// ```
/// use impasto_graph::Meter;
/// let meter = Meter::new();
/// meter.set_budget(100);
/// assert!(meter.take(60) && !meter.take(50) && meter.take(40));
/// assert_eq!(meter.had(), 60);
/// meter.give_back(60);
/// assert_eq!((meter.now(), meter.peak()), (40, 100));
/// ```
#[derive(Debug)]
pub struct Meter {
    now: AtomicU64,
    peak: AtomicU64,
    budget: AtomicU64,
    had: AtomicU64,
    compiled: AtomicU64,
    wanted: AtomicU64,
}

impl Default for Meter {
    fn default() -> Self {
        Meter::new()
    }
}

impl Meter {
    /// Nothing taken, and no budget.
    pub const fn new() -> Meter {
        let [now, peak, had, compiled, wanted] = [const { AtomicU64::new(0) }; 5];
        Meter { now, peak, budget: AtomicU64::new(u64::MAX), had, compiled, wanted }
    }

    /// More than this is never taken.
    pub fn set_budget(&self, bytes: u64) {
        self.budget.store(bytes, Ordering::Relaxed);
    }

    /// Counts bytes, if they are within the budget.
    pub fn take(&self, bytes: u64) -> bool {
        let budget = self.budget.load(Ordering::Relaxed);
        let more = |now: u64| now.checked_add(bytes).filter(|&sum| sum <= budget);
        let taken = self.now.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        match taken {
            Ok(before) => {
                self.peak.fetch_max(before + bytes, Ordering::Relaxed);
            }
            Err(before) => self.had.store(before, Ordering::Relaxed),
        }
        taken.is_ok()
    }

    /// The device has refused what was just counted: these bytes are free again, and what was had until then is remembered.
    pub fn refuse(&self, bytes: u64) {
        self.give_back(bytes);
        self.had.store(self.now(), Ordering::Relaxed);
    }

    /// Bytes that were taken when the device refused more, the last time that it did.
    pub fn had(&self) -> u64 {
        self.had.load(Ordering::Relaxed)
    }

    /// The driver has compiled a kernel, or found it in its cache.
    pub fn note_compiled(&self) {
        self.compiled.fetch_add(1, Ordering::Relaxed);
    }

    /// Kernels compiled so far.
    pub fn compiled(&self) -> u64 {
        self.compiled.load(Ordering::Relaxed)
    }

    /// So many more kernels are about to be compiled.
    pub fn note_wanted(&self, kernels: u64) {
        self.wanted.fetch_add(kernels, Ordering::Relaxed);
    }

    /// Kernels that were to be compiled so far; those that are not [compiled](Meter::compiled) yet are left.
    pub fn wanted(&self) -> u64 {
        self.wanted.load(Ordering::Relaxed)
    }

    /// Say how far the compilation in another process is.
    pub fn mirror_compilation(&self, compiled: u64, wanted: u64) {
        self.compiled.store(compiled, Ordering::Relaxed);
        self.wanted.store(wanted, Ordering::Relaxed);
    }

    /// These bytes are free again.
    pub fn give_back(&self, bytes: u64) {
        self.now.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Bytes taken now.
    pub fn now(&self) -> u64 {
        self.now.load(Ordering::Relaxed)
    }

    /// Say what another meter says, of a device that is open in another process.
    pub fn mirror(&self, now: u64, peak: u64, had: u64, compiled: u64) {
        self.now.store(now, Ordering::Relaxed);
        self.peak.store(peak, Ordering::Relaxed);
        self.had.store(had, Ordering::Relaxed);
        self.compiled.store(compiled, Ordering::Relaxed);
    }

    /// Forget the peak: what was taken before does not count.
    pub fn start_over(&self) {
        self.peak.store(self.now(), Ordering::Relaxed);
    }

    /// The most bytes that were ever taken at once.
    pub fn peak(&self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }
}
