//! A way in which something here can compute, and the results of a case on it.

use std::fmt;
use std::sync::Arc;

use impasto_backend::{Backend, Session};
use impasto_graph::{HostTensor, Plan};

use super::case::{Case, bytes, tensor};

/// In what factors are multiplied.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Factors {
    F32,
    /// Both are rounded to bf16 first.
    Bf16,
    /// Parameters, and now and then the others, are rounded to f16.
    F16,
}

pub struct Machine {
    pub backend: Arc<dyn Backend>,
    /// The instructions, or the device.
    pub name: String,
    pub factors: Factors,
    pub threads: usize,
    /// Even where rounding alone would be nearer, the result may be this far off: other functions are used.
    pub least: f64,
}

impl Machine {
    pub fn bf16(&self) -> bool {
        self.factors == Factors::Bf16
    }

    /// Path and precision: what decides the result.
    pub fn path(&self) -> String {
        let factors = match self.factors {
            Factors::F32 => "f32",
            Factors::Bf16 => "bf16",
            Factors::F16 => "f16",
        };
        format!("{} {factors}", self.name)
    }

    /// Plan a case, load its parameters and take its memory.
    pub fn prepare(&self, case: &Case) -> Box<dyn Session> {
        let (backend, profile) = (&*self.backend, self.backend.profile());
        let plan = Plan::new(&case.graph, &*profile).expect("it can do everything");
        plan.verify(&case.graph, &*profile).expect("the plan is right");
        let weights = backend.pack(&case.graph, &plan, case).expect("the parameters are all there");
        let session = backend.prepare(&case.graph, &plan, &weights).unwrap_or_else(|e| panic!("{self}: {e}"));
        assert_eq!(weights.bytes(), plan.weight_bytes(), "parameters take what was planned");
        assert_eq!(session.allocated_bytes(), plan.arena_bytes(), "a session takes what was planned");
        session
    }

    /// The results of a case. Another run goes before, whose inputs are no numbers: memory is full of NaN then, and
    /// whatever reads more than it should, or adds zero times nothing in particular, shows it.
    pub fn run(&self, case: &Case) -> Vec<HostTensor> {
        let mut session = self.prepare(case);
        let poison: Vec<_> = case.inputs().into_iter().map(|(name, x)| (name, poisoned(x))).collect();
        let poison: Vec<_> = poison.iter().map(|(name, x)| (*name, x)).collect();
        session.run_to_new(&poison).expect("the inputs are all there");
        session.run_to_new(&case.inputs()).expect("the inputs are all there")
    }
}

/// NaN, or an id that no table has, everywhere.
fn poisoned(x: &HostTensor) -> HostTensor {
    let value = if x.ty().dtype.is_float() { f64::NAN } else { i32::MAX.into() };
    tensor(x.shape(), x.ty().dtype, (0..x.ty().elements()).map(|_| value))
}

/// Bit for bit, NaN included.
pub fn same_bits(a: &[HostTensor], b: &[HostTensor]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.ty() == b.ty() && bytes(a) == bytes(b))
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {} threads", self.path(), self.threads)
    }
}
