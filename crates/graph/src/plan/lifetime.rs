//! What is needed, what is a view, and what lives from when to when.

use crate::graph::{Graph, Value};
use crate::op::Op;

use super::{Capabilities, Location, Span, Used};

/// What does not depend on the order of execution.
pub(super) struct Analysis {
    /// By value: what it stands for.
    roles: Vec<Role>,
    /// By value: scratch bytes of its op.
    scratch: Vec<u64>,
    /// By value: the operands that its op may write its result over.
    overwritable: Vec<Vec<usize>>,
    /// By value: whether a result of the graph needs the bytes of this root at the end.
    kept: Vec<bool>,
    /// By value: whether it lies in the host's memory.
    rests: Vec<bool>,
    /// By value: how this parameter is used.
    used: Vec<Used>,
    /// By value: the concatenation that it is computed right into, and where in it.
    housed: Vec<Option<(Value, u64)>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Unneeded,
    Weight,
    Input,
    Step,
    /// Another name for part of `root`, which is no view itself.
    View {
        root: Value,
        offset: u64,
    },
}

impl Analysis {
    /// With `house`, what is put together is computed where it will lie, if its pieces lie there one after the other.
    pub(super) fn new(graph: &Graph, device: &dyn Capabilities, house: bool) -> Self {
        let n = graph.nodes().len();
        let mut needed = vec![false; n];
        for output in graph.outputs() {
            needed[output.value.index()] = true;
        }
        for value in graph.values().rev() {
            if needed[value.index()] {
                for input in &graph.node(value).inputs {
                    needed[input.index()] = true;
                }
            }
        }

        let mut roles = vec![Role::Unneeded; n];
        let mut scratch = vec![0; n];
        let mut overwritable = vec![vec![]; n];
        for value in graph.values().filter(|v| needed[v.index()]) {
            let node = graph.node(value);
            roles[value.index()] = match &node.op {
                Op::Param { .. } => Role::Weight,
                Op::Input { .. } => Role::Input,
                _ => view(graph, value, &roles, device.alignment()).unwrap_or(Role::Step),
            };
            if roles[value.index()] == Role::Step && !node.op.is_copy() {
                scratch[value.index()] = device.scratch_bytes(graph, value);
                overwritable[value.index()] = (0..node.inputs.len())
                    .filter(|&i| graph.ty(node.inputs[i]).bytes() == node.ty.bytes())
                    .filter(|&i| device.may_overwrite(graph, value, i))
                    .collect();
            }
        }
        let housed = if house { housed(graph, &roles, device.alignment()) } else { vec![None; n] };
        let (kept, used) = (vec![false; n], vec![Used::default(); n]);
        let rests = graph.nodes().iter().map(|node| node.op == Op::Rest).collect();
        let mut analysis = Analysis { roles, scratch, overwritable, kept, rests, used, housed };
        for output in graph.outputs() {
            let (root, _) = analysis.root(output.value);
            analysis.kept[root.index()] = true;
            analysis.used[root.index()].as_tensor = true;
        }
        for value in graph.values() {
            if !analysis.is_step(value) {
                continue;
            }
            let node = graph.node(value);
            for (i, &input) in node.inputs.iter().enumerate() {
                let (root, _) = analysis.root(input);
                let used = &mut analysis.used[root.index()];
                match node.op {
                    Op::Linear { geglu: true, .. } if i == 1 => used.as_gated = true,
                    Op::Linear { .. } | Op::Conv2d { .. } if i == 1 => used.as_weights = true,
                    Op::Embedding if i == 0 => used.as_table = true,
                    _ => used.as_tensor = true,
                }
            }
        }
        analysis
    }

