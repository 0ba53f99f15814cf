//! A Vulkan device as planning sees it: plain data, so that plans can be made before its driver is opened, or for one that is not here.

use std::sync::Arc;

use impasto_graph::{Capabilities, DType, Graph, Limits, Op, Used, Value, Weight};
use impasto_vulkan::{Description, Features};

use super::gated::Ungated;
use super::kernels::matrices::Units;
use super::{VulkanOptions, attention, linear, norm, units, weights};
use crate::{BackendError, Profile, WeightSource};

/// The most bytes that go through the host's piece at a time where the device has memory of its own, and the fewest.
const MOST_STAGED: u64 = 32 << 20;
const LEAST_STAGED: u64 = 1 << 20;

/// All that planning needs to know of a Vulkan device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VulkanProfile {
    name: String,
    label: String,
    limits: Limits,
    features: Features,
    exact: bool,
    /// Matrix units that kernels use.
    units: Option<Units>,
    as_if_discrete: bool,
}

impl VulkanProfile {
    /// The profile of a device with these limits and features. `impasto_device::survey` records both.
    pub fn new(
        name: &str,
        label: &str,
        limits: Limits,
        features: &Features,
        options: &VulkanOptions,
    ) -> Result<VulkanProfile, BackendError> {
        if !features.timeline {
            let reason = format!("it speaks Vulkan {}.{}, 1.2 is needed", features.version.0, features.version.1);
            return Err(BackendError::Unsupported { device: name.into(), reason });
        }
        let most = options.max_buffer.unwrap_or(u64::MAX);
        let limits = Limits {
            memory: options.memory.map_or(limits.memory, |memory| memory.min(limits.memory)),
            max_allocation: limits.max_allocation.min(most),
            max_binding: limits.max_binding.min(most),
        };
        let (name, label, exact) = (name.into(), label.into(), options.exact);
        let units = if exact { None } else { units::claimed(features) };
        let (features, as_if_discrete) = (features.clone(), options.as_if_discrete);
        Ok(VulkanProfile { name, label, limits, features, exact, units, as_if_discrete })
    }

    /// The same without matrix units, where they do not compute what they should.
    pub fn without_units(self) -> VulkanProfile {
        VulkanProfile { units: None, ..self }
    }

    /// Whether kernels use matrix units.
    pub fn has_units(&self) -> bool {
        self.units.is_some()
    }

    /// One parameter as the device keeps it.
    pub fn pack_one(&self, graph: &Graph, weight: &Weight, source: &dyn WeightSource) -> Result<Vec<u8>, BackendError> {
        weights::packed(self, graph, weight, source)
    }

    /// The same in 32-bit floats; none if it computes so already.
    pub fn exactly(self) -> Option<VulkanProfile> {
        (self.number() != DType::F32).then_some(VulkanProfile { exact: true, units: None, ..self })
    }

    /// The matrix units that kernels use.
    pub(super) fn units(&self) -> Option<Units> {
        self.units
    }

    /// Whether to go the way of a device whose memory the host does not see.
    pub(super) fn is_as_if_discrete(&self) -> bool {
        self.as_if_discrete
    }

    /// The profile of a device by its driver's word.
    pub fn of(name: &str, told: &Description, options: &VulkanOptions) -> Result<VulkanProfile, BackendError> {
        VulkanProfile::new(name, &told.label, impasto_device::vulkan_limits(told), &told.features, options)
    }

    /// Whether host and device share their memory.
    fn is_unified(&self) -> bool {
        self.features.visible && self.features.cached && !self.as_if_discrete
    }

    /// What products multiply, and what flows between layers.
    pub(super) fn number(&self) -> DType {
        if self.features.storage16 && !self.exact { DType::F16 } else { DType::F32 }
    }

    pub(super) fn features(&self) -> &Features {
        &self.features
    }
}

impl Capabilities for VulkanProfile {
    fn limits(&self) -> Limits {
        self.limits
    }

