//! Streamed weights, where all of them do not fit beside the arena.
//!
//! The steps of a plan are cut into segments. Before a segment runs, its weights are brought into a slot; with two slots, those of the next
//! segment are brought while it runs. As many of the first steps as there is room for keep their weights on the device for good.

use std::collections::HashSet;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::{Location, Plan, Weight};
use crate::graph::{Graph, Value};

/// A weight in a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamedWeight {
    /// The weight.
    pub weight: Weight,
    /// Where in the slot it begins.
    pub offset: u64,
}

/// Steps that run with the same weights on the device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Segment {
    /// The steps.
    pub steps: Range<usize>,
    /// The weights that are brought for them.
    pub pieces: Vec<StreamedWeight>,
    /// The slot that these are brought to.
    pub slot: usize,
}

/// How the weights of a plan are streamed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stream {
    pub(super) segments: Vec<Segment>,
    pub(super) resident: Vec<Weight>,
    slots: usize,
    slot_bytes: u64,
}

impl Stream {
    /// The segments, in the order in which they run.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// The weights that stay.
    pub fn resident(&self) -> &[Weight] {
        &self.resident
    }

    /// How many slots there are: two, or one where two do not fit.
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// Bytes of a slot.
    pub fn slot_bytes(&self) -> u64 {
        self.slot_bytes
    }

    /// Bytes that are brought in each run.
    pub fn streamed_bytes(&self) -> u64 {
        self.segments.iter().flat_map(|segment| &segment.pieces).map(|piece| piece.weight.bytes).sum()
    }

    /// Bytes on the device.
    pub fn device_bytes(&self) -> u64 {
        self.resident.iter().map(|weight| weight.bytes).sum::<u64>() + self.slots as u64 * self.slot_bytes
    }

    /// Weights in `room` bytes, in slots of at most `largest`; none where not even the weights of one step fit.
    pub(super) fn new(graph: &Graph, plan: &Plan, room: u64, largest: u64, alignment: u64) -> Option<Stream> {
        let needs: Vec<Vec<Weight>> = plan.steps.iter().map(|step| plan.weights_of(graph, step.value)).collect();
        // What is a result, or is kept in several layouts, is not streamed; nor are adapters, which come from elsewhere.
        let stays = |weight: &Weight| {
            let result = graph.outputs().iter().any(|o| plan.place(o.value) == Location::Weight(weight.value));
            result || weight.used.ways() > 1 || graph.is_adapter(weight.value)
        };
        let mut resident: Vec<Weight> = plan.weights.iter().copied().filter(stays).collect();
        let mut kept: HashSet<Value> = resident.iter().map(|weight| weight.value).collect();
        let aligned = |weight: &Weight| weight.bytes.next_multiple_of(alignment);
        let unit = |step: &Vec<Weight>| step.iter().filter(|w| !stays(w)).map(aligned).sum::<u64>();
        let slot_bytes = needs.iter().map(unit).max().unwrap_or(0);
        let fixed: u64 = resident.iter().map(|weight| weight.bytes).sum();
        let slots = (1..=2usize).rev().find(|&n| n as u64 * slot_bytes + fixed <= room)?;
        if slot_bytes > largest {
            return None;
        }
        // The first steps keep theirs, so that there is something to compute while the first slot is filled.
        let mut left = room - fixed - slots as u64 * slot_bytes;
        'steps: for step in &needs {
            for weight in step {
                if kept.contains(&weight.value) {
                    continue;
                }
                if weight.bytes > left {
                    break 'steps;
                }
                left -= weight.bytes;
                kept.insert(weight.value);
                resident.push(*weight);
            }
        }
        let mut segments = vec![Segment { steps: 0..0, pieces: vec![], slot: 0 }];
        let mut used = 0;
        for (at, step) in needs.iter().enumerate() {
            let last = segments.len() - 1;
            let is_new = |w: &&Weight| {
                !kept.contains(&w.value) && !segments[last].pieces.iter().any(|p| p.weight.value == w.value)
            };
            let new: Vec<Weight> = step.iter().filter(is_new).copied().collect();
            let more: u64 = new.iter().map(aligned).sum();
            // Steps that need nothing brought run before those that do, in a segment of their own.
            let opens = segments[last].pieces.is_empty() || used + more > slot_bytes;
            let mut bring = new;
            if more > 0 && opens {
                segments.push(Segment { steps: at..at, pieces: vec![], slot: 0 });
                used = 0;
                bring = step.iter().filter(|w| !kept.contains(&w.value)).copied().collect();
            }
            let last = segments.len() - 1;
            for weight in bring {
                segments[last].pieces.push(StreamedWeight { weight, offset: used });
                used += aligned(&weight);
            }
            segments[last].steps.end = at + 1;
        }
        segments.retain(|segment| !segment.steps.is_empty());
        for (i, segment) in segments.iter_mut().filter(|segment| !segment.pieces.is_empty()).enumerate() {
            segment.slot = i % slots;
        }
        Some(Stream { segments, resident, slots, slot_bytes })
    }
}
