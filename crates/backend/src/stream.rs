//! Streamed weights: brought to the device by one thread while another computes with those brought before.

use std::any::Any;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError, mpsc};
use std::time::Instant;

use impasto_graph::{Graph, Plan, Segment, Weight};

use crate::stored::{ParamSet, param_name};
use crate::tasks::on_threads;
use crate::{AlignedBytes, BackendError, Origin, ParamError, ParamInfo, Profile, WeightSource};

/// What bringing weights cost in one run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Streaming {
    /// Bytes that were brought.
    pub bytes: u64,
    /// Seconds in which weights were brought.
    pub copying: f64,
    /// Seconds in which nothing was computed, for want of weights.
    pub waiting: f64,
}

impl Streaming {
    /// The share of the copying that overlapped with computing.
    pub fn hidden(&self) -> f64 {
        if self.copying > 0.0 { (1.0 - self.waiting / self.copying).clamp(0.0, 1.0) } else { 1.0 }
    }
}

/// Weights as a backend has packed them, in host memory: brought to its device without another look at the file.
pub struct HostWeights {
    packed: HashMap<String, AlignedBytes>,
    /// Where a backend keeps them by itself, and how many bytes.
    host_mapped: Option<(u64, Box<dyn Any + Send + Sync>)>,
    elsewhere: Option<Elsewhere>,
}

/// Weights that another process keeps.
struct Elsewhere {
    number: u64,
    bytes: u64,
    /// Held as long as they are wanted.
    _hold: Box<dyn Any + Send + Sync>,
}

impl HostWeights {
    /// The parameters of a plan without adapters, packed for a device, in memory like any other: for devices of different budgets alike.
    pub fn plain(
        device: &(impl Profile + ?Sized),
        graph: &Graph,
        plan: &Plan,
        source: &dyn WeightSource,
    ) -> Result<HostWeights, BackendError> {
        source.check()?;
        let (weights, all) = (ParamSet::Model.of(graph, plan.weights()), Mutex::new(HashMap::new()));
        let one = |_: &mut (), i: usize| {
            let weight: &Weight = &weights[i];
            let name = param_name(graph, weight.value);
            let before = source.packed(name).map(AlignedBytes::from);
            let packed = before.map_or_else(|| device.pack_one(graph, weight, source), Ok)?;
            all.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned(), packed);
            Ok(())
        };
        on_threads(impasto_device::cpu::usable_cores(), weights.len(), &|_| (), &one)?;
        source.check()?;
        let packed = all.into_inner().unwrap_or_else(PoisonError::into_inner);
        Ok(HostWeights { packed, host_mapped: None, elsewhere: None })
    }

    /// Weights that a backend keeps as it likes.
    pub(crate) fn host_mapped(bytes: u64, kept: impl Any + Send + Sync) -> HostWeights {
        HostWeights { packed: HashMap::new(), host_mapped: Some((bytes, Box::new(kept))), elsewhere: None }
    }

    /// Weights that another process keeps under a number, until `hold` is dropped.
    pub fn elsewhere(number: u64, bytes: u64, hold: impl Any + Send + Sync) -> HostWeights {
        let elsewhere = Some(Elsewhere { number, bytes, _hold: Box::new(hold) });
        HostWeights { packed: HashMap::new(), host_mapped: None, elsewhere }
    }

    /// Bytes that they take.
    pub fn bytes(&self) -> u64 {
        let here: u64 = self.packed.values().map(|bytes| bytes.len() as u64).sum();
        let mapped = self.host_mapped.as_ref().map_or(0, |(bytes, _)| *bytes);
        self.elsewhere.as_ref().map_or(here + mapped, |elsewhere| elsewhere.bytes)
    }
}

impl WeightSource for HostWeights {
    fn describe(&self, name: &str) -> Result<ParamInfo, ParamError> {
        Err(ParamError::Wrong { name: name.into(), problem: "is kept packed".into() })
    }

    fn read_into(&self, name: &str, _: u64, _: &mut [u8]) -> Result<(), ParamError> {
        self.describe(name).map(drop)
    }

    fn packed(&self, name: &str) -> Option<&[u8]> {
        self.packed.get(name).map(|bytes| &**bytes)
    }

    fn host_mapped(&self) -> Option<&(dyn Any + Send + Sync)> {
        self.host_mapped.as_ref().map(|(_, kept)| &**kept)
    }

    fn origin(&self) -> Option<Origin> {
        self.elsewhere.as_ref().map(|elsewhere| Origin::Packed(elsewhere.number))
    }
}

/// Runs the segments of a plan in order. `bring` fills the slot of a segment, on a thread of its own; `compute` runs one whose slot is filled.
pub(crate) fn run(
    segments: &[Segment],
    slots: usize,
    bring: &(dyn Fn(&Segment) -> Result<(), BackendError> + Sync),
    compute: &mut dyn FnMut(usize) -> Result<(), BackendError>,
) -> Result<Streaming, BackendError> {
    let mut times = Streaming::default();
    std::thread::scope(|scope| {
        // A word for each slot that may be filled, and what came of each that was.
        let (free, frees) = mpsc::channel::<()>();
        let (filled, fills) = mpsc::channel::<(Result<(), BackendError>, f64)>();
        for _ in 0..slots {
            let _ = free.send(());
        }
        scope.spawn(move || {
            for segment in segments.iter().filter(|segment| !segment.pieces.is_empty()) {
                if frees.recv().is_err() {
                    return;
                }
                let begun = Instant::now();
                let done = bring(segment);
                let failed = done.is_err();
                if filled.send((done, begun.elapsed().as_secs_f64())).is_err() || failed {
                    return;
                }
            }
        });
        for (at, segment) in segments.iter().enumerate() {
            let brings = !segment.pieces.is_empty();
            if brings {
                let begun = Instant::now();
                let lost = |_| BackendError::Lost {
                    device: "host".into(),
                    reason: "the thread that brings weights ended".into(),
                };
                let (done, copying) = fills.recv().map_err(lost)?;
                done?;
                times.waiting += begun.elapsed().as_secs_f64();
                times.copying += copying;
                times.bytes += segment.pieces.iter().map(|piece| piece.weight.bytes).sum::<u64>();
            }
            compute(at)?;
            if brings {
                // Nobody may be waiting for the last ones.
                let _ = free.send(());
            }
        }
        Ok(times)
    })
}

/// The segment that a step belongs to; 0 in a plan whose weights all stay.
pub(crate) fn segment_of(plan: &Plan, step: usize) -> usize {
    plan.stream().map_or(0, |stream| stream.segments().partition_point(|segment| segment.steps.end <= step))
}
