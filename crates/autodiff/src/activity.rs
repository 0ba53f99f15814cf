//! What a derivative flows through. Values and memories are nodes, each way that a derivative can take from one to another is an edge;
//! what can be reached from the inputs varies, what reaches an output is useful, and what is both is active. Cost: linear.

use std::collections::HashSet;

use impasto_kernel::hash::Map;
use impasto_kernel::ir::{Access, Atomic, Kernel, MemoryId, OpId, OpKind, RegionId, Scalar, Space, Subgroup, Value};

use super::table;

/// A way that a derivative takes through an op.
#[derive(Clone, Copy, Debug)]
pub(super) struct Edge {
    pub(super) op: OpId,
    pub(super) from: u32,
    pub(super) to: u32,
}

/// Where ops and values stand.
pub(super) struct Places {
    /// The region that each op stands in, and the op around each region.
    pub(super) home: Vec<RegionId>,
    pub(super) owner: Vec<Option<OpId>>,
    /// The region that each value is defined in, and the op whose result it is.
    pub(super) scope: Vec<RegionId>,
    pub(super) def: Vec<Option<OpId>>,
    /// All ops, in order, each structure before what is in it.
    pub(super) ops: Vec<OpId>,
}

impl Places {
    pub(super) fn new(k: &Kernel) -> Places {
        let mut p = Places {
            home: vec![k.body(); k.op_count()],
            owner: vec![None; k.region_count()],
            scope: vec![k.body(); k.value_count()],
            def: vec![None; k.value_count()],
            ops: Vec::new(),
        };
        p.region(k, k.body());
        p
    }

    fn region(&mut self, k: &Kernel, r: RegionId) {
        k.region_args(r).for_each(|v| self.scope[v.index()] = r);
        for &op in k.region_ops(r) {
            self.ops.push(op);
            self.home[op.index()] = r;
            for v in k.results(op) {
                self.scope[v.index()] = r;
                self.def[v.index()] = Some(op);
            }
            for &inner in k.regions(op) {
                self.owner[inner.index()] = Some(op);
                self.region(k, inner);
            }
        }
    }

    /// The regions around a region, from itself outwards.
    pub(super) fn around<'a>(&'a self, r: RegionId) -> impl Iterator<Item = RegionId> + 'a {
        std::iter::successors(Some(r), |r| self.owner[r.index()].map(|op| self.home[op.index()]))
    }

    pub(super) fn inside(&self, r: RegionId, of: RegionId) -> bool {
        self.around(r).any(|x| x == of)
    }
}

/// What is active.
pub(super) struct Activity {
    values: usize,
    varied: Vec<bool>,
    useful: Vec<bool>,
    pub(super) edges: Vec<Edge>,
    /// The active values from outside that the regions of an op use.
    pub(super) touched: Map<OpId, Vec<Value>>,
    /// Ops with active ones inside.
    pub(super) holds: HashSet<OpId>,
}

