//! Packed weights in host memory that the device reads itself, for weights that take turns on a card with memory of its own: no byte of them
//! passes through the processor again.

use std::collections::HashMap;

use impasto_graph::{Capabilities, Graph, Plan, Weight};
use impasto_vulkan::Part;

use super::Vulkan;
use super::memory::Memory;
use super::weights::{bring, pieces};
use crate::stored::param_name;
use crate::{BackendError, HostWeights, WeightSource};

/// The most that the driver is asked for at once: it must find so much of the host's memory and hold it in place.
const LARGEST_PIECE: u64 = 1 << 28;

/// Parameters as they lie on the device, by name.
pub(super) struct NearWeights {
    memory: Memory,
    /// Address and bytes.
    places: HashMap<String, (u64, u64)>,
}

impl NearWeights {
    /// The weights of a plan, or none where host and device share their memory, or it would be too much of the host's.
    pub(super) fn keep(
        vulkan: &Vulkan,
        graph: &Graph,
        plan: &Plan,
        source: &dyn WeightSource,
    ) -> Result<Option<HostWeights>, BackendError> {
        let bytes = plan.weight_bytes();
        // What a driver holds in place is no memory for anybody else.
        if bytes > vulkan.host_memory() / 2 {
            return Ok(None);
        }
        let limit = vulkan.limits().max_allocation.min(LARGEST_PIECE);
        let (lengths, addresses) = pieces(plan.weights(), limit);
        let memory = match Memory::aside(vulkan, lengths.into_iter()) {
            Err(BackendError::Exhausted { .. }) => return Ok(None),
            other => other?,
        };
        let weights = plan.weights().iter().zip(addresses);
        bring(vulkan, graph, &memory, weights.clone(), source)?;
        let place =
            |(weight, address): (&Weight, u64)| (param_name(graph, weight.value).to_owned(), (address, weight.bytes));
        let places = weights.map(place).collect();
        Ok(Some(HostWeights::near(bytes, NearWeights { memory, places })))
    }

    /// Those that a source keeps, if it does.
    pub(super) fn of(source: &dyn WeightSource) -> Option<&NearWeights> {
        source.near()?.downcast_ref()
    }

    /// Where a parameter of so many bytes lies.
    pub(super) fn part(&self, name: &str, bytes: u64) -> Result<Part, BackendError> {
        match self.places.get(name) {
            Some(&(address, have)) if have == bytes => Ok(self.memory.part(address, bytes)),
            Some(_) => Err(BackendError::Param { name: name.into(), problem: "is packed for another use".into() }),
            None => {
                Err(BackendError::Param { name: name.into(), problem: "is not among those that were packed".into() })
            }
        }
    }
}
