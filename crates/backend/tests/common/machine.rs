//! Every way in which this computer can compute: instruction paths, precisions, numbers of threads.

use std::fmt;
use std::sync::OnceLock;

use impasto_backend::cpu::{Cpu, CpuOptions, Isa, Precision};
use impasto_backend::{Backend, Session};
use impasto_graph::{HostTensor, Plan};

use super::case::{Case, bytes, tensor};

pub struct Machine {
    pub cpu: Cpu,
    pub isa: Isa,
    pub precision: Precision,
    pub threads: usize,
}

impl Machine {
    pub fn bf16(&self) -> bool {
        self.precision == Precision::Bf16
    }

    /// Path and precision: what decides the result.
    pub fn path(&self) -> String {
        format!("{} {}", self.isa, if self.bf16() { "bf16" } else { "f32" })
    }

    /// Plan a case, load its parameters and take its memory.
    pub fn prepare(&self, case: &Case) -> Box<dyn Session> {
        let plan = Plan::new(&case.graph, &self.cpu).expect("the CPU can do everything");
        plan.verify(&case.graph, &self.cpu).expect("the plan is right");
        let weights = self.cpu.pack(&case.graph, &plan, case).expect("the parameters are all there");
        let session = self.cpu.prepare(&case.graph, &plan, &weights).expect("there is memory");
        assert_eq!(weights.bytes(), plan.weight_bytes(), "parameters take what was planned");
        assert_eq!(session.allocated_bytes(), plan.arena_bytes(), "a session takes what was planned");
        session
    }

    /// The results of a case. Another run goes before, whose inputs are no numbers: memory is full of NaN then, and
    /// whatever reads more than it should, or adds zero times nothing in particular, shows it.
    pub fn run(&self, case: &Case) -> Vec<HostTensor> {
        let mut session = self.prepare(case);
        let poison: Vec<_> = case.inputs().into_iter().map(|(name, x)| (name, poisoned(x))).collect();
        let poison: Vec<_> = poison.iter().map(|(name, x)| (*name, x)).collect();
        session.run_to_new(&poison).expect("the inputs are all there");
        session.run_to_new(&case.inputs()).expect("the inputs are all there")
    }
}

/// NaN, or an id that no table has, everywhere.
fn poisoned(x: &HostTensor) -> HostTensor {
    let value = if x.ty().dtype.is_float() { f64::NAN } else { i32::MAX.into() };
    tensor(x.shape(), x.ty().dtype, (0..x.ty().elements()).map(|_| value))
}

/// Bit for bit, NaN included.
pub fn same_bits(a: &[HostTensor], b: &[HostTensor]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.ty() == b.ty() && bytes(a) == bytes(b))
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {} threads", self.path(), self.threads)
    }
}

/// Matrix tiles in software, where the processor has everything else that their path needs.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn emulated(isa: Isa, options: &CpuOptions) -> Option<Cpu> {
    // Each trap costs a microsecond or two: one number of threads will do.
    let once = options.precision == Precision::Bf16 && options.threads == Some(2);
    let helps = isa == Isa::Amx && Isa::Avx512Bf16.claimed() && once;
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
                machines.extend(cpu.map(|cpu| Machine { cpu, isa, precision, threads }));
            }
        }
        machines
    })
}