    /// The values that ops define when executed, in graph order.
    pub(super) fn steps(&self) -> impl Iterator<Item = Value> + '_ {
        self.of_role(Role::Step)
    }

    fn of_role(&self, role: Role) -> impl Iterator<Item = Value> + '_ {
        self.roles.iter().enumerate().filter(move |(_, r)| **r == role).map(|(i, _)| Value(i as u32))
    }

    pub(super) fn inputs(&self) -> impl Iterator<Item = Value> + '_ {
        self.of_role(Role::Input)
    }

    pub(super) fn weights(&self) -> impl Iterator<Item = (Value, Used)> + '_ {
        self.of_role(Role::Weight).map(|v| (v, self.used[v.index()]))
    }

    pub(super) fn is_step(&self, value: Value) -> bool {
        self.roles[value.index()] == Role::Step
    }

    pub(super) fn scratch(&self, value: Value) -> u64 {
        self.scratch[value.index()]
    }

    pub(super) fn is_kept(&self, root: Value) -> bool {
        self.kept[root.index()]
    }

    pub(super) fn overwritable(&self, value: Value) -> &[usize] {
        &self.overwritable[value.index()]
    }

    /// The value whose bytes these are, and where in it they begin.
    pub(super) fn root(&self, value: Value) -> (Value, u64) {
        let (mut root, mut offset) = match self.roles[value.index()] {
            Role::View { root, offset } => (root, offset),
            _ => (value, 0),
        };
        while let Some((house, at)) = self.housed[root.index()] {
            (root, offset) = (house, offset + at);
        }
        (root, offset)
    }

    /// The input, parameter or step that a value comes from.
    pub(super) fn origin(&self, value: Value) -> Value {
        match self.roles[value.index()] {
            Role::View { root, .. } => root,
            _ => value,
        }
    }

    /// Whether anything is computed right into a concatenation.
    pub(super) fn houses(&self) -> bool {
        self.housed.iter().any(Option::is_some)
    }

    /// The root of an operand that a plan gives memory to; `None` for parameters.
    fn planned_root(&self, value: Value) -> Option<Value> {
        let (root, _) = self.root(value);
        (self.roles[root.index()] != Role::Weight).then_some(root)
    }

    /// The arena-living root of an operand; `None` for parameters and what rests.
    pub(super) fn arena_root(&self, value: Value) -> Option<Value> {
        self.planned_root(value).filter(|root| !self.rests[root.index()])
    }

    /// The largest tensor that an op reads or writes in the arena.
    pub(super) fn largest_binding(&self, graph: &Graph) -> Option<(Value, u64)> {
        // Copies to the host and back bind nothing.
        self.steps()
            .filter(|&v| !graph.node(v).op.is_copy())
            .flat_map(|v| graph.node(v).inputs.iter().filter_map(|&i| self.arena_root(i).map(|_| i)).chain([v]))
            .map(|v| (v, graph.ty(v).bytes()))
            .max_by_key(|&(_, bytes)| bytes)
    }
}

/// Whether a moving op only renames bytes.
fn view(graph: &Graph, value: Value, roles: &[Role], alignment: u64) -> Option<Role> {
    let node = graph.node(value);
    let from = *node.inputs.first()?;
    let source = graph.ty(from);
    let offset = match &node.op {
        Op::Reshape { .. } => 0,
        Op::Slice { axis, start, .. } if source.shape[..*axis].iter().all(|&d| d == 1) => {
            let row: u64 = source.shape[axis + 1..].iter().map(|&d| d as u64).product();
            *start as u64 * row * source.dtype.bytes()
        }
        Op::Permute { axes } => {
            let moved: Vec<usize> = axes.iter().copied().filter(|&a| source.shape[a] != 1).collect();
            if !moved.is_sorted() {
                return None;
            }
            0
        }
        Op::Cast if source.dtype == node.ty.dtype => 0,
        _ => return None,
    };
    let (root, base) = match roles[from.index()] {
        Role::View { root, offset } => (root, offset),
        _ => (from, 0),
    };
    // A backend keeps parameters in its own layout: only the whole of one can be renamed.
    let is_weight = roles[root.index()] == Role::Weight;
    let fits = if is_weight { base + offset == 0 && graph.ty(value).bytes() == graph.ty(root).bytes() } else { true };
    (fits && (base + offset).is_multiple_of(alignment)).then_some(Role::View { root, offset: base + offset })
}

