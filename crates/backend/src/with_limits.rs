//! A device of which less may be used than it has.

use std::sync::Arc;

use impasto_graph::{Capabilities, DType, Graph, Limits, Used, Value, Weight};

use crate::{AlignedBytes, BackendError, Profile, WeightSource};

/// A device as planning sees it, within other limits than its own.
pub struct WithLimits {
    /// The device.
    pub device: Arc<dyn Profile>,
    /// What may be used of it.
    pub limits: Limits,
    /// What it is called: the device's own name, unless both are used beside each other.
    pub name: String,
}

impl WithLimits {
    /// A device within these limits, under its own name.
    pub fn new(device: Arc<dyn Profile>, limits: Limits) -> WithLimits {
        let name = device.name().into();
        WithLimits { device, limits, name }
    }
}

impl Capabilities for WithLimits {
    fn limits(&self) -> Limits {
        self.limits
    }

    fn alignment(&self) -> u64 {
        self.device.alignment()
    }

    fn supports(&self, graph: &Graph, value: Value) -> Result<(), String> {
        self.device.supports(graph, value)
    }

    fn scratch_bytes(&self, graph: &Graph, value: Value) -> u64 {
        self.device.scratch_bytes(graph, value)
    }

    fn may_overwrite(&self, graph: &Graph, value: Value, operand: usize) -> bool {
        self.device.may_overwrite(graph, value, operand)
    }

    fn param_bytes(&self, graph: &Graph, param: Value, used: Used) -> u64 {
        self.device.param_bytes(graph, param, used)
    }

    fn fixed_bytes(&self) -> u64 {
        self.device.fixed_bytes()
    }

    fn host_memory(&self) -> u64 {
        self.device.host_memory()
    }

    fn verifies_plans(&self) -> bool {
        self.device.verifies_plans()
    }
}

impl Profile for WithLimits {
    fn name(&self) -> &str {
        &self.name
    }

    fn about(&self) -> String {
        self.device.about()
    }

    fn activations(&self) -> DType {
        self.device.activations()
    }

    fn profile_in_f32(&self) -> Option<Arc<dyn Profile>> {
        let device = self.device.profile_in_f32()?;
        Some(Arc::new(WithLimits { device, limits: self.limits, name: self.name.clone() }))
    }

    fn pack_one(
        &self,
        graph: &Graph,
        weight: &Weight,
        source: &dyn WeightSource,
    ) -> Result<AlignedBytes, BackendError> {
        self.device.pack_one(graph, weight, source)
    }
}
