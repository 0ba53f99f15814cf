//! A device that is open, in less memory than it has: opening another for each budget would compile every kernel again.

use std::sync::Arc;

use impasto_backend::{Backend, BackendError, Meter, Profile, Session, WeightSource, Weights};
use impasto_graph::{Capabilities, DType, Graph, Limits, Plan, Used, Value, Weight};

pub struct Within {
    pub device: Arc<dyn Backend>,
    pub memory: u64,
}

impl Capabilities for Within {
    fn limits(&self) -> Limits {
        Limits { memory: self.memory, ..self.device.limits() }
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
}

impl Profile for Within {
    /// Not that of the device, so that others can be beside it.
    fn name(&self) -> &str {
        "within"
    }

    fn about(&self) -> String {
        self.device.about()
    }

    fn activations(&self) -> DType {
        self.device.activations()
    }
}

impl Backend for Within {
    fn meter(&self) -> &Meter {
        self.device.meter()
    }

    fn peak_gflops(&self) -> Result<f64, BackendError> {
        self.device.peak_gflops()
    }

    fn pack_one(&self, graph: &Graph, weight: &Weight, source: &dyn WeightSource) -> Result<Vec<u8>, BackendError> {
        self.device.pack_one(graph, weight, source)
    }

    fn pack(&self, graph: &Graph, plan: &Plan, source: &dyn WeightSource) -> Result<Weights, BackendError> {
        self.device.pack(graph, plan, source)
    }

    fn prepare(&self, graph: &Graph, plan: &Plan, weights: &Weights) -> Result<Box<dyn Session>, BackendError> {
        self.device.prepare(graph, plan, weights)
    }
}
