//! The Vulkan backend.
//!
//! The way of a plan: `weights` packs parameters, `session` prepares each step (`linear`, `conv`, `attention`, `norm`, `elementwise`,
//! `movement`, `lookup`) as runs of kernels and writes them down once. Kernels are written in our own language (`kernels`), for one shape
//! each, and compiled by our own compiler (`pipelines`).

mod attention;
mod conv;
mod elementwise;
pub mod kernels;
mod linear;
mod lookup;
mod memory;
mod movement;
mod norm;
mod pipelines;
mod session;
mod weights;

use std::path::PathBuf;
use std::sync::Arc;

use impasto_graph::{Capabilities, DType, Graph, Limits, Op, Plan, Used, Value};
use impasto_vulkan::{Device, Physical, VulkanError};

use crate::{Backend, BackendError, Session, WeightSource, Weights};
use pipelines::Pipelines;

/// How a Vulkan device is to be used.
#[derive(Clone, Debug, Default)]
pub struct VulkanOptions {
    /// Compute in 32-bit floats also where the device has smaller ones.
    pub exact: bool,
    /// Memory that plans may use; by default what the device says it has.
    pub memory: Option<u64>,
    /// The largest single piece of memory and the largest binding; by default what the device allows.
    pub max_buffer: Option<u64>,
    /// Where compiled kernels are kept between runs; by default nowhere.
    pub cache: Option<PathBuf>,
}

/// A Vulkan device. Cheap to clone; clones are the same device.
#[derive(Clone)]
pub struct Vulkan(Arc<Inner>);

struct Inner {
    name: String,
    label: String,
    device: Device,
    limits: Limits,
    /// What products multiply, and what flows between layers.
    number: DType,
    pipelines: Pipelines,
}

impl Vulkan {
    /// Opens a device under a name. Only after `impasto_device` has tried it in a child: a driver can crash here.
    pub fn open(name: &str, physical: &Physical, options: &VulkanOptions) -> Result<Vulkan, BackendError> {
        let told = physical.describe();
        let device = Device::open(physical).map_err(|e| failed(name, 0, e))?;
        let features = device.features();
        if !features.timeline {
            let reason = format!("it speaks Vulkan {}.{}, 1.2 is needed", features.version.0, features.version.1);
            return Err(BackendError::Unsupported { device: name.into(), reason });
        }
        let most = options.max_buffer.unwrap_or(u64::MAX);
        let limits = Limits {
            memory: options.memory.unwrap_or(told.memory),
            max_allocation: told.max_allocation.min(most),
            max_binding: features.limits.binding.min(most),
        };
        let number = if features.storage16 && !options.exact { DType::F16 } else { DType::F32 };
        let pipelines = Pipelines::new(device.clone(), options.cache.as_deref());
        let label = told.label;
        Ok(Vulkan(Arc::new(Inner { name: name.into(), label, device, limits, number, pipelines })))
    }

    /// What products multiply, and what flows between layers.
    pub fn number(&self) -> DType {
        self.0.number
    }

    fn device(&self) -> &Device {
        &self.0.device
    }

    fn failed(&self, bytes: u64, error: VulkanError) -> BackendError {
        failed(&self.0.name, bytes, error)
    }

    fn unsupported(&self, reason: impl Into<String>) -> BackendError {
        BackendError::Unsupported { device: self.0.name.clone(), reason: reason.into() }
    }
}

fn failed(device: &str, bytes: u64, error: VulkanError) -> BackendError {
    let device = device.to_owned();
    match error {
        e if e.is_exhausted() => BackendError::Exhausted { device, bytes },
        e if e.is_lost() => BackendError::Lost { device, reason: e.to_string() },
        e => BackendError::Unsupported { device, reason: e.to_string() },
    }
}

impl Capabilities for Vulkan {
    fn limits(&self) -> Limits {
        self.0.limits
    }

    fn alignment(&self) -> u64 {
        self.device().features().limits.alignment.max(64)
    }

    fn supports(&self, graph: &Graph, value: Value) -> Result<(), String> {
        let node = graph.node(value);
        let small = !self.device().features().storage16;
        for ty in graph.operand_types(value).into_iter().chain([&node.ty]) {
            if small && ty.dtype.bytes() == 2 {
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
        Ok(())
    }

    fn scratch_bytes(&self, graph: &Graph, value: Value) -> u64 {
        match graph.node(value).op {
            Op::GroupNorm { .. } => norm::group_norm_scratch(self, graph, value),
            _ => 0,
        }
    }

    fn may_overwrite(&self, graph: &Graph, value: Value, operand: usize) -> bool {
        let node = graph.node(value);
        match node.op {
            Op::Linear { fused } | Op::Conv2d { fused, .. } => fused.residual && operand + 1 == node.inputs.len(),
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
}

impl Backend for Vulkan {
    fn name(&self) -> &str {
        &self.0.name
    }

    fn about(&self) -> String {
        format!("{}, {}", self.0.label, self.0.number)
    }

    fn activations(&self) -> DType {
        self.0.number
    }

    fn pack(&self, graph: &Graph, plan: &Plan, source: &dyn WeightSource) -> Result<Weights, BackendError> {
        let weights = weights::VulkanWeights::new(self, graph, plan, source)?;
        Ok(Weights::new(weights.bytes(), weights))
    }

    fn prepare(&self, graph: &Graph, plan: &Plan, weights: &Weights) -> Result<Box<dyn Session>, BackendError> {
        Ok(Box::new(session::VulkanSession::new(self, graph, plan, weights)?))
    }
}