/// Which results of steps are computed where a concatenation will have them. The pieces of one that is cut along its slowest axis lie one
/// after the other; each has one house only.
fn housed(graph: &Graph, roles: &[Role], alignment: u64) -> Vec<Option<(Value, u64)>> {
    let mut housed = vec![None; roles.len()];
    for value in graph.values().filter(|v| roles[v.index()] == Role::Step) {
        for (piece, offset) in pieces(graph, value) {
            let computed = roles[piece.index()] == Role::Step && graph.ty(piece).bytes() < graph.ty(value).bytes();
            if computed && offset.is_multiple_of(alignment) && housed[piece.index()].is_none() {
                housed[piece.index()] = Some((value, offset));
            }
        }
    }
    housed
}

/// The operands of a concatenation whose pieces lie one after the other, and where in it each begins.
pub(super) fn pieces(graph: &Graph, value: Value) -> Vec<(Value, u64)> {
    let node = graph.node(value);
    match node.op {
        Op::Concat { axis } if node.ty.shape[..axis].iter().all(|&d| d == 1) => {
            let ends = node.inputs.iter().scan(0, |end, &piece| {
                let start = *end;
                *end += graph.ty(piece).bytes();
                Some((piece, start))
            });
            ends.collect()
        }
        _ => vec![],
    }
}

/// A piece of memory and the steps between which it is in use.
#[derive(Clone, Copy, Debug)]
pub(super) struct Buffer {
    pub(super) bytes: u64,
    pub(super) first: usize,
    pub(super) last: usize,
}

/// What lives when, for one order of execution.
pub(super) struct Lifetimes {
    pub(super) buffers: Vec<Buffer>,
    /// By value (no views): its buffer.
    buffer_of: Vec<Option<u32>>,
    /// By step: the buffer of its scratch memory.
    scratch_of: Vec<Option<u32>>,
    /// What rests in the host's memory, and by value its place among that.
    pub(super) resting: Vec<Buffer>,
    resting_of: Vec<Option<u32>>,
    steps: usize,
}

impl Lifetimes {
    pub(super) fn new(graph: &Graph, analysis: &Analysis, order: &[Value]) -> Self {
        // Results live on after the last step.
        let end = order.len();
        let last_use = last_uses(graph, analysis, order);
        let last = |value: Value, first: usize| match analysis.is_kept(value) {
            true => end,
            false => last_use[value.index()].unwrap_or(first),
        };
        let mut buffers: Vec<Buffer> = Vec::with_capacity(2 * order.len());
        let mut buffer_of = vec![None; graph.nodes().len()];
        let (mut resting, mut resting_of) = (vec![], vec![None; graph.nodes().len()]);
        for input in analysis.inputs() {
            buffer_of[input.index()] = Some(buffers.len() as u32);
            buffers.push(Buffer { bytes: graph.ty(input).bytes(), first: 0, last: last(input, 0) });
        }
        for (at, &value) in order.iter().enumerate() {
            if analysis.rests[value.index()] {
                resting_of[value.index()] = Some(resting.len() as u32);
                resting.push(Buffer { bytes: graph.ty(value).bytes(), first: at, last: last(value, at) });
                continue;
            }
            let (root, _) = analysis.root(value);
            if let Some(house) = buffer_of[root.index()] {
                buffer_of[value.index()] = Some(house);
                continue;
            }
            if root != value {
                // The first piece: from now on there is room for all.
                buffer_of[value.index()] = Some(buffers.len() as u32);
                buffer_of[root.index()] = Some(buffers.len() as u32);
                buffers.push(Buffer { bytes: graph.ty(root).bytes(), first: at, last: last(root, at) });
                continue;
            }
            match overwritten(graph, analysis, &buffer_of, &buffers, value, at) {
                Some(buffer) => {
                    buffers[buffer as usize].last = last(value, at);
                    buffer_of[value.index()] = Some(buffer);
                }
                None => {
                    buffer_of[value.index()] = Some(buffers.len() as u32);
                    buffers.push(Buffer { bytes: graph.ty(value).bytes(), first: at, last: last(value, at) });
                }
            }
        }
        let mut scratch_of = vec![None; order.len()];
        for (at, &value) in order.iter().enumerate() {
            let bytes = analysis.scratch(value);
            if bytes > 0 {
                scratch_of[at] = Some(buffers.len() as u32);
                buffers.push(Buffer { bytes, first: at, last: at });
            }
        }
        Lifetimes { buffers, buffer_of, scratch_of, resting, resting_of, steps: order.len() }
    }

