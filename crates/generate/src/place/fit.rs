//! How a module's computation is made to fit a device.

use impasto_backend::Profile;
use impasto_graph::{Graph, GraphError, Plan, PlanError, Storage};
use impasto_model::Numbers;
use serde::Serialize;

use crate::GenerateError;

/// The ways in which a module can run, the better ones first. The first that fits is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Rung {
    /// As it is.
    Whole,
    /// In horizontal bands, with the same result.
    Banded,
    /// In tiles that are blended.
    Tiled,
    /// On another device.
    Elsewhere,
}

impl std::fmt::Display for Rung {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Rung::Whole => "whole",
            Rung::Banded => "banded",
            Rung::Tiled => "tiled",
            Rung::Elsewhere => "elsewhere",
        })
    }
}

/// A module's computation that fits.
pub struct Fitted {
    /// What is computed.
    pub graph: Graph,
    /// How.
    pub plan: Plan,
    /// In which way.
    pub rung: Rung,
    /// Which of the builds it is.
    pub choice: usize,
}

/// Builds a module's graph in the numbers of a device.
pub type Build<'a> = dyn Fn(Numbers) -> Result<Graph, GraphError> + 'a;

/// The first rung on which a module fits a device, within its budget. This is the one place where rungs are chosen.
///
/// `builds` are graphs that do the same, the better ones first. Weights that do not fit beside the arena take turns on the device, which costs time
/// in every run: first comes whatever has room for all of them.
pub fn fit(
    module: &'static str,
    device: &dyn Profile,
    storage: Storage,
    builds: &[&Build],
) -> Result<Fitted, GenerateError> {
    let numbers = Numbers { storage, activations: device.activations() };
    let refused = |source: PlanError| GenerateError::Plan { module, device: device.name().into(), source };
    let mut problem = GenerateError::Asked(format!("{module}: there is nothing to compute"));
    for plan in [Plan::new, Plan::streamed] {
        for (choice, build) in builds.iter().enumerate() {
            let graph = build(numbers).map_err(|source| GenerateError::Graph { module, source })?;
            match plan(&graph, device) {
                Ok(plan) => return Ok(Fitted { graph, plan, rung: Rung::Whole, choice }),
                Err(source) => problem = refused(source),
            }
        }
    }
    Err(problem)
}
