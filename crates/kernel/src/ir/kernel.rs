//! A kernel as arenas: ops, values and regions are numbers into flat tables, and nothing is boxed. An op costs about fifty bytes,
//! operands and result included. Tables are written once, by the [`Assembler`](super::Assembler); passes write a new kernel.

use std::collections::HashMap;
use std::ops::Range;
use std::panic::Location;
use std::sync::Arc;

use crate::hash::Map;

use super::foreign::ForeignTable;
use super::op::OpKind;
use super::sources::Sources;
use super::types::{Matrix, Members, Scalar, Shape, Ty};

macro_rules! index {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub u32);
        impl $name {
            /// The number.
            pub fn index(self) -> usize {
                self.0 as usize
            }
        }
    };
}

index! {
    /// A value: the result of an op, or an argument of a region.
    Value
}
index! {
    /// An op.
    OpId
}
index! {
    /// A region.
    RegionId
}
index! {
    /// A buffer, a workgroup array or a private array.
    MemoryId
}
index! {
    /// A variable, before SSA construction.
    VarId
}

/// Whether a kernel may write a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// It only reads it.
    Read,
    /// It reads and writes it.
    ReadWrite,
    /// It keeps values there, each invocation in elements of its own, which mean nothing before and after a launch. What it reads was written
    /// in the same region, or around it, and stays until the region ends. Differentiation makes these.
    Tape,
    /// It reads and changes it, each invocation elements of its own: the adjoint of a tape.
    Scratch,
}

/// Where elements lie, and who sees them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Space {
    /// A storage buffer, of a length that is known when the kernel runs. Two buffers of a kernel never share memory.
    Buffer(Access),
    /// An array that the invocations of a workgroup share. It holds nothing until it is written.
    Workgroup(u32),
    /// An array of one invocation, zero at the start.
    Private(u32),
    /// An array of one invocation in registers: every index is a constant. It holds nothing until it is written.
    Registers(u32),
    /// Memory of an imported kernel, which ops name by pointers: what others see, too, or only this invocation.
    Pointed {
        /// Whether others see it.
        shared: bool,
    },
}

/// Elements of one type that ops read and write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryDecl {
    /// The name in messages and in the textual form.
    pub name: String,
    /// The type of an element.
    pub ty: Ty,
    /// Where the elements lie.
    pub space: Space,
}

/// A number that the caller gives at launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScalarParam {
    /// The name in messages and in the textual form.
    pub name: String,
    /// Its type.
    pub ty: Scalar,
}

/// An operation, with where its operands, results and regions stand in the tables.
#[derive(Clone, Copy, Debug)]
pub struct OpRecord {
    /// What it does.
    pub kind: OpKind,
    pub(super) args: u32,
    pub(super) n_args: u32,
    pub(super) results: u32,
    pub(super) n_results: u32,
    pub(super) regions: u32,
    pub(super) n_regions: u32,
}

/// A list of ops, the last of which is a terminator, and the arguments they may use.
#[derive(Clone, Copy, Debug, Default)]
pub struct Region {
    pub(super) args: u32,
    pub(super) n_args: u32,
    pub(super) ops: u32,
    pub(super) n_ops: u32,
}

/// One kernel. Read it through its methods; write one with the [`Builder`](crate::Builder) or in the textual form.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// The name of the entry point, and of the kernel in every message.
    pub name: String,
    /// Invocations in a workgroup: x, y, z.
    pub workgroup: [u32; 3],
    pub(crate) params: Vec<ScalarParam>,
    pub(crate) memories: Vec<MemoryDecl>,
    pub(crate) vars: Vec<Ty>,
    pub(super) shapes: Vec<Shape>,
    pub(super) shape_numbers: HashMap<Shape, Ty>,
    pub(super) consts: Vec<u64>,
    pub(super) const_numbers: Map<u64, u32>,
    pub(super) cases: Vec<Vec<(u64, u32)>>,
    pub(super) ops: Vec<OpRecord>,
    pub(super) operands: Vec<Value>,
    pub(super) values: Vec<Ty>,
    pub(super) regions: Vec<Region>,
    pub(super) nested: Vec<RegionId>,
    pub(super) lists: Vec<OpId>,
    pub(super) body: RegionId,
    pub(crate) foreign: Option<Arc<dyn ForeignTable>>,
    pub(crate) sources: Sources,
    /// The adjoint that was given instead of one that is made.
    pub(crate) gradient: Option<Arc<Kernel>>,
    /// The kernel that this one was optimised from.
    pub(crate) original: Option<Arc<Kernel>>,
    /// Whether a pass moved ops to where they run although they would not have run as the kernel was written.
    pub(crate) speculated: bool,
}

