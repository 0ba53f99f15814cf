//! A persistent pool of threads for one kernel at a time.
//!
//! Workers spin for a moment after each job, because the next kernel of a plan follows within microseconds, then park.
//! Giving out a job allocates nothing.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{JoinHandle, Thread};

/// Turns of spinning before a thread parks: some tens of microseconds.
const SPINS: usize = 4_000;

type Job<'a> = &'a (dyn Fn(usize) + Sync);

struct Shared {
    /// The job being done; valid while `running` is above zero.
    job: std::cell::UnsafeCell<Option<Job<'static>>>,
    /// Grows by one with each job.
    epoch: AtomicUsize,
    /// Workers that are not done with the current job.
    running: AtomicUsize,
    /// A worker's job panicked.
    panicked: AtomicBool,
    quit: AtomicBool,
    /// The thread that waits for the job's end.
    owner: Mutex<Option<Thread>>,
}

// SAFETY: `job` is written by the owner only while no worker runs (`running` is 0), and read by workers only between the
// release of `epoch` and their decrement of `running`.
unsafe impl Sync for Shared {}
// SAFETY: nothing in it belongs to a thread.
unsafe impl Send for Shared {}

/// Threads that do one job together.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// One job at a time.
    turn: Mutex<()>,
}

impl Pool {
    /// A pool of `threads` threads; the caller of [`Pool::run`] is one of them.
    pub(crate) fn new(threads: usize) -> Pool {
        let shared = Arc::new(Shared {
            job: std::cell::UnsafeCell::new(None),
            epoch: AtomicUsize::new(0),
            running: AtomicUsize::new(0),
            panicked: AtomicBool::new(false),
            quit: AtomicBool::new(false),
            owner: Mutex::new(None),
        });
        let workers = (1..threads.max(1))
            .map_while(|index| {
                let shared = shared.clone();
                std::thread::Builder::new()
                    .name(format!("impasto-cpu-{index}"))
                    .spawn(move || work(&shared, index))
                    // A thread that cannot be had is done without.
                    .ok()
            })
            .collect();
        Pool { shared, workers, turn: Mutex::new(()) }
    }

    pub(crate) fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Call `job` with each thread's index, on all threads at once, and return when all are done.
    pub(crate) fn run(&self, job: Job<'_>) {
        if self.workers.is_empty() {
            return job(0);
        }
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let shared = &*self.shared;
        *shared.owner.lock().unwrap_or_else(PoisonError::into_inner) = Some(std::thread::current());
        // SAFETY: no worker runs now, so nobody reads `job`; it stays valid until `running` is 0 again, for which
        // this function waits in every case, also when the job panics here.
        unsafe { *shared.job.get() = Some(std::mem::transmute::<Job<'_>, Job<'static>>(job)) };
        shared.running.store(self.workers.len(), Ordering::Relaxed);
        shared.epoch.fetch_add(1, Ordering::Release);
        for worker in &self.workers {
            worker.thread().unpark();
        }
        let own = catch_unwind(AssertUnwindSafe(|| job(0)));
        wait(|| shared.running.load(Ordering::Acquire) == 0);
        if let Err(panic) = own {
            resume_unwind(panic);
        }
        if shared.panicked.swap(false, Ordering::Relaxed) {
            panic!("a kernel panicked on another thread");
        }
    }

    /// Call `task` for each number below `count`, on all threads, in chunks that go to whoever is free.
    /// `task` gets the thread's index and the number.
    pub(crate) fn each(&self, count: usize, task: &(dyn Fn(usize, usize) + Sync)) {
        if count <= 1 || self.workers.is_empty() {
            return (0..count).for_each(|i| task(0, i));
        }
        let next = AtomicUsize::new(0);
        self.run(&|thread| {
            loop {
                let i = next.fetch_add(1, Ordering::Relaxed);
                if i >= count {
                    return;
                }
                task(thread, i);
            }
        });
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.quit.store(true, Ordering::Release);
        self.shared.epoch.fetch_add(1, Ordering::Release);
        for worker in self.workers.drain(..) {
            worker.thread().unpark();
            let _ = worker.join();
        }
    }
}

/// Spin for a moment, then sleep until woken, until `done`.
fn wait(done: impl Fn() -> bool) {
    for _ in 0..SPINS {
        if done() {
            return;
        }
        std::hint::spin_loop();
    }
    while !done() {
        std::thread::park();
    }
}

fn work(shared: &Shared, index: usize) {
    let mut seen = 0;
    loop {
        wait(|| shared.epoch.load(Ordering::Acquire) != seen);
        seen = shared.epoch.load(Ordering::Acquire);
        if shared.quit.load(Ordering::Acquire) {
            return;
        }
        // SAFETY: `epoch` was released after `job` was written, and the owner waits until `running` is 0.
        if let Some(job) = unsafe { *shared.job.get() }
            && catch_unwind(AssertUnwindSafe(|| job(index))).is_err()
        {
            shared.panicked.store(true, Ordering::Relaxed);
        }
        let owner = shared.owner.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if shared.running.fetch_sub(1, Ordering::Release) == 1
            && let Some(owner) = owner
        {
            owner.unpark();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_is_done_once() {
        for threads in [1, 2, 5] {
            let pool = Pool::new(threads);
            for count in [0, 1, 2, 7, 1000] {
                let hits: Vec<AtomicUsize> = (0..count).map(|_| AtomicUsize::new(0)).collect();
                pool.each(count, &|thread, i| {
                    assert!(thread < threads);
                    hits[i].fetch_add(1, Ordering::Relaxed);
                });
                assert!(hits.iter().all(|h| h.load(Ordering::Relaxed) == 1));
            }
        }
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_goes_on() {
        let pool = Pool::new(3);
        for bad in 0..3 {
            let outcome = catch_unwind(AssertUnwindSafe(|| pool.run(&|thread| assert_ne!(thread, bad))));
            assert!(outcome.is_err());
            pool.run(&|_| {});
        }
    }

    #[test]
    fn many_short_jobs_after_a_pause() {
        let pool = Pool::new(4);
        let sum = AtomicUsize::new(0);
        for round in 0..2000 {
            if round % 500 == 0 {
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
            pool.run(&|thread| {
                sum.fetch_add(thread, Ordering::Relaxed);
            });
        }
        assert_eq!(sum.load(Ordering::Relaxed), 2000 * 6);
    }
}
