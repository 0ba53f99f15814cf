//! A device of which less may be used than it has.

use std::sync::Arc;

use impasto_graph::{Capabilities, DType, Graph, Limits, Plan, Used, Value, Weight};

use crate::{Backend, BackendError, HostWeights, Meter, Profile, Session, WeightSource, Weights};

/// A device, or what is known of one, within other limits than its own.
pub struct Within<D: ?Sized> {
    /// The device.
    pub device: Arc<D>,
    /// What may be used of it.
    pub limits: Limits,
    /// What it is called: the device's own name, unless both are used beside each other.
    pub name: String,
}

impl<D: Profile + ?Sized> Within<D> {
    /// A device within these limits, under its own name.
    pub fn new(device: Arc<D>, limits: Limits) -> Within<D> {
        let name = device.name().into();
        Within { device, limits, name }
    }
}

impl<D: Profile + ?Sized> Capabilities for Within<D> {
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
}

impl<D: Profile + ?Sized> Profile for Within<D> {
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
        Some(Arc::new(Within { device, limits: self.limits, name: self.name.clone() }))
    }
}

impl<D: Backend + ?Sized> Backend for Within<D> {
    fn meter(&self) -> &Meter {
        self.device.meter()
    }

    fn peak_gflops(&self) -> Result<f64, BackendError> {
        self.device.peak_gflops()
    }

    fn pack_one(&self, graph: &Graph, weight: &Weight, source: &dyn WeightSource) -> Result<Vec<u8>, BackendError> {
        self.device.pack_one(graph, weight, source)
    }

    fn pack_on_host(&self, graph: &Graph, plan: &Plan, source: &dyn WeightSource) -> Result<HostWeights, BackendError> {
        self.device.pack_on_host(graph, plan, source)
    }

    fn pack(&self, graph: &Graph, plan: &Plan, source: &dyn WeightSource) -> Result<Weights, BackendError> {
        self.device.pack(graph, plan, source)
    }

    fn prepare(&self, graph: &Graph, plan: &Plan, weights: &Weights) -> Result<Box<dyn Session>, BackendError> {
        self.device.prepare(graph, plan, weights)
    }

    fn reopens(&self) -> bool {
        self.device.reopens()
    }

    fn in_f32(&self) -> Option<Arc<dyn Backend>> {
        let device = self.device.in_f32()?;
        Some(Arc::new(Within { device, limits: self.limits, name: self.name.clone() }))
    }
}
