//! What some ops of a module compute while it runs: whether two modules differ in them, and how varied their operands are.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};

use impasto_kernel::exec::{Executor, Mask};
use impasto_kernel::hash::MixHasher;
use impasto_kernel::ir::{OpId, Value};

/// Values of an operand, of which more than this are not told apart.
pub(crate) const VARIED: usize = 3;

/// What one op computed in one run.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct OpTrace {
    /// A hash of all its results, or of its operands if it has none.
    pub(crate) results: u64,
    /// Different values of each operand, by their hashes: at most [`VARIED`].
    pub(crate) operands: Vec<Vec<u64>>,
}

/// The ops that are watched, and what they computed.
#[derive(Debug, Default)]
pub(crate) struct Observer {
    pub(crate) watched: Vec<bool>,
    /// Whether arrays that nothing was written to hold arbitrary numbers instead of zeros, so that it shows if one program writes less.
    pub(crate) arbitrary_memory: bool,
    pub(crate) traces: BTreeMap<OpId, OpTrace>,
}

impl Observer {
    /// An observer of these ops.
    pub(crate) fn new(ops: impl Iterator<Item = OpId>) -> Observer {
        let mut watched = Vec::new();
        for op in ops {
            if watched.len() <= op.index() {
                watched.resize(op.index() + 1, false);
            }
            watched[op.index()] = true;
        }
        Observer { watched, arbitrary_memory: false, traces: BTreeMap::new() }
    }

    pub(super) fn observe(&mut self, m: &Executor<'_>, op: OpId, active: Mask) {
        let k = m.kernel();
        let args = k.args(op);
        let shown: Vec<Value> = match k.results(op).len() == 0 || k.kind(op).is_structure() {
            true => args.to_vec(),
            false => k.results(op).collect(),
        };
        let trace = self.traces.entry(op).or_default();
        trace.operands.resize(args.len(), Vec::new());
        let mut results = MixHasher::default();
        trace.results.hash(&mut results);
        for lane in active.lanes() {
            lane.hash(&mut results);
            shown.iter().for_each(|&v| m.values(v, lane).hash(&mut results));
            for (known, &v) in trace.operands.iter_mut().zip(args).filter(|(known, _)| known.len() < VARIED) {
                let mut value = MixHasher::default();
                m.values(v, lane).hash(&mut value);
                if !known.contains(&value.finish()) {
                    known.push(value.finish());
                }
            }
        }
        trace.results = results.finish();
    }
}