fn range(start: u32, n: u32) -> Range<usize> {
    start as usize..start as usize + n as usize
}

impl Kernel {
    /// A kernel with no ops, to be filled by an assembler.
    pub fn empty(name: &str, workgroup: [u32; 3]) -> Kernel {
        Kernel {
            name: name.to_owned(),
            workgroup,
            params: Vec::new(),
            memories: Vec::new(),
            vars: Vec::new(),
            shapes: Vec::new(),
            shape_numbers: HashMap::new(),
            consts: Vec::new(),
            const_numbers: Map::default(),
            cases: Vec::new(),
            ops: Vec::new(),
            operands: Vec::new(),
            values: Vec::new(),
            regions: Vec::new(),
            nested: Vec::new(),
            lists: Vec::new(),
            body: RegionId(0),
            foreign: None,
            sources: Sources::default(),
            gradient: None,
            original: None,
            speculated: false,
        }
    }

    /// The same parameters, memory, variables, types, constants and case tables, with no ops yet, and room for as many.
    pub fn header(&self) -> Kernel {
        Kernel {
            params: self.params.clone(),
            memories: self.memories.clone(),
            vars: self.vars.clone(),
            shapes: self.shapes.clone(),
            shape_numbers: self.shape_numbers.clone(),
            consts: self.consts.clone(),
            const_numbers: self.const_numbers.clone(),
            cases: self.cases.clone(),
            foreign: self.foreign.clone(),
            ops: Vec::with_capacity(self.ops.len()),
            operands: Vec::with_capacity(self.operands.len()),
            values: Vec::with_capacity(self.values.len()),
            regions: Vec::with_capacity(self.regions.len()),
            nested: Vec::with_capacity(self.nested.len()),
            lists: Vec::with_capacity(self.lists.len()),
            sources: self.sources.header(),
            gradient: self.gradient.clone(),
            speculated: self.speculated,
            ..Kernel::empty(&self.name, self.workgroup)
        }
    }

    /// The scalar parameters, in order.
    pub fn params(&self) -> &[ScalarParam] {
        &self.params
    }

    /// Buffers and arrays. Buffers are bound in this order.
    pub fn memories(&self) -> &[MemoryDecl] {
        &self.memories
    }

    /// One buffer or array.
    pub fn memory(&self, m: MemoryId) -> &MemoryDecl {
        &self.memories[m.index()]
    }

    /// Buffers and arrays, to add to them or to change them. What no longer fits the ops is refused by the verifier.
    pub fn memories_mut(&mut self) -> &mut Vec<MemoryDecl> {
        self.original = None;
        &mut self.memories
    }

    /// The types of the variables.
    pub fn vars(&self) -> &[Ty] {
        &self.vars
    }

    /// Adds a variable.
    pub fn add_var(&mut self, ty: Ty) -> VarId {
        self.vars.push(ty);
        VarId(self.vars.len() as u32 - 1)
    }

    /// The table of the foreign ops of an imported kernel.
    pub fn foreign(&self) -> Option<&Arc<dyn ForeignTable>> {
        self.foreign.as_ref()
    }

    /// Whether ops may compute values of this scalar: in imported kernels some types are storage formats only.
    pub fn computes(&self, scalar: Scalar) -> bool {
        self.foreign.as_ref().is_none_or(|f| !f.is_storage_only(scalar))
    }

    /// Makes this an imported kernel, with the table of its foreign ops.
    pub fn set_foreign(&mut self, table: Arc<dyn ForeignTable>) {
        self.foreign = Some(table);
    }

    /// The number that an op has by [`Assembler::at_number`](super::Assembler::at_number), or of its place in the source; 0 if none.
    pub fn place_number(&self, op: OpId) -> u32 {
        self.sources.number(op.index())
    }

    /// Makes ops keep the numbers that an importer gives them, through all passes.
    pub fn keep_numbers(&mut self) {
        self.sources = Sources::recorded();
        self.sources.follow(true);
    }

    /// The kernel as it was written, of one that [`optimise`](crate::optimise) made; what derivatives are taken of.
    pub fn original(&self) -> Option<Kernel> {
        let original = self.original.as_deref()?;
        Some(Kernel { name: self.name.clone(), workgroup: self.workgroup, ..original.clone() })
    }

