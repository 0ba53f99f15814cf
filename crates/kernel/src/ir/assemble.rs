//! Writing a kernel: regions are opened, filled and closed; an op with regions is added after the last of them is closed.

use std::panic::Location;

use super::kernel::{Kernel, OpId, OpRecord, Region, RegionId, Value};
use super::op::OpKind;
use super::types::{Scalar, Ty};

#[derive(Debug, Default)]
struct OpenRegion {
    region: u32,
    ops: Vec<OpId>,
    ended: bool,
    /// Opened after a terminator, so nothing in it ever runs.
    dead: bool,
}

/// Fills the tables of a kernel. Open regions are a stack, and an op may be put into any of them: after what stands there, before the
/// op whose region is open above it. So to hoist an op is to add it further down the stack.
#[derive(Debug)]
pub struct Assembler {
    /// The kernel as far as it is written.
    pub kernel: Kernel,
    open: Vec<OpenRegion>,
    spare: Vec<Vec<OpId>>,
    broken: Vec<bool>,
    /// The op that gives each value; region arguments have none.
    defs: Vec<OpId>,
    /// The number of the place that ops get which are added now.
    place: u32,
}

impl Assembler {
    /// Begins with the outermost region open.
    pub fn new(header: Kernel) -> Assembler {
        let defs = Vec::with_capacity(header.values.capacity());
        let mut a =
            Assembler { kernel: header, open: Vec::new(), spare: Vec::new(), broken: Vec::new(), defs, place: 0 };
        a.kernel.body = a.open(&[]);
        a
    }

    /// Opens a region with arguments of these types.
    pub fn open(&mut self, args: &[Ty]) -> RegionId {
        let k = &mut self.kernel;
        let region = k.regions.len() as u32;
        let first = k.values.len() as u32;
        k.values.extend_from_slice(args);
        self.defs.resize(k.values.len(), OpId(u32::MAX));
        k.regions.push(Region { args: first, n_args: args.len() as u32, ops: 0, n_ops: 0 });
        self.broken.push(false);
        let dead = self.open.last().is_some_and(|o| o.ended || o.dead);
        self.open.push(OpenRegion { region, ops: self.spare.pop().unwrap_or_default(), ended: false, dead });
        RegionId(region)
    }

    /// Closes the innermost region.
    pub fn close(&mut self) -> RegionId {
        let Some(mut top) = self.open.pop() else { return RegionId(0) };
        let k = &mut self.kernel;
        let r = &mut k.regions[top.region as usize];
        (r.ops, r.n_ops) = (k.lists.len() as u32, top.ops.len() as u32);
        k.lists.append(&mut top.ops);
        self.spare.push(top.ops);
        RegionId(top.region)
    }

    /// How many regions are open.
    pub fn depth(&self) -> usize {
        self.open.len()
    }

    /// Whether a terminator was added to the innermost region. What is added after it would never run.
    pub fn ended(&self) -> bool {
        self.open.last().is_some_and(|o| o.ended)
    }

    /// Whether what is added now would never run, in this region or in one around it.
    pub fn unreachable(&self) -> bool {
        self.open.last().is_some_and(|o| o.ended || o.dead)
    }

    /// Adds an op to the innermost region.
    pub fn push(&mut self, kind: OpKind, args: &[Value], results: &[Ty]) -> OpId {
        self.push_structure(kind, args, results, &[])
    }

    /// Adds an op with one result.
    pub fn value(&mut self, kind: OpKind, args: &[Value], ty: Ty) -> Value {
        let op = self.push(kind, args, &[ty]);
        self.kernel.result(op)
    }

    /// Adds an op with regions to the innermost region.
    pub fn push_structure(&mut self, kind: OpKind, args: &[Value], results: &[Ty], regions: &[RegionId]) -> OpId {
        let (args, results) = (args.iter().copied(), results.iter().copied());
        self.push_at(self.open.len() - 1, kind, args, results, regions)
    }

    /// Adds an op to the open region with this number, 0 being the outermost.
    pub fn push_at(
        &mut self,
        level: usize,
        kind: OpKind,
        args: impl IntoIterator<Item = Value>,
        results: impl IntoIterator<Item = Ty>,
        regions: &[RegionId],
    ) -> OpId {
        let k = &mut self.kernel;
        let id = OpId(k.ops.len() as u32);
        let (operands, values) = (k.operands.len(), k.values.len());
        k.operands.extend(args);
        k.values.extend(results);
        k.ops.push(OpRecord {
            kind,
            args: operands as u32,
            n_args: (k.operands.len() - operands) as u32,
            results: values as u32,
            n_results: (k.values.len() - values) as u32,
            regions: k.nested.len() as u32,
            n_regions: regions.len() as u32,
        });
        k.sources.record(self.place);
        self.defs.resize(k.values.len(), id);
        k.nested.extend_from_slice(regions);
        let open = &mut self.open[level];
        // What stands after a terminator never runs: it has values, so that a caller can go on, and no place.
        if !open.ended {
            open.ops.push(id);
            open.ended = kind.is_terminator();
            if let (OpKind::Break(r), false) = (kind, open.dead) {
                self.broken[r.index()] = true;
            }
        }
        id
    }

    /// What is added from now on was written here; gives the number of the place.
    pub fn at(&mut self, place: &'static Location<'static>) -> u32 {
        self.place = self.kernel.sources.add(place);
        self.place
    }

    /// What is added from now on was written where this number stands for.
    pub fn at_number(&mut self, number: u32) {
        self.place = number;
    }

    /// What is added from now on stands for this op of the kernel that this one is made of.
    pub fn stands_for(&mut self, old: &Kernel, op: OpId) {
        self.place = old.sources.number(op.index());
    }

    /// The number of a constant in the pool.
    pub fn const_number(&mut self, bits: u64) -> u32 {
        let k = &mut self.kernel;
        *k.const_numbers.entry(bits).or_insert_with(|| {
            k.consts.push(bits);
            k.consts.len() as u32 - 1
        })
    }

    /// Adds a scalar constant.
    pub fn constant(&mut self, ty: Scalar, bits: u64) -> Value {
        let number = self.const_number(bits & ty.mask());
        self.value(OpKind::Const(number), &[], Ty::scalar(ty))
    }

    /// The op that gives a value, if it is no argument of a region.
    pub fn def(&self, v: Value) -> Option<OpId> {
        self.defs.get(v.index()).copied().filter(|op| op.0 != u32::MAX)
    }

    /// The kind and the operands of the op that gives a value.
    pub fn made_by(&self, v: Value) -> Option<(OpKind, &[Value])> {
        self.def(v).map(|op| (self.kernel.kind(op), self.kernel.args(op)))
    }

    /// The bits of a value that is a constant.
    pub fn as_const(&self, v: Value) -> Option<u64> {
        match self.made_by(v) {
            Some((OpKind::Const(c), _)) => Some(self.kernel.const_bits(c)),
            _ => None,
        }
    }

    /// The number of a case table.
    pub fn case_table(&mut self, cases: Vec<(u64, u32)>) -> u32 {
        self.kernel.cases.push(cases);
        self.kernel.cases.len() as u32 - 1
    }

    /// Whether what stands after this op can be reached.
    pub fn falls_through(&self, op: OpId) -> bool {
        self.kernel.falls_through(op, &self.broken)
    }

    /// The kernel, when all regions are closed.
    pub fn finish(mut self) -> Kernel {
        while !self.open.is_empty() {
            self.close();
        }
        self.kernel
    }
}
