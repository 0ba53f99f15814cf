//! A plan that came from elsewhere, held against its graph and its device before anything follows it.

use crate::graph::{Graph, Value};
use crate::op::Op;

use super::{Capabilities, Location, Plan, Span, Weight};

impl Plan {
    /// Whether a plan that another process has made is one of this graph for this device: nothing in it is believed. What it says is
    /// wrong is told; no plan makes this panic.
    pub fn check(&self, graph: &Graph, device: &dyn Capabilities) -> Result<(), String> {
        let nodes = graph.nodes().len();
        let known = |value: Value| match value.index() < nodes {
            true => Ok(()),
            false => Err(format!("it speaks of {value}, the graph has {nodes} values")),
        };
        let weight = |weight: &Weight| {
            known(weight.value)?;
            match graph.node(weight.value).op {
                Op::Param { .. } if weight.bytes == device.param_bytes(graph, weight.value, weight.used) => Ok(()),
                Op::Param { .. } => {
                    Err(format!("{} bytes are planned for the parameter {}", weight.bytes, weight.value))
                }
                _ => Err(format!("{} is no parameter", weight.value)),
            }
        };
        let within = |span: &Span, all: u64| match span.offset.checked_add(span.bytes) {
            Some(end) if span.bytes > 0 && end <= all => Ok(()),
            _ => Err(format!("{span:?} lies outside of its {all} bytes")),
        };
        let span = |span: &Span| within(span, self.arena_bytes);
        let limits = device.limits();
        if self.places.len() != nodes {
            return Err(format!("it has places for {} values, the graph has {nodes}", self.places.len()));
        }
        if self.block_bytes == 0 || self.block_bytes > limits.max_allocation || self.arena_bytes > limits.memory {
            return Err("its arena is not one of this device".into());
        }
        for (at, place) in self.places.iter().enumerate() {
            match place {
                Location::Nowhere => {}
                Location::Weight(param) => {
                    known(*param)?;
                    if !self.weights.iter().any(|weight| weight.value == *param) {
                        return Err(format!("%{at} lies in the parameter {param}, which is not among its weights"));
                    }
                }
                Location::Arena(place) => span(place)?,
                Location::Host(place) => within(place, self.host_bytes)?,
            }
        }
        for step in &self.steps {
            known(step.value)?;
            step.scratch.iter().try_for_each(span)?;
            if graph.node(step.value).op.is_source() {
                return Err(format!("{} is not computed", step.value));
            }
            device.supports(graph, step.value)?;
        }
        self.weights.iter().try_for_each(weight)?;
        if let Some(stream) = &self.stream {
            stream.resident.iter().try_for_each(weight)?;
            let mut next = 0;
            for segment in &stream.segments {
                segment.pieces.iter().try_for_each(|piece| weight(&piece.weight))?;
                let inside = |end: Option<u64>| end.is_some_and(|end| end <= stream.slot_bytes());
                let fits = segment.pieces.iter().all(|piece| inside(piece.offset.checked_add(piece.weight.bytes)));
                if segment.steps.start != next || segment.steps.end < next || segment.slot >= stream.slots() || !fits {
                    return Err("its weights are not streamed as they should be".into());
                }
                next = segment.steps.end;
            }
            if next != self.steps.len() || stream.slot_bytes() > limits.max_allocation {
                return Err("its weights are not streamed as they should be".into());
            }
        }
        self.verify(graph, device)
    }
}
