//! The function of an entry point as a kernel, with the functions that it calls in place of their calls.

use rspirv::spirv::{Capability, Op as S, StorageClass};

use super::control::{Frame, Plan};
use super::facts::{Facts, class, pointee};
use super::foreign::{Constant, Foreign, Instruction, Word};
use super::grammar;
use super::module::{At, Source};
use super::table;
use impasto_kernel::hash::{Map, Set};
use impasto_kernel::ir::{
    Assembler, Effect, Kernel, Members, MemoryDecl, MemoryId, OpKind, RegionId, Scalar, Shape, Space, Ty, Value, VarId,
};

/// Ops and blocks that a kernel may come to with its calls in their places, for each word of the module and at least.
const STEPS_PER_WORD: usize = 16;
const STEPS: usize = 50_000;
/// Calls within calls.
const MOST_CALLS: usize = 64;
/// Constants of more parts stay what they are in the module.
const MOST_PARTS: usize = 16;

/// Buffers, and all else that others see.
pub(crate) const SHARED: MemoryId = MemoryId(0);
/// Memory of the workgroup.
pub(super) const WORKGROUP: MemoryId = MemoryId(1);

/// Why a function is left as it is.
#[derive(Clone, Debug)]
pub(crate) struct Refusal {
    /// The word.
    pub(crate) word: usize,
    /// What is there.
    pub(crate) reason: String,
}

pub(super) enum Stop {
    Refused(Refusal),
    /// The plan has grown: begin again.
    Again,
}

/// What is known of an id.
#[derive(Clone)]
pub(super) enum Slot {
    Nothing,
    /// A value, and the open region that it stands in.
    Value {
        value: Value,
        level: u32,
        serial: u32,
    },
    /// A value in a variable, since it is used outside of its region.
    Variable(VarId),
    /// A pointer into a variable.
    Place(Place),
}

#[derive(Clone)]
pub(super) struct Place {
    pub(super) var: VarId,
    pub(super) path: Vec<Step>,
}

#[derive(Clone, Copy)]
pub(super) enum Step {
    Member(u32),
    /// A component of a vector.
    Computed(Value),
}

/// A pointer into memory: what it begins at, the indices from there, and the memory.
#[derive(Clone)]
pub(super) struct Pointer {
    pub(super) base: Value,
    pub(super) indices: Vec<Value>,
    pub(super) memory: Target,
}

/// The memory that a pointer leads to.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Target {
    /// Nobody writes it.
    Constant,
    Memory(MemoryId),
    Unknown,
}

pub(super) struct Import<'a> {
    pub(super) s: &'a Source,
    pub(super) facts: &'a Facts,
    pub(super) asm: Assembler,
    pub(super) foreign: Foreign,
    pub(super) plan: &'a mut Plan,
    types: Vec<Option<Ty>>,
    slots: Vec<Slot>,
    pub(super) pointers: Map<u32, Pointer>,
    /// The regions that are open, with a number for each that was ever opened.
    open: Vec<(RegionId, u32)>,
    serial: u32,
    joins: Map<u32, VarId>,
    pub(super) frames: Vec<Frame>,
    pub(super) visited: Set<u32>,
    pub(super) returned: bool,
    /// Blocks that were imported, each time.
    pub(super) steps: usize,
    calls: Vec<u32>,
    /// Functions that must stay functions.
    kept: &'a Set<u32>,
    pub(super) block_of: &'a Map<u32, (usize, usize)>,
    pub(super) preds: &'a Map<u32, u32>,
    /// The instruction that is imported.
    pub(super) here: At,
}

/// The blocks of a module, and how many blocks lead to each.
pub(crate) struct Blocks {
    of: Map<u32, (usize, usize)>,
    preds: Map<u32, u32>,
}

