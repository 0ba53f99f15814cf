//! The limit of the machine, measured: products in registers on all threads.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use super::gemm::Kernel;
use super::{Cpu, Number};

/// Operations a second, in thousand millions, of a loop that touches registers only, for some 20 milliseconds on all
/// threads of `cpu` at once.
pub fn peak_gflops(cpu: &Cpu, number: Number) -> f64 {
    // SAFETY: the path was tried before a `Cpu` on it was made.
    let peak = unsafe { Kernel::peak_loop(cpu.isa(), number) };
    let operations = AtomicU64::new(0);
    let start = Instant::now();
    cpu.pool().run(&|_| {
        let mut done = 0;
        while start.elapsed().as_millis() < 20 {
            // SAFETY: as above.
            done += unsafe { peak(20_000) };
        }
        operations.fetch_add(done, Ordering::Relaxed);
    });
    operations.load(Ordering::Relaxed) as f64 / start.elapsed().as_secs_f64() / 1e9
}