    /// The largest sum of bytes live at one step.
    pub(super) fn peak_bytes(&self) -> u64 {
        peak_bytes(&self.buffers)
    }

    /// The first step where most is live; the last one if that is after the run.
    pub(super) fn peak_step(&self) -> usize {
        let live = live(&self.buffers);
        let peak = (0..live.len()).max_by_key(|&i| (live[i], usize::MAX - i)).unwrap_or(0);
        peak.min(self.steps.saturating_sub(1))
    }

    /// The values whose bytes are in use at a step, by graph order.
    pub(super) fn live_at(&self, step: usize) -> impl Iterator<Item = Value> + '_ {
        self.buffer_of.iter().enumerate().filter_map(move |(i, b)| {
            let b = &self.buffers[(*b)? as usize];
            (b.first <= step && step <= b.last).then_some(Value(i as u32))
        })
    }

    /// Where each value lies, with these offsets of buffers and of what rests.
    pub(super) fn places(&self, graph: &Graph, analysis: &Analysis, offsets: &[u64], resting: &[u64]) -> Vec<Location> {
        graph
            .values()
            .map(|value| {
                if let Some(at) = self.resting_of[value.index()] {
                    return Location::Host(Span { offset: resting[at as usize], bytes: graph.ty(value).bytes() });
                }
                let (root, offset) = analysis.root(value);
                match self.buffer_of[root.index()] {
                    Some(b) => {
                        Location::Arena(Span { offset: offsets[b as usize] + offset, bytes: graph.ty(value).bytes() })
                    }
                    None if analysis.planned_root(value).is_none() => Location::Weight(root),
                    None => Location::Nowhere,
                }
            })
            .collect()
    }

    pub(super) fn scratch(&self, step: usize, offsets: &[u64]) -> Option<Span> {
        let b = self.scratch_of[step]? as usize;
        Some(Span { offset: offsets[b], bytes: self.buffers[b].bytes })
    }
}

/// Bytes live at each step, and after the last.
fn live(buffers: &[Buffer]) -> Vec<u64> {
    let mut change = vec![0i64; buffers.iter().map(|b| b.last + 2).max().unwrap_or(0)];
    for b in buffers {
        change[b.first] += b.bytes as i64;
        change[b.last + 1] -= b.bytes as i64;
    }
    change.pop();
    let mut sum = 0;
    change
        .iter()
        .map(|c| {
            sum += c;
            sum as u64
        })
        .collect()
}

/// The largest sum of bytes live at one step.
pub(super) fn peak_bytes(buffers: &[Buffer]) -> u64 {
    live(buffers).into_iter().max().unwrap_or(0)
}

/// By value (roots only): the last step that reads its bytes.
fn last_uses(graph: &Graph, analysis: &Analysis, order: &[Value]) -> Vec<Option<usize>> {
    let mut last = vec![None; graph.nodes().len()];
    for (at, &value) in order.iter().enumerate() {
        for root in graph.node(value).inputs.iter().filter_map(|&i| analysis.planned_root(i)) {
            last[root.index()] = Some(at);
        }
    }
    last
}

/// The buffer of an operand whose place the result may take: nobody needs it after this step, and no other operand
/// of the step reads it.
fn overwritten(
    graph: &Graph,
    analysis: &Analysis,
    buffer_of: &[Option<u32>],
    buffers: &[Buffer],
    value: Value,
    at: usize,
) -> Option<u32> {
    let inputs = &graph.node(value).inputs;
    let buffer = |i: usize| analysis.arena_root(inputs[i]).and_then(|root| buffer_of[root.index()]);
    let allowed = analysis.overwritable(value);
    allowed.iter().copied().find_map(|i| {
        let b = buffer(i)?;
        let whole = analysis.root(inputs[i]).1 == 0 && buffers[b as usize].bytes == graph.ty(value).bytes();
        let dies = buffers[b as usize].last == at;
        let alone = (0..inputs.len()).all(|j| buffer(j) != Some(b) || allowed.contains(&j));
        (whole && dies && alone).then_some(b)
    })
}
