//! Work in many pieces, any of which may fail.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::BackendError;

/// The first error of tasks that run on several threads; later ones are not begun.
#[derive(Default)]
pub(crate) struct FirstError {
    failed: AtomicBool,
    error: Mutex<Option<BackendError>>,
}

impl FirstError {
    /// Runs a task, unless one has failed.
    pub(crate) fn run(&self, task: impl FnOnce() -> Result<(), BackendError>) {
        if self.failed() {
            return;
        }
        if let Err(error) = task() {
            self.failed.store(true, Ordering::Relaxed);
            self.error.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        }
    }

    fn failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    pub(crate) fn result(self) -> Result<(), BackendError> {
        self.error.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
    }
}

/// Calls `task` for each number below `count`, on as many threads as this process may use, each with a state of its own that `begin` makes
/// from the thread's index.
pub(crate) fn on_threads<S>(
    threads: usize,
    count: usize,
    begin: &(dyn Fn(usize) -> S + Sync),
    task: &(dyn Fn(&mut S, usize) -> Result<(), BackendError> + Sync),
) -> Result<(), BackendError> {
    let (next, first) = (AtomicUsize::new(0), FirstError::default());
    let work = |thread: usize| {
        let mut state = begin(thread);
        loop {
            let i = next.fetch_add(1, Ordering::Relaxed);
            if i >= count || first.failed() {
                return;
            }
            first.run(|| task(&mut state, i));
        }
    };
    let work = &work;
    std::thread::scope(|scope| {
        for thread in 1..threads.min(count) {
            // A thread that cannot be had is done without.
            let _ = std::thread::Builder::new().name("impasto-load".into()).spawn_scoped(scope, move || work(thread));
        }
        work(0);
    });
    first.result()
}