/// The edges of derivatives; or, if `numbers` is set, those that pass on integers made of floats.
fn edges(k: &Kernel, places: &Places, numbers: bool) -> Vec<Edge> {
    let mut all = Vec::new();
    let memory = |m: MemoryId| (k.value_count() + m.index()) as u32;
    let float = |v: Value| table::is_float(k.ty(v));
    let carries = |v: Value| {
        if numbers { k.ty(v).lanes().is_some_and(|l| !l.0.is_float()) } else { float(v) }
    };
    for &op in &places.ops {
        let args = k.args(op);
        let kind = k.kind(op);
        let mut edge = |from: u32, to: u32| all.push(Edge { op, from, to });
        let mut given = |values: &[Value], to: &mut dyn Iterator<Item = Value>| {
            values.iter().zip(to).filter(|(v, _)| carries(**v)).for_each(|(v, t)| edge(v.0, t.0));
        };
        match kind {
            OpKind::Yield => {
                let owner = places.owner[places.home[op.index()].index()];
                if let Some(p) = owner {
                    given(args, &mut k.results(p));
                }
            }
            OpKind::Loop => given(args, &mut k.region_args(k.regions(op)[0])),
            OpKind::For(_) => {
                given(&args[2..], &mut k.region_args(k.regions(op)[0]).skip(1));
                given(&args[2..], &mut k.results(op));
            }
            OpKind::Continue(r) | OpKind::Break(r) => {
                let Some(p) = places.owner[r.index()] else { continue };
                let counts = matches!(k.kind(p), OpKind::For(_));
                if let OpKind::Continue(_) = kind {
                    given(args, &mut k.region_args(r).skip(counts.into()));
                }
                if counts || matches!(kind, OpKind::Break(_)) {
                    given(args, &mut k.results(p));
                }
            }
            OpKind::Load(m) if carries(k.result(op)) => edge(memory(m), k.result(op).0),
            OpKind::Store(m) if carries(args[1]) => edge(args[1].0, memory(m)),
            OpKind::Atomic(m, _) if carries(args[1]) => {
                args[1..].iter().for_each(|v| edge(v.0, memory(m)));
                edge(memory(m), k.result(op).0);
            }
            OpKind::Make | OpKind::Insert(_) | OpKind::Extract(_) => {
                args.iter().filter(|v| carries(**v)).for_each(|v| edge(v.0, k.result(op).0));
            }
            OpKind::Convert if carries(args[0]) && carries(k.result(op)) => edge(args[0].0, k.result(op).0),
            OpKind::Subgroup(f) if !matches!(f, Subgroup::All | Subgroup::Any) && carries(args[0]) => {
                edge(args[0].0, k.result(op).0);
            }
            OpKind::Unary(_) | OpKind::Binary(_) | OpKind::Fma | OpKind::Select | OpKind::Custom
                if carries(k.result(op)) =>
            {
                for (i, v) in args.iter().enumerate() {
                    let passes = match kind {
                        OpKind::Custom => !numbers && table::needs(kind, i).is_some(),
                        OpKind::Select => i > 0,
                        _ => numbers || table::needs(kind, i).is_some(),
                    };
                    if passes {
                        edge(v.0, k.result(op).0);
                    }
                }
            }
            _ => {}
        }
    }
    all
}

/// The nodes that can be reached from these, along the edges or against them.
pub(super) fn reach(nodes: usize, edges: &[Edge], start: impl Iterator<Item = usize>, backwards: bool) -> Vec<bool> {
    let ends = |e: &Edge| if backwards { (e.to as usize, e.from) } else { (e.from as usize, e.to) };
    let mut first = vec![0u32; nodes + 1];
    edges.iter().for_each(|e| first[ends(e).0 + 1] += 1);
    (1..first.len()).for_each(|i| first[i] += first[i - 1]);
    let mut next = first.clone();
    let mut list = vec![0u32; edges.len()];
    for e in edges {
        let (a, b) = ends(e);
        list[next[a] as usize] = b;
        next[a] += 1;
    }
    let mut reached = vec![false; nodes];
    let mut open: Vec<usize> = start.collect();
    while let Some(n) = open.pop() {
        if !std::mem::replace(&mut reached[n], true) {
            open.extend(list[first[n] as usize..first[n + 1] as usize].iter().map(|&b| b as usize));
        }
    }
    reached
}

impl Activity {
    /// What is active between these inputs and outputs. `wrt` says of a buffer or parameter, by its name, whether it is an input.
    pub(super) fn new(k: &Kernel, places: &Places, wrt: &dyn Fn(&str) -> bool) -> Activity {
        let values = k.value_count();
        let nodes = values + k.memories().len();
        let edges = edges(k, places, false);
        let own =
            |m: &impasto_kernel::ir::MemoryDecl| matches!(m.space, Space::Buffer(Access::Read | Access::ReadWrite));
        let is_float = |ty: impasto_kernel::ir::Ty| ty.lanes().is_some_and(|l| l.0.is_float());
        let inputs = k.memories().iter().enumerate().filter(|(_, m)| own(m) && is_float(m.ty) && wrt(&m.name));
        let params = places.ops.iter().filter_map(|&op| match k.kind(op) {
            OpKind::Param(p) if k.params()[p as usize].ty == Scalar::F32 && wrt(&k.params()[p as usize].name) => {
                Some(k.result(op).index())
            }
            _ => None,
        });
        let varied = reach(nodes, &edges, inputs.map(|(i, _)| values + i).chain(params), false);
        let outputs = places.ops.iter().filter_map(|&op| match k.kind(op) {
            OpKind::Store(m) | OpKind::Atomic(m, _) if own(k.memory(m)) && is_float(k.memory(m).ty) => {
                Some(values + m.index())
            }
            _ => None,
        });
        let useful = reach(nodes, &edges, outputs, true);
        let mut a = Activity { values, varied, useful, edges, touched: Map::default(), holds: HashSet::new() };
        a.mark(k, places);
        a
    }

