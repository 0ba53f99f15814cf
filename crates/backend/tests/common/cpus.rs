//! Every way in which this processor can compute: instruction paths, precisions, numbers of threads.

use std::sync::{Arc, OnceLock};

use impasto_backend::cpu::{Cpu, CpuOptions, Isa, Precision};

use super::machine::{Factors, Machine};

/// All cases are tried.
pub fn every(_product: bool) -> usize {
    1
}

/// Matrix tiles in software, where the processor has everything else that their path needs.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn emulated(isa: Isa, options: &CpuOptions) -> Option<Cpu> {
    // Each trap costs a microsecond or two: one number of threads will do.
    let once = options.precision == Precision::Bf16 && options.threads == Some(2);
    let vectors = Isa::Avx512Bf16.claimed() && std::arch::is_x86_feature_detected!("avx512vbmi");
    let helps = isa == Isa::Amx && vectors && once;
    helps.then(|| {
        super::amx::install();
        // SAFETY: the processor has the vectors, and the handler has the tiles.
        unsafe { Cpu::assumed(isa, options) }
    })
}

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
fn emulated(_: Isa, _: &CpuOptions) -> Option<Cpu> {
    None
}

/// Every path that the processor claims, in both precisions, with 1, 2 and 3 threads.
pub fn machines() -> &'static [Machine] {
    static MACHINES: OnceLock<Vec<Machine>> = OnceLock::new();
    MACHINES.get_or_init(|| {
        let mut machines = vec![];
        for isa in Isa::ALL {
            for (precision, threads) in
                [Precision::F32, Precision::Bf16].into_iter().flat_map(|p| [1, 2, 3].map(|t| (p, t)))
            {
                let options = CpuOptions { threads: Some(threads), precision, ..CpuOptions::default() };
                let cpu = Cpu::untried(isa, &options).or_else(|| emulated(isa, &options));
                let factors = if precision == Precision::Bf16 { Factors::Bf16 } else { Factors::F32 };
                machines.extend(cpu.map(|cpu| Machine {
                    backend: Arc::new(cpu),
                    name: isa.to_string(),
                    factors,
                    threads,
                    least: 0.0,
                }));
            }
        }
        machines
    })
}
