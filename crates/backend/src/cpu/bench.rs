//! The limit of the machine, measured: products in registers on all threads.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use super::gemm::Kernel;
use super::{Cpu, Isa, Number};

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

/// Of which one is undisturbed.
const ROUNDS: usize = 24;

/// Whether this processor multiplies bf16 faster than f32: some have the instruction and take twice as long over it.
pub(super) fn bf16_pays(isa: Isa) -> bool {
    static PAYS: OnceLock<bool> = OnceLock::new();
    isa == Isa::Amx
        || *PAYS.get_or_init(|| {
            // SAFETY: the path was tried before it was chosen.
            let peaks = [Number::F32, Number::Bf16].map(|number| unsafe { Kernel::peak_loop(isa, number) });
            // By turns and often: one moment of each in which nothing else runs is enough. Bits of pictures depend on this, and must not
            // depend on what else the machine does; the two differ by a factor of two, whichever it is.
            let mut best = [0.0f64; 2];
            for _ in 0..ROUNDS {
                for (peak, best) in peaks.iter().zip(&mut best) {
                    let start = Instant::now();
                    // SAFETY: as above.
                    let done = unsafe { peak(5_000) };
                    *best = best.max(done as f64 / start.elapsed().as_secs_f64());
                }
            }
            best[1] > best[0]
        })
}