impl Blocks {
    pub(crate) fn of(s: &Source) -> Blocks {
        let mut b = Blocks { of: Map::default(), preds: Map::default() };
        for (i, f) in s.functions.iter().enumerate() {
            for (j, block) in f.blocks.iter().enumerate() {
                b.of.insert(block.label, (i, j));
                let w = s.operands(block.end);
                let mut targets = match s.op(block.end) {
                    S::Branch => vec![w[0]],
                    S::BranchConditional => vec![w[1], w[2]],
                    S::Switch => {
                        let words = s.case_words(w[0]);
                        std::iter::once(w[1]).chain(w[2..].chunks_exact(words + 1).map(|c| c[words])).collect()
                    }
                    _ => Vec::new(),
                };
                targets.sort_unstable();
                targets.dedup();
                targets.iter().for_each(|&t| *b.preds.entry(t).or_default() += 1);
            }
        }
        b
    }
}

/// Imports the function of an entry point.
pub(crate) fn import(
    s: &Source,
    facts: &Facts,
    blocks: &Blocks,
    function: usize,
    name: &str,
    kept: &Set<u32>,
) -> Result<Kernel, Refusal> {
    let mut plan = Plan::default();
    // Each time the plan holds all that the last walk found; a handful is plenty.
    for _ in 0..8 {
        plan.grew = false;
        match Import::new(s, facts, blocks, &mut plan, name, kept).run(function) {
            Ok(kernel) => return Ok(kernel),
            Err(Stop::Refused(refusal)) if !plan.grew => return Err(refusal),
            Err(_) => {}
        }
    }
    Err(Refusal {
        word: s.functions[function].at as usize,
        reason: "its constructs could not be told apart".to_owned(),
    })
}