    fn active(&self, node: usize) -> bool {
        self.varied[node] && self.useful[node]
    }

    pub(super) fn value(&self, v: Value) -> bool {
        self.active(v.index())
    }

    pub(super) fn memory(&self, m: MemoryId) -> bool {
        self.active(self.values + m.index())
    }

    /// Whether a value depends on the inputs.
    pub(super) fn varies(&self, v: Value) -> bool {
        self.varied[v.index()]
    }

    /// Whether a memory depends on the inputs.
    pub(super) fn memory_varies(&self, m: MemoryId) -> bool {
        self.varied[self.values + m.index()]
    }

    /// The ops that derivatives flow through, each once for each operand and result, with the operand if it is a value.
    pub(super) fn active_edges(&self) -> impl Iterator<Item = (OpId, Option<Value>)> {
        let from = |e: &Edge| Some(Value(e.from)).filter(|v| v.index() < self.values);
        self.edges.iter().filter(|e| self.edge(e)).map(move |e| (e.op, from(e)))
    }

    pub(super) fn edge(&self, e: &Edge) -> bool {
        self.active(e.from as usize) && self.active(e.to as usize)
    }

    fn mark(&mut self, k: &Kernel, places: &Places) {
        let mut seen = HashSet::new();
        let mut acts: Vec<OpId> = Vec::new();
        for e in &self.edges {
            if !self.edge(e) {
                continue;
            }
            acts.push(e.op);
            // A loop that no derivative flows through may still give what it was given: when it has no iteration.
            if k.kind(e.op).is_structure() {
                self.holds.insert(e.op);
            }
            if e.from as usize >= self.values {
                continue;
            }
            let v = Value(e.from);
            for r in places.around(places.home[e.op.index()]) {
                let Some(op) = places.owner[r.index()].filter(|_| r != places.scope[v.index()]) else { break };
                if !seen.insert((op, v)) {
                    break;
                }
                self.touched.entry(op).or_default().push(v);
            }
        }
        // A store of what does not vary, into what does, takes an adjoint away.
        acts.extend(places.ops.iter().filter(|&&op| match k.kind(op) {
            OpKind::Store(m) | OpKind::Atomic(m, _) => self.memory(m),
            OpKind::Param(_) => self.value(k.result(op)),
            _ => false,
        }));
        for op in acts {
            for r in places.around(places.home[op.index()]) {
                match places.owner[r.index()] {
                    Some(around) => self.holds.insert(around),
                    None => break,
                };
            }
        }
        for list in self.touched.values_mut() {
            list.sort_unstable();
        }
    }

    /// An op that makes an integer of a float that varies, where that number comes back as a float that is useful or is written.
    pub(super) fn through_numbers(&self, k: &Kernel, places: &Places) -> Option<OpId> {
        let edges = edges(k, places, true);
        let nodes = self.values + k.memories().len();
        let float = |v: Value| table::is_float(k.ty(v));
        let casts = places.ops.iter().copied().filter(|&op| {
            let cast = matches!(k.kind(op), OpKind::Convert | OpKind::Bitcast);
            cast && float(k.args(op)[0]) && !float(k.result(op)) && self.varies(k.args(op)[0])
        });
        let casts: Vec<OpId> = casts.collect();
        let made = reach(nodes, &edges, casts.iter().map(|&op| k.result(op).index()), false);
        let lost = places.ops.iter().copied().filter(|&op| match k.kind(op) {
            OpKind::Convert | OpKind::Bitcast => {
                made[k.args(op)[0].index()] && float(k.result(op)) && self.useful[k.result(op).index()]
            }
            // Whether what was kept is used is asked where it is read.
            OpKind::Store(m) if k.memory(m).space == Space::Buffer(Access::Tape) => false,
            OpKind::Store(_) | OpKind::Atomic(..) => k.args(op)[1..].iter().any(|v| made[v.index()]),
            _ => false,
        });
        let ends: Vec<usize> = lost.map(|op| k.args(op).last().map_or(0, |v| v.index())).collect();
        if ends.is_empty() {
            return None;
        }
        let guilty = reach(nodes, &edges, ends.into_iter(), true);
        casts.into_iter().find(|&op| guilty[k.result(op).index()])
    }
}

/// Whether an atomic changes floats in a way that has a derivative.
pub(super) fn differentiable(a: Atomic) -> bool {
    matches!(a, Atomic::Add | Atomic::Exchange)
}
