//! The instruction paths of the CPU, and which of them this machine really has.
//!
//! Flags are not trusted: a path is believed after it has computed a small product rightly in a child process. Where
//! no child can be started (the program's `main` does not begin with the hook) flags decide, and AMX is not used.

use std::fmt;
use std::str::FromStr;
use std::sync::OnceLock;

use serde::{Deserialize, Serialize};

use impasto_device::{Trial, TrialOptions, TrialReport, Verdict, trial};

use crate::BackendError;

/// A set of instructions that products are computed with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Isa {
    /// Whatever the compiler makes of plain Rust.
    Portable,
    /// 256-bit vectors with fused multiply-add.
    Avx2,
    /// 512-bit vectors.
    Avx512,
    /// 512-bit vectors with products of bf16 pairs.
    Avx512Bf16,
    /// Matrix tiles of bf16.
    Amx,
}

impl Isa {
    /// Every path, the fastest first.
    pub const ALL: [Isa; 5] = [Isa::Amx, Isa::Avx512Bf16, Isa::Avx512, Isa::Avx2, Isa::Portable];

    /// The name in `IMPASTO_CPU`.
    pub const fn name(self) -> &'static str {
        match self {
            Isa::Portable => "portable",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
            Isa::Avx512Bf16 => "avx512bf16",
            Isa::Amx => "amx",
        }
    }

    /// Whether products of bf16 numbers are an instruction here.
    pub const fn has_bf16(self) -> bool {
        matches!(self, Isa::Avx512Bf16 | Isa::Amx)
    }

    /// Whether this processor multiplies bf16 faster than f32. Matrix tiles do, and AMD's vectors, twice as fast; Intel's take twice as long
    /// over the instruction (docs/cpu.md). Known by the maker and not measured: bits of pictures depend on it, and must not depend on what
    /// else the machine does.
    pub(super) fn bf16_pays(self) -> bool {
        match self {
            Isa::Amx => true,
            Isa::Avx512Bf16 => made_by(b"AuthenticAMD"),
            Isa::Avx512 | Isa::Avx2 | Isa::Portable => false,
        }
    }

    /// Whether the processor's flags claim this path, and the system has switched it on for this process.
    pub fn claimed(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::is_x86_feature_detected as has;
            let avx2 = has!("avx2") && has!("fma") && has!("f16c");
            let avx512 = avx2 && has!("avx512f") && has!("avx512bw") && has!("avx512dq") && has!("avx512vl");
            match self {
                Isa::Portable => true,
                Isa::Avx2 => avx2,
                Isa::Avx512 => avx512,
                Isa::Avx512Bf16 => avx512 && has!("avx512bf16"),
                // Every processor with matrix tiles has bytes permuted by vectors, too.
                Isa::Amx => avx512 && has!("avx512bf16") && has!("avx512vbmi") && super::gemm::amx::claimed(),
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        {
            self == Isa::Portable
        }
    }

    fn trial_name(self) -> &'static str {
        match self {
            Isa::Portable => "cpu-portable",
            Isa::Avx2 => "cpu-avx2",
            Isa::Avx512 => "cpu-avx512",
            Isa::Avx512Bf16 => "cpu-avx512bf16",
            Isa::Amx => "cpu-amx",
        }
    }
}

/// Whether the processor says that this is who made it.
fn made_by(maker: &[u8; 12]) -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        let says = std::arch::x86_64::__cpuid(0);
        [says.ebx, says.edx, says.ecx].map(u32::to_le_bytes).as_flattened() == maker
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = maker;
        false
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Isa {
    type Err = BackendError;

    fn from_str(text: &str) -> Result<Isa, BackendError> {
        Isa::ALL.into_iter().find(|isa| isa.name() == text).ok_or_else(|| {
            let names: Vec<_> = Isa::ALL.iter().map(|isa| isa.name()).collect();
            BackendError::Setting(format!(
                "IMPASTO_CPU='{text}' is no instruction path; there are {} (unset it to let the program choose)",
                names.join(", ")
            ))
        })
    }
}

/// The trials of the instruction paths, for the hook in `main`.
pub const TRIALS: [Trial; 4] = [
    Trial { name: "cpu-amx", run: |report| try_out(Isa::Amx, report) },
    Trial { name: "cpu-avx512bf16", run: |report| try_out(Isa::Avx512Bf16, report) },
    Trial { name: "cpu-avx512", run: |report| try_out(Isa::Avx512, report) },
    Trial { name: "cpu-avx2", run: |report| try_out(Isa::Avx2, report) },
];

/// In the child: a product of awkward size on this path, compared with plain arithmetic.
fn try_out(isa: Isa, report: &mut TrialReport) -> Result<(), String> {
    report.stage("flags");
    if !isa.claimed() {
        return Err("the processor or the system does not offer it".into());
    }
    report.stage("product");
    super::gemm::self_test(isa)?;
    report.stage("weights");
    super::attention::self_test(isa)
}

/// What was found out about a path.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The path.
    pub isa: Isa,
    /// Whether it is used.
    pub usable: bool,
    /// Why, in a sentence.
    pub reason: String,
}

/// Which paths can be used here. Found out once for each process, in a few milliseconds.
pub fn findings() -> &'static [Finding] {
    static FOUND: OnceLock<Vec<Finding>> = OnceLock::new();
    FOUND.get_or_init(|| Isa::ALL.into_iter().map(find_out).collect())
}

fn find_out(isa: Isa) -> Finding {
    let finding = |usable, reason: String| Finding { isa, usable, reason };
    if isa == Isa::Portable {
        return finding(true, "works everywhere".into());
    }
    if !isa.claimed() {
        return finding(false, "the processor or the system does not offer it".into());
    }
    let outcome = trial(isa.trial_name(), &TrialOptions::default());
    match outcome.verdict {
        Verdict::Passed => finding(true, "passed its trial".into()),
        Verdict::NoHook if isa != Isa::Amx => {
            finding(true, "claimed by the processor; not tried, since this program has no trial hook".into())
        }
        _ => finding(false, outcome.to_string()),
    }
}

/// The path to use: the one that is forced, else the fastest that passed.
pub(super) fn choose(forced: Option<Isa>) -> Result<Isa, BackendError> {
    match forced {
        None => Ok(findings().iter().find(|f| f.usable).map_or(Isa::Portable, |f| f.isa)),
        Some(isa) => match findings().iter().find(|f| f.isa == isa) {
            Some(f) if !f.usable => {
                Err(BackendError::Setting(format!("the instruction path {isa} cannot be used here: {}", f.reason)))
            }
            _ => Ok(isa),
        },
    }
}