impl<'a> Import<'a> {
    fn new(
        s: &'a Source,
        facts: &'a Facts,
        blocks: &'a Blocks,
        plan: &'a mut Plan,
        name: &str,
        kept: &'a Set<u32>,
    ) -> Import<'a> {
        let mut kernel = Kernel::empty(name, [1, 1, 1]);
        let memory = |name: &str| MemoryDecl {
            name: name.to_owned(),
            ty: Ty::scalar(Scalar::U32),
            space: Space::Pointed { shared: true },
        };
        *kernel.memories_mut() = vec![memory("shared"), memory("workgroup")];
        kernel.keep_numbers();
        let mut foreign = Foreign::default();
        foreign.computes_f16 = s.has_capability(Capability::Float16);
        let types = types(s, facts, &mut kernel, &mut foreign);
        let asm = Assembler::new(kernel);
        let body = asm.kernel.body();
        Import {
            s,
            facts,
            asm,
            foreign,
            plan,
            types,
            slots: vec![Slot::Nothing; s.bound as usize],
            pointers: Map::default(),
            open: vec![(body, 0)],
            serial: 0,
            joins: Map::default(),
            frames: Vec::new(),
            visited: Set::default(),
            returned: false,
            steps: 0,
            calls: Vec::new(),
            kept,
            block_of: &blocks.of,
            preds: &blocks.preds,
            here: 0,
        }
    }

    fn run(mut self, function: usize) -> Result<Kernel, Stop> {
        let f = &self.s.functions[function];
        let w = self.s.operands(f.at);
        self.foreign.function = [w[0], w[1], w[2], w[3]];
        self.here = f.at;
        if !f.params.is_empty() {
            return Err(self.refuse(f.at, "an entry point has parameters"));
        }
        self.calls.push(f.id);
        // Variables of the module that only this invocation sees.
        for &at in &self.s.preamble {
            let w = self.s.operands(at);
            if self.s.op(at) == S::Variable && w[2] == StorageClass::Private as u32 && !self.facts.memory[w[1] as usize]
            {
                self.local(w)?;
            }
        }
        self.blocks(f.blocks[0].label)?;
        if self.plan.grew {
            return Err(Stop::Again);
        }
        self.asm.kernel.set_foreign(std::sync::Arc::new(self.foreign));
        Ok(self.asm.finish())
    }

    pub(super) fn open(&mut self) -> RegionId {
        let region = self.asm.open(&[]);
        self.serial += 1;
        self.open.push((region, self.serial));
        region
    }

    pub(super) fn close(&mut self) -> RegionId {
        self.open.pop();
        self.asm.close()
    }

    pub(super) fn innermost(&self) -> RegionId {
        self.open.last().map_or(RegionId(0), |o| o.0)
    }

    pub(super) fn ty(&self, id: u32) -> Result<Ty, Stop> {
        match self.types.get(id as usize).copied().flatten() {
            Some(ty) => Ok(ty),
            None => Err(self.refuse(self.here, format!("id {id} is no type of a value"))),
        }
    }

    /// A variable of the kernel, declared before everything that is open.
    pub(super) fn variable(&mut self, ty: Ty) -> VarId {
        let undef = self.asm.push_at(0, OpKind::Undef, [], [ty], &[]);
        let undef = self.asm.kernel.result(undef);
        let var = self.asm.kernel.add_var(ty);
        self.asm.push_at(0, OpKind::Var(var), [undef], [], &[]);
        var
    }

    pub(super) fn get(&mut self, var: VarId) -> Value {
        let ty = self.asm.kernel.vars()[var.index()];
        self.asm.value(OpKind::Get(var), &[], ty)
    }

    /// The variable of a join.
    pub(super) fn join_variable(&mut self, id: u32, ty: u32) -> Result<VarId, Stop> {
        if let Some(&var) = self.joins.get(&id) {
            return Ok(var);
        }
        if pointee(self.s, ty).is_some() && class(self.s, ty) != Some(StorageClass::PhysicalStorageBuffer as u32) {
            return Err(self.refuse(self.here, "a join of pointers"));
        }
        let ty = self.ty(ty)?;
        let var = self.variable(ty);
        self.joins.insert(id, var);
        Ok(var)
    }

    /// Says what value an id is.
    pub(super) fn define(&mut self, id: u32, value: Value) {
        if self.plan.demoted.contains(&id) {
            let var = match self.slots[id as usize] {
                Slot::Variable(var) => var,
                _ => {
                    let ty = self.asm.kernel.ty(value);
                    self.variable(ty)
                }
            };
            self.asm.push(OpKind::Set(var), &[value], &[]);
            self.slots[id as usize] = Slot::Variable(var);
            return;
        }
        let level = self.open.len() as u32 - 1;
        self.slots[id as usize] = Slot::Value { value, level, serial: self.open[level as usize].1 };
    }

    pub(super) fn slot(&self, id: u32) -> &Slot {
        &self.slots[id as usize]
    }

    pub(super) fn set_slot(&mut self, id: u32, slot: Slot) {
        self.slots[id as usize] = slot;
    }

    fn is_open(&self, level: u32, serial: u32) -> bool {
        self.open.get(level as usize).is_some_and(|o| o.1 == serial)
    }

    /// The value of an id, here.
    pub(super) fn value(&mut self, id: u32) -> Result<Value, Stop> {
        match self.slots[id as usize] {
            Slot::Value { value, level, serial } if self.is_open(level, serial) => Ok(value),
            Slot::Value { value, .. } => {
                let ty = self.asm.kernel.ty(value);
                let logical = self
                    .s
                    .type_of(id)
                    .is_some_and(|t| class(self.s, t).is_some_and(|c| c != StorageClass::PhysicalStorageBuffer as u32));
                // A pointer cannot be kept in a variable, but made again.
                if let (true, Some(p)) = (logical, self.pointers.get(&id).cloned()) {
                    return self.chain_again(id, p);
                }
                self.plan.grew |= self.plan.demoted.insert(id);
                Ok(self.asm.value(OpKind::Undef, &[], ty))
            }
            Slot::Variable(var) => Ok(self.get(var)),
            Slot::Place(_) => Err(self.refuse(self.here, "a pointer to a variable is used as a value")),
            Slot::Nothing => self.constant(id),
        }
    }

    /// Makes a pointer again whose region has ended.
    fn chain_again(&mut self, id: u32, p: Pointer) -> Result<Value, Stop> {
        let open = std::iter::once(&p.base).chain(&p.indices).all(|v| self.is_global(*v));
        if !open {
            return Err(self.refuse(self.here, "a pointer is used outside of the construct that computes it"));
        }
        let ty = self.s.type_of(id).unwrap_or(0);
        let ty = self.ty(ty)?;
        self.chain(&p, ty)
    }

    fn is_global(&self, v: Value) -> bool {
        matches!(self.asm.made_by(v), Some((OpKind::ForeignConst(_) | OpKind::Const(_), _)))
    }

    pub(super) fn chain(&mut self, p: &Pointer, ty: Ty) -> Result<Value, Stop> {
        let words = vec![Word::Operand; p.indices.len() + 1];
        let n =
            self.foreign.number(Instruction { opcode: S::AccessChain as u16, words, decorations: Vec::new(), void: 0 });
        let args: Vec<Value> = std::iter::once(p.base).chain(p.indices.iter().copied()).collect();
        Ok(self.asm.value(OpKind::Foreign(n, Effect::Pure), &args, ty))
    }

    /// What stands outside of functions: in the outermost region, before what is open there.
    fn constant(&mut self, id: u32) -> Result<Value, Stop> {
        let s = self.s;
        let Some((op, w)) = s.made(id) else { return Err(self.refuse(self.here, format!("id {id} is not defined"))) };
        if s.defs[id as usize] >= s.functions[0].at || !grammar::has_type(op as u32) {
            return Err(self.refuse(self.here, format!("id {id} has no value here")));
        }
        let ty = self.ty(w[0])?;
        let top = |asm: &mut Assembler, kind: OpKind, args: &[Value]| {
            let op = asm.push_at(0, kind, args.iter().copied(), [ty], &[]);
            asm.kernel.result(op)
        };
        let v = match (op, ty.lanes()) {
            (S::ConstantTrue | S::ConstantFalse, Some(_)) => {
                let n = self.asm.const_number(u64::from(op == S::ConstantTrue));
                top(&mut self.asm, OpKind::Const(n), &[])
            }
            (S::Constant, Some((scalar, 1))) => {
                let bits = w[2..].iter().rev().fold(0u64, |a, &x| a << 32 | u64::from(x));
                let n = self.asm.const_number(bits & scalar.mask());
                top(&mut self.asm, OpKind::Const(n), &[])
            }
            (S::ConstantNull, Some((_, 1))) => {
                let n = self.asm.const_number(0);
                top(&mut self.asm, OpKind::Const(n), &[])
            }
            (S::ConstantNull, Some((scalar, n))) => {
                let number = self.asm.const_number(0);
                let zero = self.asm.push_at(0, OpKind::Const(number), [], [Ty::scalar(scalar)], &[]);
                let zero = self.asm.kernel.result(zero);
                top(&mut self.asm, OpKind::Make, &vec![zero; n as usize])
            }
            (S::ConstantComposite, _)
                if w.len() - 2 <= MOST_PARTS
                    && self.asm.kernel.members(ty) as usize == w.len() - 2
                    && self.facts.types[w[0] as usize].levels < 8 =>
            {
                let parts: Vec<Value> = w[2..].iter().map(|&p| self.value(p)).collect::<Result<_, _>>()?;
                top(&mut self.asm, OpKind::Make, &parts)
            }
            (S::Undef, _) => top(&mut self.asm, OpKind::Undef, &[]),
            _ => {
                let number = self.foreign.constant_number(Constant::Outside(id));
                top(&mut self.asm, OpKind::ForeignConst(number), &[])
            }
        };
        self.slots[id as usize] = Slot::Value { value: v, level: 0, serial: self.open[0].1 };
        Ok(v)
    }

    /// A variable of a function, or one of the module that only this invocation sees.
    pub(super) fn local(&mut self, w: &[u32]) -> Result<(), Stop> {
        let Some(to) = pointee(self.s, w[0]) else {
            return Err(self.refuse(self.here, "a variable has no pointer type"));
        };
        let (id, first) = (w[1], w.get(3).copied());
        if !self.facts.memory[id as usize] {
            let ty = self.ty(to)?;
            let init = match first {
                Some(first) => self.value(first)?,
                None => self.asm.value(OpKind::Undef, &[], ty),
            };
            let var = self.asm.kernel.add_var(ty);
            self.asm.push(OpKind::Var(var), &[init], &[]);
            self.set_slot(id, Slot::Place(Place { var, path: Vec::new() }));
            return Ok(());
        }
        let memory = MemoryId(self.asm.kernel.memories().len() as u32);
        let escapes = self.escapes(id);
        let name = self.s.names.get(&id).filter(|n| !n.is_empty()).cloned().unwrap_or_else(|| format!("local{id}"));
        self.asm.kernel.memories_mut().push(MemoryDecl {
            name,
            ty: Ty::scalar(Scalar::U32),
            space: Space::Pointed { shared: escapes },
        });
        let ty = self.ty(w[0])?;
        let number = self.foreign.constant_number(Constant::Local(self.foreign.locals.len() as u32));
        self.foreign.locals.push(w[0]);
        let op = self.asm.push_at(0, OpKind::ForeignConst(number), [], [ty], &[]);
        let v = self.asm.kernel.result(op);
        self.slots[id as usize] = Slot::Value { value: v, level: 0, serial: self.open[0].1 };
        self.pointers.insert(id, Pointer { base: v, indices: Vec::new(), memory: Target::Memory(memory) });
        if let Some(first) = first {
            let init = self.value(first)?;
            self.asm.push(OpKind::Store(memory), &[v, init], &[]);
        }
        Ok(())
    }

    /// Whether something else than loads, stores and chains has a pointer to this variable.
    fn escapes(&self, id: u32) -> bool {
        self.facts.escaped[id as usize]
    }

    /// A call, as the function in its place.
    pub(super) fn inline(&mut self, w: &[u32]) -> Result<bool, Stop> {
        let Some(&f) = self.s.function_of.get(&w[2]) else {
            return Err(self.refuse(self.here, "what is called is no function"));
        };
        let function = &self.s.functions[f];
        if self.calls.contains(&w[2]) {
            return Err(self.refuse(self.here, "a function calls itself"));
        }
        if self.kept.contains(&w[2]) {
            return Ok(false);
        }
        if self.calls.len() >= MOST_CALLS
            || self.asm.kernel.op_count() + self.steps > STEPS + STEPS_PER_WORD * self.s.words.len()
        {
            return Err(self.refuse(self.here, "its calls are too many to be put in their places"));
        }
        if function.params.len() != w.len() - 3 {
            return Err(
                self.refuse(self.here, "a call has another number of operands than its function has parameters")
            );
        }
        let ty = |id: u32| self.s.type_of(id);
        if function.params.iter().zip(&w[3..]).any(|(&p, &a)| ty(p) != ty(a)) {
            return Err(self.refuse(self.here, "a call has an operand of another type than its function has"));
        }
        for (&p, &a) in function.params.iter().zip(&w[3..]) {
            match self.slot(a).clone() {
                place @ Slot::Place(_) => self.set_slot(p, place),
                _ => {
                    let v = self.value(a)?;
                    let level = self.open.len() as u32 - 1;
                    self.slots[p as usize] = Slot::Value { value: v, level, serial: self.open[level as usize].1 };
                    match self.pointer_of(a) {
                        Some(pointer) => self.pointers.insert(p, pointer),
                        None => self.pointers.remove(&p),
                    };
                }
            }
        }
        self.calls.push(w[2]);
        let ty = match self.s.made(w[0]) {
            Some((S::TypeVoid, _)) => None,
            _ => Some(self.ty(w[0])?),
        };
        let result = self.call(f, ty)?;
        self.calls.pop();
        if let Some(var) = result.filter(|_| !self.asm.ended()) {
            let v = self.get(var);
            self.define(w[1], v);
        }
        Ok(true)
    }

    /// The memory that a pointer leads to.
    pub(super) fn target_of(&self, id: u32) -> Target {
        if let Some(p) = self.pointers.get(&id) {
            return p.memory;
        }
        let class = self.s.type_of(id).and_then(|ty| class(self.s, ty));
        class.map_or(Target::Unknown, |class| table::target(self.s, id, class))
    }

    /// The members of a pointer that leads to memory.
    pub(super) fn pointer_of(&mut self, id: u32) -> Option<Pointer> {
        if let Some(p) = self.pointers.get(&id) {
            return Some(p.clone());
        }
        let ty = self.s.type_of(id)?;
        let class = class(self.s, ty)?;
        let memory = table::target(self.s, id, class);
        let base = self.value(id).ok()?;
        Some(Pointer { base, indices: Vec::new(), memory })
    }
}

