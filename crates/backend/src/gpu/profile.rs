//! A GPU as planning sees it: plain data, so that plans can be made before its driver is opened, or for one that is not here.

use std::sync::Arc;

use impasto_graph::{Capabilities, DType, Graph, Limits, Op, Used, Value, Weight};

use super::gated::Ungated;
use super::kernels::matrices::Units;
use super::{attention, linear, norm, weights};
use crate::session::may_overwrite;
use crate::{AlignedBytes, BackendError, DeviceOptions, Profile, WeightSource};

/// The most bytes that are staged in host memory at a time where the device has memory of its own, and the fewest.
const MOST_STAGED: u64 = 32 << 20;
const LEAST_STAGED: u64 = 1 << 20;

/// All that planning needs to know of a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuProfile {
    pub(crate) name: String,
    pub(crate) label: String,
    pub(crate) limits: Limits,
    /// Where a binding may begin.
    pub(crate) alignment: u64,
    /// Elements of 16 bits in memory.
    pub(crate) storage16: bool,
    /// Whether host and device share their memory, and the host reads it as fast as its own.
    pub(crate) unified: bool,
    /// Numbers of 16 bits are bf16, not f16.
    pub(crate) bf16: bool,
    /// It computes in 32-bit floats, also where it has smaller ones.
    pub(crate) exact: bool,
    /// Matrix units that kernels use.
    pub(crate) units: Option<Units>,
    /// Plans and kernels are verified.
    pub(crate) verifies: bool,
}

impl GpuProfile {
    /// The same within the memory that plans may use by the options.
    pub(crate) fn within(mut self, options: &DeviceOptions) -> GpuProfile {
        let most = options.max_buffer.unwrap_or(u64::MAX);
        self.limits = Limits {
            memory: options.memory.map_or(self.limits.memory, |memory| memory.min(self.limits.memory)),
            max_allocation: self.limits.max_allocation.min(most),
            max_binding: self.limits.max_binding.min(most),
        };
        self
    }

    /// The same without matrix units, where they do not compute what they should.
    pub(crate) fn without_units(self) -> GpuProfile {
        GpuProfile { units: None, ..self }
    }

    /// The same in 32-bit floats; none if it computes so already.
    pub(crate) fn exactly(self) -> Option<GpuProfile> {
        (self.number() != DType::F32).then_some(GpuProfile { exact: true, units: None, ..self })
    }

    /// The matrix units that kernels use.
    pub(crate) fn units(&self) -> Option<Units> {
        self.units
    }

    /// What products multiply, and what flows between layers.
    pub fn number(&self) -> DType {
        match self.storage16 && !self.exact {
            true if self.bf16 => DType::BF16,
            true => DType::F16,
            false => DType::F32,
        }
    }
}

impl Capabilities for GpuProfile {
    fn limits(&self) -> Limits {
        self.limits
    }

    fn alignment(&self) -> u64 {
        self.alignment
    }

    fn supports(&self, graph: &Graph, value: Value) -> Result<(), String> {
        let node = graph.node(value);
        for ty in graph.operand_types(value).into_iter().chain([&node.ty]) {
            if !self.storage16 && ty.dtype.bytes() == 2 {
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
        may_overwrite(graph, value, operand)
    }

    fn param_bytes(&self, graph: &Graph, param: Value, used: Used) -> u64 {
        weights::param_bytes(self, graph, param, used)
    }

    /// The two staging buffers by which the host reaches a device with memory of its own.
    fn fixed_bytes(&self) -> u64 {
        if self.unified {
            return 0;
        }
        let share = (self.limits.memory / 16).clamp(LEAST_STAGED, MOST_STAGED) / 2;
        2 * (share.min(self.limits.max_allocation) / self.alignment() * self.alignment())
    }

    fn host_memory(&self) -> u64 {
        if self.unified { 0 } else { impasto_device::cpu::memory().map_or(0, |memory| memory.limit) }
    }

    fn verifies_plans(&self) -> bool {
        self.verifies
    }
}

impl Profile for GpuProfile {
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

    fn pack_one(
        &self,
        graph: &Graph,
        weight: &Weight,
        source: &dyn WeightSource,
    ) -> Result<AlignedBytes, BackendError> {
        weights::packed(self, graph, weight, source)
    }
}