    /// Whether a pass moved ops to where they run although they would not have run as the kernel was written, such as a quotient out of the branch
    /// that sees to its divisor. The results are the same; derivatives, of what is computed and not used, need not be.
    pub fn is_speculated(&self) -> bool {
        self.speculated
    }

    /// Whether passes keep the places in the source of ops, for messages.
    pub fn follow_sources(&mut self, follow: bool) {
        self.sources.follow(follow);
    }

    /// The outermost region.
    pub fn body(&self) -> RegionId {
        self.body
    }

    /// One op.
    pub fn op(&self, op: OpId) -> OpRecord {
        self.ops[op.index()]
    }

    /// The kind of an op.
    pub fn kind(&self, op: OpId) -> OpKind {
        self.ops[op.index()].kind
    }

    /// The operands of an op.
    pub fn args(&self, op: OpId) -> &[Value] {
        let o = &self.ops[op.index()];
        &self.operands[range(o.args, o.n_args)]
    }

    /// The results of an op.
    pub fn results(&self, op: OpId) -> impl ExactSizeIterator<Item = Value> + Clone + use<> {
        let o = &self.ops[op.index()];
        (o.results..o.results + o.n_results).map(Value)
    }

    /// The types of the results of an op.
    pub fn result_types(&self, op: OpId) -> &[Ty] {
        let o = &self.ops[op.index()];
        &self.values[range(o.results, o.n_results)]
    }

    /// The only result of an op that has one.
    pub fn result(&self, op: OpId) -> Value {
        Value(self.ops[op.index()].results)
    }

    /// Where an op was written, in a kernel that was built and not yet changed by passes.
    pub fn place(&self, op: OpId) -> Option<&'static Location<'static>> {
        self.sources.place(op.index())
    }

    /// The regions of an op.
    pub fn regions(&self, op: OpId) -> &[RegionId] {
        let o = &self.ops[op.index()];
        &self.nested[range(o.regions, o.n_regions)]
    }

    /// The arguments of a region.
    pub fn region_args(&self, r: RegionId) -> impl ExactSizeIterator<Item = Value> + Clone + use<> {
        let r = self.regions[r.index()];
        (r.args..r.args + r.n_args).map(Value)
    }

    /// The ops of a region.
    pub fn region_ops(&self, r: RegionId) -> &[OpId] {
        let r = self.regions[r.index()];
        &self.lists[range(r.ops, r.n_ops)]
    }

    /// The terminator of a region.
    pub fn terminator(&self, r: RegionId) -> Option<OpId> {
        self.region_ops(r).last().copied()
    }

    /// The type of a value.
    pub fn ty(&self, v: Value) -> Ty {
        self.values[v.index()]
    }

    /// What a type is made of.
    pub fn shape(&self, ty: Ty) -> Shape {
        match (ty.table_index(), ty.lanes()) {
            (_, Some((s, 1))) => Shape::Scalar(s),
            (_, Some((s, n))) => Shape::Vector(s, n),
            (Some(i), None) => self.shapes[i].clone(),
            (None, None) => unreachable!("a type is a scalar, a vector or in the table"),
        }
    }

    /// The matrix, if the type is one.
    pub fn matrix(&self, ty: Ty) -> Option<Matrix> {
        match self.shapes.get(ty.table_index()?)? {
            Shape::Matrix(m) => Some(*m),
            _ => None,
        }
    }

    /// The scalar that a scalar, a vector or a matrix is made of.
    pub fn scalar_of(&self, ty: Ty) -> Option<Scalar> {
        ty.lanes().map(|l| l.0).or_else(|| self.matrix(ty).map(|m| m.scalar))
    }

    /// Whether values of any matrix type were made here.
    pub fn knows_matrices(&self) -> bool {
        self.shapes.iter().any(|s| matches!(s, Shape::Matrix(_)))
    }

    /// Makes every matrix type another type, for all values that have it.
    pub fn replace_matrices(&mut self, with: impl Fn(Matrix) -> Shape) {
        for (i, shape) in self.shapes.iter_mut().enumerate() {
            if let Shape::Matrix(m) = *shape {
                self.shape_numbers.remove(shape);
                *shape = with(m);
                self.shape_numbers.entry(shape.clone()).or_insert(Ty::from_table(i));
            }
        }
    }

