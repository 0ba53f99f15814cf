//! Values that rest in host memory while nobody needs them, where not all that is alive fits the device at once.
//!
//! The steps are walked through in the order of a plan, with as much on the device as there is room for. Where room is wanted, that goes which is
//! needed again last, since it frees its bytes for longest. Values never change, so one is written to the host once, right after the step
//! that makes it, and brought back as often as it is needed, a few steps early where there is room: copies run beside steps that do not
//! touch them. Cost: the steps times what is on the device at once.

use std::collections::HashMap;

use crate::error::PlanError;
use crate::graph::{Graph, Node, Value};
use crate::op::Op;

use super::lifetime::Analysis;
use super::{Capabilities, Need, Plan, order};

/// Steps that a value may be brought back before it is needed.
const EARLY: usize = 4;
/// Plans that are tried: what is chosen by sums of bytes may not lie as tightly.
const TRIES: usize = 8;
/// A value smaller than this share of the room frees nothing worth a copy.
const WORTH_A_COPY: u64 = 1000;

/// The graph with values that rest, and its plan. `refusal` is that of the graph as it is.
pub(super) fn fit(
    graph: &Graph,
    device: &dyn Capabilities,
    streams: bool,
    refusal: PlanError,
) -> Result<(Graph, Plan), PlanError> {
    let PlanError::Memory { weights, limit, .. } = &refusal else { return Err(refusal) };
    let (weights, limit) = (*weights, *limit);
    let left = limit.saturating_sub(device.fixed_bytes());
    // Streamed weights need less room than all of them; how much less is for the plan to find.
    let rooms = match streams {
        true => vec![left - left / 4, left / 2, left / 4, left / 8],
        false => vec![left.saturating_sub(weights)],
    };
    let walk = Walk::new(graph, device);
    for mut room in rooms {
        for _ in 0..TRIES {
            let Some(aside) = walk.choose(room) else { break };
            let resting = walk.write(&aside);
            match Plan::made(&resting, device, streams, Need::Exact) {
                Ok(plan) if plan.host_bytes() <= device.host_memory() => return Ok((resting, plan)),
                Err(fault) if fault.is_fault() => return Err(fault),
                Err(PlanError::Memory { need, limit, .. }) if !streams => {
                    room = room.saturating_sub((need - limit).max(room / 64 + 1));
                }
                _ => break,
            }
        }
    }
    Err(refusal)
}

/// A graph and the order in which its steps run.
struct Walk<'g> {
    graph: &'g Graph,
    analysis: Analysis,
    order: Vec<Value>,
    /// By value: the steps that read its bytes, in their order; the end of the run for a result.
    uses: Vec<Vec<usize>>,
    /// By value: whether it can be put aside.
    movable: Vec<bool>,
}

/// What rests, and when it is brought back.
struct Aside {
    /// By value.
    rests: Vec<bool>,
    /// By step: what is brought back right before it.
    fetched: Vec<Vec<Value>>,
}

impl<'g> Walk<'g> {
    fn new(graph: &'g Graph, device: &dyn Capabilities) -> Walk<'g> {
        let analysis = Analysis::new(graph, device, false);
        let order = order::choose(graph, &analysis);
        let mut uses = vec![vec![]; graph.nodes().len()];
        for (at, &value) in order.iter().enumerate() {
            operands(graph, &analysis, value).into_iter().for_each(|root| uses[root.index()].push(at));
        }
        let mut movable = vec![true; graph.nodes().len()];
        for value in graph.outputs().iter().map(|output| output.value) {
            let Some(root) = analysis.arena_root(value) else { continue };
            uses[root.index()].push(order.len());
            // A result may stay in host memory, a view of one may not.
            movable[root.index()] &= root == value;
        }
        Walk { graph, analysis, order, uses, movable }
    }

    /// The next step after this one that reads a value.
    fn next_use(&self, value: Value, after: usize) -> Option<usize> {
        let uses = &self.uses[value.index()];
        uses.get(uses.partition_point(|&at| at <= after)).copied()
    }

    /// What must rest so that no more than `room` bytes are on the device at once; none where a step alone needs more.
    fn choose(&self, room: u64) -> Option<Aside> {
        let (graph, end) = (self.graph, self.order.len());
        let bytes = |value: Value| graph.ty(value).bytes();
        let mut aside = Aside { rests: vec![false; graph.nodes().len()], fetched: vec![vec![]; end] };
        // What is on the device, each with the step before which it was brought back too early to be used yet.
        let mut here: HashMap<Value, Option<usize>> = HashMap::new();
        let inputs = self.analysis.inputs().filter(|input| !self.uses[input.index()].is_empty());
        here.extend(inputs.map(|input| (input, None)));
        let mut held: u64 = here.keys().map(|&value| bytes(value)).sum();
        for (at, &value) in self.order.iter().enumerate() {
            let read = operands(graph, &self.analysis, value);
            for &root in &read {
                if here.insert(root, None).is_none() {
                    aside.fetched[at].push(root);
                    held += bytes(root);
                }
            }
            let dies = |root: Value| self.next_use(root, at).is_none();
            let replaced = self.analysis.overwritable(value).iter().any(|&i| {
                let operand = graph.node(value).inputs[i];
                self.analysis.arena_root(operand) == Some(operand) && dies(operand)
            });
            let result = if replaced { 0 } else { bytes(value) };
            let mut need = held + result + self.analysis.scratch(value);
            while need > room {
                let may_go = |root: Value| {
                    self.movable[root.index()] && !read.contains(&root) && bytes(root) > room / WORTH_A_COPY
                };
                let last = here.keys().copied().filter(|&root| may_go(root)).max_by_key(|&root| {
                    // Of those that are needed at the same time the larger one; then any, but always the same.
                    (self.next_use(root, at).unwrap_or(end), bytes(root), root)
                })?;
                if let Some(Some(early)) = here.remove(&last) {
                    aside.fetched[early].retain(|&fetched| fetched != last);
                }
                aside.rests[last.index()] = true;
                (held, need) = (held - bytes(last), need - bytes(last));
            }
            'early: for soon in at + 1..(at + 1 + EARLY).min(end) {
                for root in operands(graph, &self.analysis, self.order[soon]) {
                    if here.contains_key(&root) || !aside.rests[root.index()] {
                        continue;
                    }
                    if need + bytes(root) > room {
                        break 'early;
                    }
                    here.insert(root, Some(at));
                    aside.fetched[at].push(root);
                    (held, need) = (held + bytes(root), need + bytes(root));
                }
            }
            for root in read.into_iter().filter(|&root| dies(root)) {
                here.remove(&root);
                held -= bytes(root);
            }
            if !self.uses[value.index()].is_empty() {
                here.insert(value, None);
                held += bytes(value);
            }
        }
        Some(aside)
    }

