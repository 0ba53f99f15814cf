//! Packed weights in host memory that the device reads itself, for streamed weights on a card with memory of its own: no byte of them
//! passes through the processor again.

use std::collections::HashMap;

use impasto_graph::{Capabilities, Graph, Plan, Weight};

use super::weights::{bring, pieces};
use super::{Gpu, Residence};
use crate::stored::{ParamSet, param_name};
use crate::{BackendError, HostWeights, WeightSource};

/// The most that the driver is asked for at once: it must find so much of the host's memory and hold it in place.
const LARGEST_PIECE: u64 = 1 << 28;

/// Parameters as they lie on the device, by name.
pub(super) struct HostMapped<G: Gpu> {
    memory: G::Memory,
    /// Address and bytes.
    places: HashMap<String, (u64, u64)>,
}

impl<G: Gpu> HostMapped<G> {
    /// The weights of a plan, or none where host and device share their memory, or it would be too much of the host's.
    pub(super) fn pack(
        gpu: &G,
        graph: &Graph,
        plan: &Plan,
        source: &dyn WeightSource,
    ) -> Result<Option<HostWeights>, BackendError> {
        let (weights, profile) = (ParamSet::Model.of(graph, plan.weights()), gpu.gpu_profile());
        let bytes = weights.iter().map(|weight| weight.bytes).sum::<u64>();
        // What a driver holds in place is no memory for anybody else.
        if bytes > profile.host_memory() / 2 {
            return Ok(None);
        }
        let limit = profile.limits().max_allocation.min(LARGEST_PIECE);
        let (lengths, addresses) = pieces(&weights, limit);
        let memory = match gpu.allocate(Residence::HostMapped, lengths.into_iter()) {
            Err(BackendError::Exhausted { .. }) => return Ok(None),
            other => other?,
        };
        let weights = weights.iter().zip(addresses);
        bring(gpu, graph, &memory, weights.clone(), source)?;
        let place =
            |(weight, address): (&Weight, u64)| (param_name(graph, weight.value).to_owned(), (address, weight.bytes));
        let places = weights.map(place).collect();
        Ok(Some(HostWeights::host_mapped(bytes, HostMapped::<G> { memory, places })))
    }

    /// Those that a source keeps, if it does.
    pub(super) fn of(source: &dyn WeightSource) -> Option<&HostMapped<G>> {
        source.host_mapped()?.downcast_ref()
    }

    /// The memory that they lie in.
    pub(super) fn memory(&self) -> &G::Memory {
        &self.memory
    }

    /// Where in it a parameter of so many bytes lies.
    pub(super) fn address(&self, name: &str, bytes: u64) -> Result<u64, BackendError> {
        let problem = match self.places.get(name) {
            Some(&(address, have)) if have == bytes => return Ok(address),
            Some(_) => "is packed for another use",
            None => "is not among those that were packed",
        };
        Err(BackendError::Param { name: name.into(), problem: problem.into() })
    }
}
