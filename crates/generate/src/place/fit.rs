//! How a module's computation is made to fit a device.

use std::sync::Arc;

use impasto_backend::{Profile, WithLimits};
use impasto_graph::{Banded, Cuts, Graph, GraphError, Limits, May, Plan, PlanError};
use impasto_model::{ElementTypes, NetworkId, OpenNetwork};
use serde::Serialize;

use crate::GenerateError;

/// The ways in which a module can run, the better ones first. The first that fits is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SplitMode {
    /// As it is.
    Whole,
    /// In horizontal bands, with the same result.
    Banded,
    /// In tiles that are blended.
    Tiled,
    /// On another device.
    Elsewhere,
}

impl std::fmt::Display for SplitMode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            SplitMode::Whole => "whole",
            SplitMode::Banded => "banded",
            SplitMode::Tiled => "tiled",
            SplitMode::Elsewhere => "elsewhere",
        })
    }
}

/// A module's computation that fits.
#[derive(Clone)]
pub struct FittedModule {
    /// What is computed.
    pub graph: Graph,
    /// How.
    pub plan: Plan,
    /// In which way.
    pub split_mode: SplitMode,
    /// Which of the builds it is.
    pub choice: usize,
    /// How it was cut, where it is in bands.
    pub cuts: Cuts,
    /// Why a better way does not fit.
    pub why: Option<PlanError>,
}

/// What a module may do to fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// The first split mode that is tried.
    pub from: SplitMode,
    /// The last.
    pub to: SplitMode,
    /// Bytes beside its weights, where that is limited.
    pub arena: Option<u64>,
}

impl Bounds {
    /// Whole, or not at all.
    pub const WHOLE: Bounds = Bounds { from: SplitMode::Whole, to: SplitMode::Whole, arena: None };
    /// As long as the result is the same.
    pub const EXACT: Bounds = Bounds { to: SplitMode::Banded, ..Bounds::WHOLE };
}

/// Builds a module's graph in the numbers of a device.
pub type Build<'a> = dyn Fn(ElementTypes) -> Result<Graph, GraphError> + 'a;

/// The first split mode in which a module fits a device, within its budget. This is the one place where split modes are chosen; tiles are smaller graphs,
/// which their caller offers one by one.
///
/// `builds` are graphs that do the same, the better ones first; the last of them is cut into bands. Weights that do not fit beside the arena are
/// streamed, which costs time in every run: first comes whatever has room for all of them. Last, bands that are not needed now rest in
/// host memory. Each parameter is stored as `network` has it.
pub fn fit(
    module: NetworkId,
    device: &Arc<dyn Profile>,
    network: &OpenNetwork,
    bounds: Bounds,
    builds: &[&Build],
) -> Result<FittedModule, GenerateError> {
    let numbers = ElementTypes { activations: device.activations(), ..ElementTypes::F32 };
    let stored = |graph: Graph| network.as_stored(graph);
    let graphs = builds.iter().map(|build| build(numbers).and_then(stored)).collect::<Result<Vec<Graph>, _>>();
    let graphs = graphs.map_err(|source| GenerateError::Graph { module, source })?;
    let Some(last) = graphs.last() else {
        return Err(GenerateError::Asked(format!("{module}: there is nothing to compute")));
    };
    let mut limits = device.limits();
    if let Some(arena) = bounds.arena {
        let weights = match Plan::new(last, &WithLimits::new(device.clone(), Limits::UNLIMITED)) {
            Ok(plan) => plan.weight_bytes(),
            Err(fault) if fault.is_fault() => return Err(GenerateError::no_plan(module, device.name(), fault)),
            Err(_) => 0,
        };
        limits.memory = limits.memory.min(weights.saturating_add(device.fixed_bytes()).saturating_add(arena));
    }
    let device_or_less = WithLimits::new(device.clone(), limits);
    let (mut why, mut refusal) = (None, None);
    let ways = [(false, false), (true, false), (false, true), (true, true)];
    for may in ways.map(|(stream, rest)| May { stream, rest }) {
        // Streamed weights would leave more than that to the arena.
        if may.stream && bounds.arena.is_some() || may.rest && device.host_memory() == 0 {
            continue;
        }
        if bounds.from == SplitMode::Whole && !may.rest {
            for (choice, graph) in graphs.iter().enumerate() {
                let planned =
                    if may.stream { Plan::streamed(graph, &device_or_less) } else { Plan::new(graph, &device_or_less) };
                match planned {
                    Ok(plan) => {
                        let (graph, cuts) = (graph.clone(), Cuts::default());
                        return Ok(FittedModule { graph, plan, split_mode: SplitMode::Whole, choice, cuts, why: None });
                    }
                    Err(fault) if fault.is_fault() => return Err(GenerateError::no_plan(module, device.name(), fault)),
                    Err(problem) => refusal = Some(problem),
                }
            }
            why = why.or(refusal.clone());
        }
        // What a device cannot do at all it cannot do in bands, and bands make weights no smaller.
        let hopeless = match &refusal {
            Some(PlanError::Unsupported { .. }) => true,
            Some(PlanError::Memory { weights, limit, .. }) => !may.stream && weights >= limit,
            _ => false,
        };
        if bounds.to >= SplitMode::Banded && !hopeless {
            match Banded::fit(last, &device_or_less, 2, may) {
                Ok((Banded { graph, cuts }, plan)) => {
                    return Ok(FittedModule {
                        graph,
                        plan,
                        split_mode: SplitMode::Banded,
                        choice: graphs.len() - 1,
                        cuts,
                        why,
                    });
                }
                Err(fault) if fault.is_fault() => return Err(GenerateError::no_plan(module, device.name(), fault)),
                Err(problem) => refusal = Some(problem),
            }
        }
    }
    let nothing = || PlanError::Unsupported {
        label: module.to_string(),
        op: "graph",
        reason: "no split mode may be taken".into(),
    };
    Err(GenerateError::no_plan(module, device.name(), refusal.unwrap_or_else(nothing)))
}