    /// The graph in the order of the walk, with what rests.
    fn write(&self, aside: &Aside) -> Graph {
        let graph = self.graph;
        let mut writer = Writer {
            from: graph,
            to: Graph::new(),
            now: vec![None; graph.nodes().len()],
            rested: vec![None; graph.nodes().len()],
            views: HashMap::new(),
        };
        for value in graph.values().filter(|&v| graph.node(v).op.is_source()) {
            writer.make(value, vec![]);
        }
        for input in self.analysis.inputs().filter(|input| aside.rests[input.index()]) {
            writer.put_aside(input);
        }
        for (&value, fetched) in self.order.iter().zip(&aside.fetched) {
            fetched.iter().for_each(|&root| writer.fetch(root));
            let inputs = graph.node(value).inputs.iter().map(|&input| writer.value(input)).collect();
            writer.make(value, inputs);
            if aside.rests[value.index()] {
                writer.put_aside(value);
            }
        }
        for output in graph.outputs() {
            let rested = writer.rested[output.value.index()];
            let value = rested.unwrap_or_else(|| writer.value(output.value));
            writer.to.keep(&output.name, value);
        }
        writer.to
    }
}

/// The arena-living roots that a step reads, each once.
fn operands(graph: &Graph, analysis: &Analysis, step: Value) -> Vec<Value> {
    let mut roots: Vec<Value> =
        graph.node(step).inputs.iter().filter_map(|&input| analysis.arena_root(input)).collect();
    roots.sort_unstable();
    roots.dedup();
    roots
}

struct Writer<'g> {
    from: &'g Graph,
    to: Graph,
    /// By value: what stands for it on the device, and in host memory.
    now: Vec<Option<Value>>,
    rested: Vec<Option<Value>>,
    /// Views, each of what stands for its root.
    views: HashMap<(Value, Value), Value>,
}

impl Writer<'_> {
    fn append(&mut self, op: Op, inputs: Vec<Value>, like: Value) -> Value {
        self.to.append(Node { op, inputs, ty: self.from.ty(like).clone() })
    }

    fn make(&mut self, value: Value, inputs: Vec<Value>) {
        self.now[value.index()] = Some(self.append(self.from.node(value).op.clone(), inputs, value));
    }

    fn put_aside(&mut self, value: Value) {
        let here = self.value(value);
        self.rested[value.index()] = Some(self.append(Op::Rest, vec![here], value));
    }

    fn fetch(&mut self, value: Value) {
        if let Some(rested) = self.rested[value.index()] {
            self.now[value.index()] = Some(self.append(Op::Fetch, vec![rested], value));
        }
    }

    /// What stands for a value now; a view is one of what stands for its root now.
    fn value(&mut self, value: Value) -> Value {
        if let Some(now) = self.now[value.index()] {
            return now;
        }
        let Node { op, inputs, .. } = self.from.node(value);
        let of: Vec<Value> = inputs.iter().map(|&input| self.value(input)).collect();
        let key = (value, of.first().copied().unwrap_or(value));
        match self.views.get(&key) {
            Some(&view) => view,
            None => {
                let view = self.append(op.clone(), of, value);
                self.views.insert(key, view);
                view
            }
        }
    }
}