/// The types of the module in a kernel, by id.
fn types(s: &Source, facts: &Facts, k: &mut Kernel, foreign: &mut Foreign) -> Vec<Option<Ty>> {
    let mut types: Vec<Option<Ty>> = vec![None; s.bound as usize];
    for &at in &s.preamble {
        let (op, w) = (s.op(at), s.operands(at));
        let plain = match (op, w) {
            (S::TypeBool, _) => Some(Ty::scalar(Scalar::Bool)),
            (S::TypeInt, &[_, 32, sign]) => Some(Ty::scalar(if sign == 1 { Scalar::I32 } else { Scalar::U32 })),
            (S::TypeInt, &[_, 64, sign]) => Some(Ty::scalar(if sign == 1 { Scalar::I64 } else { Scalar::U64 })),
            (S::TypeFloat, &[_, 16]) => Some(Ty::scalar(Scalar::F16)),
            (S::TypeFloat, &[_, 32]) => Some(Ty::scalar(Scalar::F32)),
            (S::TypeVector, &[_, of, n]) => types[of as usize].and_then(|t| Ty::vector(t.as_scalar()?, n)),
            _ => None,
        };
        let known = |id: u32| types[id as usize];
        let ty = plain.or_else(|| {
            let members = match (op, w) {
                (S::TypeVoid | S::TypeFunction | S::TypeForwardPointer, _) => return None,
                (S::TypeVector | S::TypeMatrix, &[_, of, n]) => {
                    known(of).filter(|_| n <= MOST_PARTS as u32).map(|t| Members::Lanes(t, n))
                }
                (S::TypeArray, &[_, of, n]) => known(of).zip(s.constant(n)).map(|(t, n)| Members::Same(t, n)),
                (S::TypeStruct, &[_, ref of @ ..]) => {
                    of.iter().map(|&m| known(m)).collect::<Option<_>>().map(Members::Each)
                }
                _ if is_type(op) => None,
                _ => return None,
            };
            let members = members.filter(|_| facts.has_members(w[0])).unwrap_or(Members::None);
            k.intern(Shape::Foreign(w[0], members))
        });
        if let Some(ty) = ty {
            types[w[0] as usize] = Some(ty);
            foreign.set_type(ty, w[0]);
        }
    }
    types
}

fn is_type(op: S) -> bool {
    !grammar::has_type(op as u32)
        && grammar::has_result(op as u32)
        && !matches!(op, S::String | S::ExtInstImport | S::DecorationGroup | S::Label)
}