    /// Arrays, structs and matrices in the table; each is made of scalars, vectors and earlier ones.
    pub fn shape_count(&self) -> usize {
        self.shapes.len()
    }

    /// Types that there are numbers for.
    pub fn type_count(&self) -> usize {
        Ty::from_table(self.shapes.len()).number()
    }

    /// The number of a type. Scalars and vectors give the numbers that they always have.
    pub fn intern(&mut self, shape: Shape) -> Option<Ty> {
        match shape {
            Shape::Scalar(s) => Some(Ty::scalar(s)),
            Shape::Vector(s, n) => Ty::vector(s, n),
            shape => Some(*self.shape_numbers.entry(shape).or_insert_with_key(|shape| {
                self.shapes.push(shape.clone());
                Ty::from_table(self.shapes.len() - 1)
            })),
        }
    }

    /// The type of a member of a composite.
    pub fn member(&self, ty: Ty, i: u32) -> Option<Ty> {
        match self.shape(ty) {
            Shape::Scalar(_) | Shape::Matrix(_) => None,
            Shape::Vector(s, n) => (i < n).then_some(Ty::scalar(s)),
            Shape::Array(t, n) => (i < n).then_some(t),
            Shape::Struct(members) | Shape::Foreign(_, Members::Each(members)) => members.get(i as usize).copied(),
            Shape::Foreign(_, Members::Same(t, n) | Members::Lanes(t, n)) => (i < n).then_some(t),
            Shape::Foreign(_, Members::None) => None,
        }
    }

    /// The number of members of a composite; a scalar has none, nor has a matrix.
    pub fn members(&self, ty: Ty) -> u32 {
        match self.shape(ty) {
            Shape::Scalar(_) | Shape::Matrix(_) => 0,
            Shape::Vector(_, n) | Shape::Array(_, n) => n,
            Shape::Struct(members) | Shape::Foreign(_, Members::Each(members)) => members.len() as u32,
            Shape::Foreign(_, Members::Same(_, n) | Members::Lanes(_, n)) => n,
            Shape::Foreign(_, Members::None) => 0,
        }
    }

    /// The bits of a constant.
    pub fn const_bits(&self, index: u32) -> u64 {
        self.consts[index as usize]
    }

    /// The cases of a `switch`: a value of the selector, and the region that it runs.
    pub fn switch_cases(&self, index: u32) -> &[(u64, u32)] {
        &self.cases[index as usize]
    }

    /// Ops in the tables, also those that no region lists.
    pub fn op_count(&self) -> usize {
        self.ops.len()
    }

    /// The ops in the tables, also those that no region lists.
    pub fn ops(&self) -> impl Iterator<Item = OpId> + use<> {
        (0..self.ops.len() as u32).map(OpId)
    }

    /// The kinds of the ops in the tables, in the same order.
    pub fn kinds(&self) -> impl Iterator<Item = OpKind> {
        self.ops.iter().map(|op| op.kind)
    }

    /// Values in the tables.
    pub fn value_count(&self) -> usize {
        self.values.len()
    }

    /// Regions in the tables.
    pub fn region_count(&self) -> usize {
        self.regions.len()
    }

    /// Bytes of the tables.
    pub fn bytes(&self) -> usize {
        size_of::<OpRecord>() * self.ops.capacity()
            + 4 * (self.operands.capacity() + self.values.capacity() + self.nested.capacity() + self.lists.capacity())
            + size_of::<Region>() * self.regions.capacity()
            + self.sources.bytes()
    }

    /// Whether the op after this one can be reached: some region of an `if` or `switch` yields, some `break` ends a loop.
    pub fn falls_through(&self, op: OpId, broken: &[bool]) -> bool {
        match self.kind(op) {
            OpKind::If | OpKind::Switch(_) => {
                self.regions(op).iter().any(|&r| self.terminator(r).is_some_and(|t| self.kind(t) == OpKind::Yield))
            }
            OpKind::Loop => self.regions(op).iter().any(|r| broken[r.index()]),
            kind => !kind.is_terminator(),
        }
    }

    /// For each region, whether a `break` leaves it as a loop.
    pub fn broken(&self) -> Vec<bool> {
        let mut broken = vec![false; self.regions.len()];
        let mut open = vec![self.body];
        while let Some(r) = open.pop() {
            for &op in self.region_ops(r) {
                open.extend_from_slice(self.regions(op));
                if let OpKind::Break(r) = self.kind(op) {
                    broken[r.index()] = true;
                }
            }
        }
        broken
    }
}
