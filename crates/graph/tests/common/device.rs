//! A made-up device: what it can do is drawn from a seed.

use impasto_graph::{Capabilities, Graph, Limits, Op, Used, Value};

use impasto_testkit::graph::rng::Rng;

#[derive(Clone, Copy, Debug)]
pub struct Device {
    pub seed: u64,
    pub alignment: u64,
    pub limits: Limits,
    /// Added to the scratch memory of every op.
    pub more_scratch: u64,
    /// May results take the place of operands?
    pub overwrites: bool,
    /// The place in the graph of an op that this device lacks.
    pub lacks: Option<usize>,
}

impl Device {
    pub fn random(rng: &mut Rng) -> Device {
        Device {
            seed: rng.bits(),
            alignment: rng.pick(&[16, 32, 64, 128, 256]),
            limits: Limits::UNLIMITED,
            more_scratch: 0,
            overwrites: rng.chance(85),
            lacks: None,
        }
    }

    pub fn memory(self, memory: u64) -> Device {
        Device { limits: Limits { memory, ..self.limits }, ..self }
    }

    pub fn max_allocation(self, max_allocation: u64) -> Device {
        Device { limits: Limits { max_allocation, ..self.limits }, ..self }
    }

    pub fn max_binding(self, max_binding: u64) -> Device {
        Device { limits: Limits { max_binding, ..self.limits }, ..self }
    }

    /// The same random numbers for the same question.
    fn about(&self, value: Value, question: u64) -> Rng {
        Rng::new(self.seed ^ (value.index() as u64 * 64 + question).wrapping_mul(0x2545_f491_4f6c_dd1d))
    }
}

impl Capabilities for Device {
    fn limits(&self) -> Limits {
        self.limits
    }

    fn alignment(&self) -> u64 {
        self.alignment
    }

    fn supports(&self, _: &Graph, value: Value) -> Result<(), String> {
        if self.lacks == Some(value.index()) { Err("it is too old".into()) } else { Ok(()) }
    }

    fn scratch_bytes(&self, _: &Graph, value: Value) -> u64 {
        let mut rng = self.about(value, 0);
        self.more_scratch + if rng.chance(60) { 0 } else { rng.between(1, 3000) as u64 }
    }

    fn may_overwrite(&self, graph: &Graph, value: Value, operand: usize) -> bool {
        assert!(!matches!(graph.node(value).op, Op::Input { .. } | Op::Param { .. }), "sources overwrite nothing");
        self.overwrites && self.about(value, 1 + operand as u64).chance(60)
    }

    fn param_bytes(&self, graph: &Graph, param: Value, used: Used) -> u64 {
        assert_ne!(used, Used::default(), "a parameter that nobody uses is not asked about");
        graph.ty(param).bytes() + self.about(param, 63).below(100) as u64
    }
}
