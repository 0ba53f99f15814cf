//! Features of kernels and what Vulkan and SPIR-V call them.

use impasto_kernel::{Feature, MatrixShape, Scalar, Target, TargetLimits};
use impasto_vulkan::{CooperativeMatrix, VulkanFeatures};
use rspirv::spirv::Capability;

/// Every module is for this version of Vulkan and later ones: the lowest with storage buffers and subgroups. What is younger comes by
/// extensions, which modules name.
pub(crate) const LOWEST: (u32, u32) = (1, 1);

/// The target that an open Vulkan device is.
pub fn target(have: &VulkanFeatures) -> Target {
    let limits = TargetLimits {
        workgroup: have.limits.workgroup,
        invocations: have.limits.invocations,
        shared: have.limits.shared,
        constants: have.limits.constants,
        buffers: have.limits.buffers,
    };
    let has = |feature: &Feature| match feature {
        Feature::F16 => have.f16,
        Feature::I16 => have.i16,
        Feature::I64 => have.i64,
        Feature::Storage16 => have.storage16,
        Feature::Constants16 => have.constants16,
        Feature::Subgroup => have.version >= LOWEST,
        Feature::SubgroupVote => have.subgroup.vote,
        Feature::SubgroupArithmetic => have.subgroup.arithmetic,
        Feature::SubgroupBallot => have.subgroup.ballot,
        Feature::SubgroupShuffle => have.subgroup.shuffle,
        Feature::MemoryModel => have.memory_model,
        Feature::Matrix => have.matrix,
        Feature::MatrixBf16 => have.bf16_matrix,
        Feature::SignedZerosF16 => have.signed_zeros16,
        Feature::SignedZerosF32 => have.signed_zeros32,
        // SPIR-V has no instructions for them.
        Feature::AsyncCopy | Feature::Warpgroup => false,
    };
    let product = |p: &CooperativeMatrix| {
        let scalar = |name: &str| Scalar::ALL.into_iter().find(|s| s.name() == name);
        Some(MatrixShape { factor: scalar(&p.factor)?, result: scalar(&p.result)?, m: p.m, n: p.n, k: p.k })
    };
    let none = Target::new(limits, have.products.iter().filter_map(product).collect());
    Feature::ALL.iter().filter(|f| has(f)).fold(none, |target, &f| target.with(f))
}

/// The capability that a module declares for a feature.
pub(crate) fn capability(feature: Feature) -> Capability {
    match feature {
        Feature::F16 => Capability::Float16,
        Feature::I16 => Capability::Int16,
        Feature::I64 => Capability::Int64,
        Feature::Storage16 => Capability::StorageBuffer16BitAccess,
        Feature::Constants16 => Capability::StoragePushConstant16,
        Feature::Subgroup => Capability::GroupNonUniform,
        Feature::SubgroupVote => Capability::GroupNonUniformVote,
        Feature::SubgroupArithmetic => Capability::GroupNonUniformArithmetic,
        Feature::SubgroupBallot => Capability::GroupNonUniformBallot,
        Feature::SubgroupShuffle => Capability::GroupNonUniformShuffle,
        Feature::MemoryModel => Capability::VulkanMemoryModel,
        Feature::Matrix => Capability::CooperativeMatrixKHR,
        Feature::MatrixBf16 => Capability::BFloat16CooperativeMatrixKHR,
        Feature::SignedZerosF16 | Feature::SignedZerosF32 => Capability::SignedZeroInfNanPreserve,
        // No target has these, so no module asks for them.
        Feature::AsyncCopy | Feature::Warpgroup => Capability::Shader,
    }
}

/// The extension of SPIR-V that a feature came with, if modules must name it.
pub(crate) fn extension(feature: Feature) -> Option<&'static str> {
    match feature {
        Feature::MemoryModel => Some("SPV_KHR_vulkan_memory_model"),
        Feature::Matrix => Some("SPV_KHR_cooperative_matrix"),
        Feature::MatrixBf16 => Some("SPV_KHR_bfloat16"),
        // Modules ask for both in one word.
        Feature::SignedZerosF32 => Some("SPV_KHR_float_controls"),
        _ => None,
    }
}

/// What Vulkan calls a feature.
pub(crate) fn known_as(feature: Feature) -> &'static str {
    match feature {
        Feature::F16 => "shaderFloat16",
        Feature::I16 => "shaderInt16",
        Feature::I64 => "shaderInt64",
        Feature::Storage16 => "storageBuffer16BitAccess",
        Feature::Constants16 => "storagePushConstant16",
        Feature::Subgroup => "Vulkan 1.1",
        Feature::SubgroupVote => "VK_SUBGROUP_FEATURE_VOTE_BIT",
        Feature::SubgroupArithmetic => "VK_SUBGROUP_FEATURE_ARITHMETIC_BIT",
        Feature::SubgroupBallot => "VK_SUBGROUP_FEATURE_BALLOT_BIT",
        Feature::SubgroupShuffle => "VK_SUBGROUP_FEATURE_SHUFFLE_BIT",
        Feature::MemoryModel => "vulkanMemoryModel",
        Feature::Matrix => "VK_KHR_cooperative_matrix",
        Feature::MatrixBf16 => "VK_KHR_shader_bfloat16",
        Feature::SignedZerosF16 => "shaderSignedZeroInfNanPreserveFloat16",
        Feature::SignedZerosF32 => "shaderSignedZeroInfNanPreserveFloat32",
        Feature::AsyncCopy | Feature::Warpgroup => "which Vulkan has not",
    }
}
