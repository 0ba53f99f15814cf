//! The limit of the machine, measured: products in registers on all threads. And whether the machine is ours at the moment.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use super::gemm::Kernel;
use super::{Cpu, ProductType};

/// Operations a second, in thousand millions, of a loop that touches registers only, for some 20 milliseconds on all
/// threads of `cpu` at once.
pub fn peak_gflops(cpu: &Cpu, number: ProductType) -> f64 {
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

/// Tells runs that nobody disturbed from others. On a rented machine a core's other thread may belong to somebody else: then loads from
/// L1 no longer keep up with the products, or the products themselves get slower.
pub struct Stillness<'a> {
    cpu: &'a Cpu,
    registers: unsafe fn(usize) -> u64,
    near: unsafe fn(usize) -> u64,
    /// The most that a thread has reached in registers.
    most: f64,
}

impl<'a> Stillness<'a> {
    /// For the path of `cpu`, if it is one that can be told.
    pub fn new(cpu: &'a Cpu) -> Option<Stillness<'a>> {
        let near = Kernel::near_peak_loop(cpu.isa(), cpu.number())?;
        // SAFETY: the path was tried before a `Cpu` on it was made.
        let registers = unsafe { Kernel::peak_loop(cpu.isa(), cpu.number()) };
        Some(Stillness { cpu, registers, near, most: 0.0 })
    }

    /// Whether all threads have their cores for themselves, found out in some ten microseconds; and the peak of all of them.
    pub fn now(&mut self) -> (bool, f64) {
        let (speeds, near_holds) = (AtomicU64::new(0), AtomicBool::new(true));
        let slowest = AtomicU64::new(u64::MAX);
        let (registers, near) = (self.registers, self.near);
        self.cpu.pool().run(&|_| {
            let speed = |peak: unsafe fn(usize) -> u64, turns: usize| {
                let start = Instant::now();
                // SAFETY: as above.
                let operations = unsafe { peak(turns) };
                operations as f64 / start.elapsed().as_secs_f64()
            };
            speed(near, 64);
            let (peak, near) = (speed(registers, 256), speed(near, 128));
            speeds.fetch_add(peak as u64, Ordering::Relaxed);
            slowest.fetch_min(peak as u64, Ordering::Relaxed);
            if near < 0.93 * peak {
                near_holds.store(false, Ordering::Relaxed);
            }
        });
        let slowest = slowest.into_inner() as f64;
        self.most = self.most.max(slowest);
        (near_holds.into_inner() && slowest > 0.75 * self.most, speeds.into_inner() as f64 / 1e9)
    }
}

/// Move this thread to the next of the cores that the process had when it began.
#[cfg(target_os = "linux")]
pub fn next_core() {
    use std::sync::OnceLock;
    use std::sync::atomic::AtomicUsize;
    static CORES: OnceLock<Vec<usize>> = OnceLock::new();
    static TURN: AtomicUsize = AtomicUsize::new(0);
    // SAFETY: the sets are as large as is said, and a refusal changes nothing.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        let bytes = std::mem::size_of_val(&set);
        let cores = CORES.get_or_init(|| {
            libc::sched_getaffinity(0, bytes, &mut set);
            (0..libc::CPU_SETSIZE as usize).filter(|&i| libc::CPU_ISSET(i, &set)).collect()
        });
        if cores.len() > 1 {
            let mut one: libc::cpu_set_t = std::mem::zeroed();
            libc::CPU_SET(cores[TURN.fetch_add(1, Ordering::Relaxed) % cores.len()], &mut one);
            libc::sched_setaffinity(0, bytes, &one);
        }
    }
}

/// Elsewhere a thread stays where it is.
#[cfg(not(target_os = "linux"))]
pub fn next_core() {}
