//! How a module's computation is made to fit a device.

use impasto_backend::Profile;
use impasto_graph::{Graph, GraphError, Plan, Storage};
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
}

/// The first rung on which a module fits a device, within its budget. This is the one place where rungs are chosen.
///
/// `build` gives the module's graph in the numbers of the device.
pub fn fit(
    module: &'static str,
    device: &dyn Profile,
    storage: Storage,
    build: impl Fn(Numbers) -> Result<Graph, GraphError>,
) -> Result<Fitted, GenerateError> {
    let numbers = Numbers { storage, activations: device.activations() };
    let graph = build(numbers).map_err(|source| GenerateError::Graph { module, source })?;
    match Plan::new(&graph, device) {
        Ok(plan) => Ok(Fitted { graph, plan, rung: Rung::Whole }),
        Err(source) => Err(GenerateError::Plan { module, device: device.name().into(), source }),
    }
}