    fn alignment(&self) -> u64 {
        self.features.limits.alignment.max(64)
    }

    fn supports(&self, graph: &Graph, value: Value) -> Result<(), String> {
        let node = graph.node(value);
        for ty in graph.operand_types(value).into_iter().chain([&node.ty]) {
            if !self.features.storage16 && ty.dtype.bytes() == 2 {
                return Err(format!(
                    "the device keeps no numbers of 16 bits in memory, and one of its tensors is {ty}"
                ));
            }
            if ty.elements() > u32::MAX.into() {
                return Err(format!("{ty} has more elements than a kernel can count"));
            }
        }
        if matches!(node.op, Op::Linear { .. } | Op::Conv2d { .. }) {
            let need = graph.ty(node.inputs[1]).elements() * self.number().bytes();
            let limit = self.limits().max_binding;
            if need > limit {
                return Err(format!("its weights have {need} bytes, a kernel can reach {limit}"));
            }
        }
        if let Some(ty) = Ungated::of(self, graph, value).map(|ungated| ungated.ty()) {
            let limit = self.limits().max_binding;
            if ty.elements() > u32::MAX.into() || ty.bytes() > limit {
                return Err(format!(
                    "its product before GEGLU is {ty}, more than a kernel can count or reach ({limit} bytes)"
                ));
            }
        }
        Ok(())
    }

    fn scratch_bytes(&self, graph: &Graph, value: Value) -> u64 {
        match graph.node(value).op {
            Op::Attention { .. } => attention::scratch(self, graph, value),
            Op::GroupNorm { .. } => norm::group_norm_scratch(self, graph, value),
            Op::NormFactors { .. } => norm::factors_scratch(self, graph, value),
            Op::Linear { .. } | Op::MatMul { .. } | Op::Conv2d { .. } => linear::scratch(self, graph, value),
            _ => 0,
        }
    }

    fn may_overwrite(&self, graph: &Graph, value: Value, operand: usize) -> bool {
        let node = graph.node(value);
        match node.op {
            Op::Linear { fused, .. } | Op::Conv2d { fused, .. } => fused.residual && operand + 1 == node.inputs.len(),
            // Each invocation reads an element, or the statistics of its row, before it writes there.
            Op::GroupNorm { .. }
            | Op::Normalise { .. }
            | Op::LayerNorm { .. }
            | Op::RmsNorm { .. }
            | Op::Softmax
            | Op::Rotary { .. } => operand == 0,
            Op::Unary(_) | Op::Binary(_) | Op::Affine { .. } | Op::Cast => {
                graph.ty(node.inputs[operand]).shape == node.ty.shape
            }
            _ => false,
        }
    }

    fn param_bytes(&self, graph: &Graph, param: Value, used: Used) -> u64 {
        weights::param_bytes(self, graph, param, used)
    }

    /// The two pieces by which the host reaches a device with memory of its own.
    fn fixed_bytes(&self) -> u64 {
        if self.is_unified() {
            return 0;
        }
        let share = (self.limits.memory / 16).clamp(LEAST_STAGED, MOST_STAGED) / 2;
        2 * (share.min(self.limits.max_allocation) / self.alignment() * self.alignment())
    }

    fn host_memory(&self) -> u64 {
        if self.is_unified() { 0 } else { impasto_device::cpu::memory().map_or(0, |memory| memory.limit) }
    }
}

impl Profile for VulkanProfile {
    fn name(&self) -> &str {
        &self.name
    }

    fn about(&self) -> String {
        let units = if self.units.is_some() { ", matrix units" } else { "" };
        format!("{}, {}{units}", self.label, self.number())
    }

    fn activations(&self) -> DType {
        self.number()
    }

    fn profile_in_f32(&self) -> Option<Arc<dyn Profile>> {
        Some(Arc::new(self.clone().exactly()?))
    }
}
