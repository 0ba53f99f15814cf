//! The GPUs that modules are written for, and what they have.

use std::fmt;

use impasto_kernel::{Feature, MatrixShape, Scalar, Target, TargetLimits};

/// A generation of GPUs, by the name that PTX has for it. Code for one runs on later ones, but that of `sm_90a`, which runs on 9.0 alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs, reason = "the variants are the names of PTX")]
pub enum PtxTarget {
    Sm75,
    Sm80,
    Sm86,
    Sm89,
    Sm90a,
    Sm100,
    Sm120,
}

/// Sizes of matrix products that are put together from the instruction's own, m16n8k8 and m16n8k16.
const PRODUCTS: [[u32; 3]; 4] = [[16, 16, 16], [16, 8, 16], [16, 8, 8], [32, 8, 16]];

impl PtxTarget {
    /// All of them, the oldest first.
    pub const ALL: [PtxTarget; 7] = [
        PtxTarget::Sm75,
        PtxTarget::Sm80,
        PtxTarget::Sm86,
        PtxTarget::Sm89,
        PtxTarget::Sm90a,
        PtxTarget::Sm100,
        PtxTarget::Sm120,
    ];

    /// The name in a module, and on the command line of `ptxas`.
    pub fn name(self) -> &'static str {
        ["sm_75", "sm_80", "sm_86", "sm_89", "sm_90a", "sm_100", "sm_120"][self as usize]
    }

    /// The best of them for a device of this compute capability; none for one that is older than all.
    ///
    /// ```
    /// use impasto_ptx::PtxTarget;
    /// assert_eq!(PtxTarget::for_device(9, 0), Some(PtxTarget::Sm90a));
    /// assert_eq!(PtxTarget::for_device(10, 3), Some(PtxTarget::Sm100));
    /// assert_eq!(PtxTarget::for_device(7, 0), None);
    /// ```
    pub fn for_device(major: u32, minor: u32) -> Option<PtxTarget> {
        let have = (major, minor);
        let runs = |t: &PtxTarget| *t != PtxTarget::Sm90a && t.capability() <= have || t.capability() == have;
        PtxTarget::ALL.into_iter().rfind(runs)
    }

    /// The compute capability, major and minor.
    pub fn capability(self) -> (u32, u32) {
        [(7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0)][self as usize]
    }

    /// The version of PTX that its modules are written in: the lowest that knows the target and what is used on it. A driver takes its own version
    /// and all lower ones.
    pub fn isa(self) -> (u32, u32) {
        [(7, 0), (7, 0), (7, 1), (7, 8), (8, 0), (8, 6), (8, 7)][self as usize]
    }

    /// Bytes that a workgroup may share.
    pub fn shared_limit(self) -> u32 {
        1024 * [64, 163, 99, 99, 227, 227, 99][self as usize]
    }

    /// What Ampere brought: bf16 in conversions and matrices, products of m16n8k16, sums over a warp in one instruction.
    pub(crate) fn is_ampere(self) -> bool {
        self >= PtxTarget::Sm80
    }

    /// The device in the terms of kernels.
    pub fn target(self) -> Target {
        let limits = TargetLimits {
            workgroup: [1024, 1024, 64],
            invocations: 1024,
            shared: self.shared_limit(),
            // Together with 16 bytes for each buffer below the 4096 bytes that parameters may have.
            constants: 2048,
            buffers: 120,
        };
        let pairs = [(Scalar::F16, Scalar::F32), (Scalar::F16, Scalar::F16), (Scalar::Bf16, Scalar::F32)];
        let mut products = Vec::new();
        for (factor, result) in pairs {
            if factor == Scalar::F16 || self.is_ampere() {
                products.extend(PRODUCTS.map(|[m, n, k]| MatrixShape { factor, result, m, n, k }));
            }
        }
        let has = |f: &&Feature| match f {
            Feature::MatrixBf16 | Feature::AsyncCopy => self.is_ampere(),
            Feature::Warpgroup => self == PtxTarget::Sm90a,
            _ => true,
        };
        Feature::ALL.iter().filter(has).fold(Target::new(limits, products), |target, &f| target.with(f))
    }
}

impl fmt::Display for PtxTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What PTX calls a feature.
pub(crate) fn known_as(feature: Feature) -> &'static str {
    match feature {
        Feature::F16 => "arithmetic on .f16, sm_53",
        Feature::I16 => ".b16",
        Feature::I64 => ".b64",
        Feature::Storage16 | Feature::Constants16 => "ld.b16",
        Feature::Subgroup => "warps",
        Feature::SubgroupVote => "vote.sync",
        Feature::SubgroupArithmetic | Feature::SubgroupBallot | Feature::SubgroupShuffle => "shfl.sync",
        Feature::MemoryModel => "the memory model of PTX 6.0",
        Feature::Matrix => "mma.sync",
        Feature::MatrixBf16 => "mma.sync of .bf16, sm_80",
        Feature::AsyncCopy => "cp.async, sm_80",
        Feature::Warpgroup => "wgmma, sm_90a alone",
        Feature::SignedZerosF16 | Feature::SignedZerosF32 => "arithmetic without .ftz",
    }
}
