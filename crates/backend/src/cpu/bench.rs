//! The limit of the machine, measured: products in registers on all threads.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use super::gemm::Kernel;
use super::{Cpu, Number};

/// Operations a second, in thousand millions, of a loop that touches registers only, on all threads of `cpu` at once.
/// The best of several short runs: whatever else the machine does can only slow it down.
pub fn peak_gflops(cpu: &Cpu, number: Number) -> f64 {
    let isa = cpu.isa();
    // SAFETY: the path was tried before a `Cpu` on it was made.
    let peak = unsafe { Kernel::peak_loop(isa, number) };
    (0..5)
        .map(|_| {
            let operations = AtomicU64::new(0);
            let start = Instant::now();
            cpu.pool().run(&|_| {
                let mut done = 0;
                while start.elapsed().as_millis() < 40 {
                    // SAFETY: as above.
                    done += unsafe { peak(20_000) };
                }
                operations.fetch_add(done, Ordering::Relaxed);
            });
            operations.load(Ordering::Relaxed) as f64 / start.elapsed().as_secs_f64() / 1e9
        })
        .fold(0.0, f64::max)
}
