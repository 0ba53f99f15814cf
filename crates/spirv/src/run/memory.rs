//! Imported kernels: memory as modules lay it out, and instructions that the op table does not have.
//!
//! A pointer is a number: which memory, and where in it. Memory with a layout is bytes; all other memory is scalars, one after the other. What
//! a module leaves undefined is zero here, and an access outside of a buffer reads zero or does nothing, as robust access does.

use std::rc::Rc;

use rspirv::spirv::{BuiltIn, Decoration, Op as S, StorageClass};

use impasto_kernel::exec::{Executor, ForeignExecutor, Launch, Mask, Stop};
use impasto_kernel::hash::Map;
use impasto_kernel::ir::{Builtin, Kernel, OpId, OpKind, Shape, Value};

use super::instructions::Instructions;
use super::numbers;
use super::observe::Observer;
use crate::import::foreign::{Constant, Foreign, Instruction};
use crate::import::{ModuleInterface, ScalarFormat, Source, member_scalars, pointee};

/// Scalars of one memory of an invocation or a workgroup.
const MOST_SCALARS: u64 = 1 << 22;

/// Invocations of a workgroup; the executor refuses larger ones.
const MOST_LANES: usize = 1024;

/// Where a pointer leads: the memory in the upper bits, the byte or the scalar in the lower ones.
const PLACE: u32 = 40;

enum Storage {
    /// A buffer of the launch, by its number.
    Buffer(usize),
    /// Scalars that a workgroup shares, or one invocation has: so many.
    Shared(Vec<u64>),
    Own(Vec<u64>, usize),
    Input(BuiltIn),
}

/// The type that a pointer points to, and the member of a struct that it is, from which matrices have their strides.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Target {
    pub(super) ty: u32,
    within: Option<(u32, u32)>,
}

/// What lies where a pointer leads: its scalars in memory that has a layout, and how many there are in memory that has none.
pub(super) struct Access {
    layout: Option<Vec<(u32, ScalarFormat)>>,
    slots: usize,
}

/// A chain of indices, as far as types tell: bytes or scalars that are always skipped, and those of one step of each index.
struct Chain {
    bytes: bool,
    fixed: u64,
    indices: Vec<(Value, ScalarFormat, u64)>,
}

/// The module around a kernel that runs.
pub(super) struct ModuleMemory<'a> {
    pub(super) s: &'a Source,
    homes: Vec<Storage>,
    variables: Map<u32, usize>,
    locals: Vec<usize>,
    targets: Map<Value, Target>,
    accesses: Map<Target, Rc<Access>>,
    /// The chains of ops that have run, by the index of the op.
    chains: Vec<Option<Rc<Chain>>>,
    /// The instructions of the foreign ops, by number.
    codes: Vec<S>,
    constants: Map<u32, Vec<u64>>,
    pub(super) buffers: Vec<Vec<u8>>,
    observer: &'a mut Observer,
    /// Whether something was read or written outside of its memory: what is not there reads as 0, and Vulkan promises nothing.
    pub(super) strayed: bool,
    /// What arrays of one invocation hold before anything is written, where that is not zeros, by their homes.
    fillers: Map<usize, Vec<u64>>,
    /// Scalars that were read and written, one access being free of charge.
    pub(super) moved: u64,
}

/// About 3 as a float of 16, 32 or 64 bits.
const ARBITRARY: u64 = 0x4048_4048_4048_4248;

/// Scalars of a value of this type; nothing if numbers do not tell.
pub(super) fn slots(s: &Source, ty: u32, level: u32) -> Option<u64> {
    if level > 64 {
        return None;
    }
    match s.made(ty)? {
        (S::TypeVector | S::TypeMatrix, &[_, of, n]) => slots(s, of, level + 1)?.checked_mul(n.into()),
        (S::TypeArray, &[_, of, n]) => slots(s, of, level + 1)?.checked_mul(s.default(n)?.into()),
        (S::TypeStruct, w) => w[1..].iter().try_fold(0u64, |sum, &m| sum.checked_add(slots(s, m, level + 1)?)),
        (S::TypeRuntimeArray, _) => None,
        _ => Some(1),
    }
}

impl<'a> ModuleMemory<'a> {
    pub(super) fn new(
        s: &'a Source,
        k: &Kernel,
        interface: &ModuleInterface,
        buffers: Vec<Vec<u8>>,
        observer: &'a mut Observer,
    ) -> Result<ModuleMemory<'a>, String> {
        let lanes = k.workgroup.iter().fold(1usize, |n, &w| n.saturating_mul(w as usize)).min(MOST_LANES);
        let mut o = ModuleMemory {
            s,
            homes: Vec::new(),
            variables: Map::default(),
            locals: Vec::new(),
            targets: Map::default(),
            accesses: Map::default(),
            chains: vec![None; k.op_count()],
            codes: Foreign::of(k).iter().flat_map(|f| &f.instructions).map(instruction).collect(),
            constants: Map::default(),
            buffers,
            observer,
            strayed: false,
            fillers: Map::default(),
            moved: 0,
        };
        let rows = s
            .decorations
            .values()
            .flatten()
            .any(|&at| s.op(at) == S::MemberDecorate && s.operands(at)[2] == Decoration::RowMajor as u32);
        if rows {
            return Err("matrices that lie by rows".to_owned());
        }
        for (i, b) in interface.buffers.iter().map(|b| b.variable).chain(interface.constants_variable).enumerate() {
            o.variables.insert(b, o.homes.len());
            o.homes.push(Storage::Buffer(i));
        }
        for &at in &s.preamble {
            let w = s.operands(at);
            if s.op(at) != S::Variable || o.variables.contains_key(&w[1]) {
                continue;
            }
            let n = || pointee(s, w[0]).and_then(|t| slots(s, t, 0)).filter(|&n| n <= MOST_SCALARS);
            let home = if w[2] == StorageClass::Input as u32 {
                let b = s.decoration(w[1], Decoration::BuiltIn).and_then(BuiltIn::from_u32);
                Storage::Input(b.ok_or("an input that is no number of the invocation")?)
            } else if w[2] == StorageClass::Workgroup as u32 {
                Storage::Shared(vec![0; n().ok_or("memory of a size that is not known")? as usize])
            } else if w[2] == StorageClass::Private as u32 {
                let n = n().ok_or("memory of a size that is not known")? as usize;
                Storage::Own(vec![0; n * lanes], n)
            } else {
                continue;
            };
            o.variables.insert(w[1], o.homes.len());
            o.homes.push(home);
        }
        for &pointer in Foreign::of(k).iter().flat_map(|f| &f.locals) {
            let n = pointee(s, pointer).and_then(|t| slots(s, t, 0)).filter(|&n| n <= MOST_SCALARS);
            let n = n.ok_or("an array of a size that is not known")? as usize;
            let mut filler = Vec::new();
            if o.observer.arbitrary_memory && arbitrary(s, pointee(s, pointer).unwrap_or(0), n, &mut filler) {
                o.fillers.insert(o.homes.len(), filler);
            }
            o.locals.push(o.homes.len());
            o.homes.push(Storage::Own(vec![0; n * lanes], n));
        }
        Ok(o)
    }

    /// A new workgroup: nothing is left of the last one.
    fn begin(&mut self) {
        for (i, home) in self.homes.iter_mut().enumerate() {
            match (home, self.fillers.get(&i)) {
                (Storage::Own(v, size), Some(filler)) => {
                    v.chunks_exact_mut((*size).max(1)).for_each(|own| own.copy_from_slice(filler));
                }
                (Storage::Shared(v) | Storage::Own(v, _), _) => v.fill(0),
                _ => {}
            }
        }
    }

    /// Private variables of the module begin as it says.
    fn start_values(&mut self, lanes: usize) -> Result<(), String> {
        let all: Vec<(u32, usize)> = self.variables.iter().map(|(&v, &h)| (v, h)).collect();
        for (v, home) in all {
            let Some((S::Variable, &[_, _, _, first])) = self.s.made(v) else { continue };
            let value = self.constant(first, 0)?;
            if let Storage::Own(to, n) = &mut self.homes[home] {
                for lane in 0..lanes {
                    to[lane * *n..lane * *n + value.len().min(*n)].copy_from_slice(&value[..value.len().min(*n)]);
                }
            }
        }
        Ok(())
    }

    /// The scalars of a constant, specialisation constants being what the module says.
    pub(super) fn constant(&mut self, id: u32, level: u32) -> Result<Vec<u64>, String> {
        if let Some(found) = self.constants.get(&id) {
            return Ok(found.clone());
        }
        let s = self.s;
        let Some((op, w)) = s.made(id).filter(|_| level < 64) else {
            return Err("a constant that is not known".to_owned());
        };
        let value = match op {
            S::Constant | S::SpecConstant => {
                vec![w[2..].iter().rev().fold(0u64, |a, &x| a << 32 | u64::from(x)) & self.mask(w[0])]
            }
            S::ConstantTrue | S::SpecConstantTrue => vec![1],
            S::ConstantFalse | S::SpecConstantFalse => vec![0],
            S::ConstantComposite | S::SpecConstantComposite => {
                let mut all = Vec::new();
                for &part in &w[2..] {
                    all.extend(self.constant(part, level + 1)?);
                }
                all
            }
            S::SpecConstantOp => {
                let op = S::from_u32(w[2]).ok_or("a constant that is not known")?;
                let parts: Vec<Vec<u64>> = match op {
                    S::CompositeExtract => vec![self.constant(w[3], level + 1)?],
                    _ => w[3..].iter().map(|&id| self.constant(id, level + 1)).collect::<Result<_, _>>()?,
                };
                match op {
                    S::Select => {
                        if parts[0] == [1] {
                            parts[1].clone()
                        } else {
                            parts[2].clone()
                        }
                    }
                    S::CompositeExtract if w.len() == 5 => {
                        vec![*parts[0].get(w[4] as usize).ok_or("a constant that is not known")?]
                    }
                    _ => {
                        let from = s.type_of(w[3]).unwrap_or(0);
                        let (from, to) = (number(s, from), number(s, w[0]));
                        let n = parts[0].len();
                        let lane = |i: usize| -> Vec<u64> { parts.iter().map(|p| p[i.min(p.len() - 1)]).collect() };
                        (0..n)
                            .map(|i| numbers::compute(op, from, to, &lane(i)).ok_or(format!("a constant by Op{op:?}")))
                            .collect::<Result<_, _>>()?
                    }
                }
            }
            S::ConstantNull | S::Undef => {
                let n =
                    slots(s, w[0], 0).filter(|&n| n <= MOST_SCALARS).ok_or("a constant of a size that is not known")?;
                vec![0; n as usize]
            }
            S::Variable => match self.variables.get(&id) {
                Some(&home) => vec![(home as u64) << PLACE],
                None => return Err(format!("the variable '{}'", s.function_name(id))),
            },
            _ => return Err(format!("Op{op:?}")),
        };
        self.constants.insert(id, value.clone());
        Ok(value)
    }

    fn mask(&self, ty: u32) -> u64 {
        match self.s.made(ty) {
            Some((S::TypeBool, _)) => 1,
            _ => numbers::mask(number(self.s, ty)),
        }
    }

    /// What the pointer that a value is points to.
    pub(super) fn target(&self, k: &Kernel, v: Value) -> Option<Target> {
        if let Some(&t) = self.targets.get(&v) {
            return Some(t);
        }
        match k.shape(k.ty(v)) {
            Shape::Foreign(ty, _) => pointee(self.s, ty).map(|ty| Target { ty, within: None }),
            _ => None,
        }
    }

    /// `OpAccessChain` for all active invocations: follows a chain of indices from a pointer.
    pub(super) fn chain(&mut self, m: &mut Executor<'_>, op: OpId, mask: Mask) -> Result<(), Stop> {
        let k = m.kernel();
        let (base, result) = (k.args(op)[0], k.result(op));
        let mut known = self.chains[op.index()].clone();
        for lane in mask.lanes() {
            let pointer = m.get(base, lane);
            let bytes = matches!(self.homes.get((pointer >> PLACE) as usize), Some(Storage::Buffer(_)));
            let chain = match &known {
                Some(chain) if chain.bytes == bytes => chain,
                _ => {
                    let made = self.make_chain(m, op, lane, bytes).map_err(|p| Stop(op, lane, p))?;
                    let made = known.insert(Rc::new(made));
                    self.chains[op.index()] = Some(made.clone());
                    made
                }
            };
            let mut place = (pointer & ((1 << PLACE) - 1)).saturating_add(chain.fixed);
            for &(index, format, each) in &chain.indices {
                let i = integer(format, m.get(index, lane));
                // Far outside of every buffer, and still a pointer into this one.
                place = place.saturating_add(i.saturating_mul(each).min((1 << (PLACE - 2)) - 1));
            }
            m.give(result, lane, &[pointer >> PLACE << PLACE | place.min((1 << PLACE) - 1)]);
        }
        Ok(())
    }

    /// What types say of a chain of indices. Members of structs are constants, so that any invocation knows them.
    fn make_chain(&mut self, m: &Executor<'_>, op: OpId, lane: usize, bytes: bool) -> Result<Chain, String> {
        let k = m.kernel();
        let args = k.args(op);
        let mut t = self.target(k, args[0]).ok_or("a pointer that leads nowhere")?;
        let s = self.s;
        let out = || "an index that is out of bounds".to_owned();
        let mut chain = Chain { bytes, fixed: 0, indices: Vec::new() };
        for &index in &args[1..] {
            let format = number(s, Foreign::of(k).and_then(|f| f.type_id(k.ty(index))).unwrap_or(0));
            t = match s.made(t.ty) {
                Some((S::TypeStruct, _)) => {
                    let i = u32::try_from(integer(format, m.get(index, lane))).unwrap_or(u32::MAX);
                    let next = s.member(t.ty, i).ok_or_else(out)?;
                    chain.fixed += if bytes {
                        s.member_decoration(t.ty, i, Decoration::Offset).unwrap_or(0).into()
                    } else {
                        (0..i).filter_map(|j| slots(s, s.member(t.ty, j)?, 0)).sum::<u64>()
                    };
                    Target { ty: next, within: Some((t.ty, i)) }
                }
                _ => {
                    let next = s.element(t.ty).ok_or_else(out)?;
                    let each = if bytes {
                        match s.made(t.ty) {
                            Some((S::TypeVector, _)) => u64::from(number(s, next).bytes()),
                            _ => crate::import::strides(s, t.ty, t.within).array.into(),
                        }
                    } else {
                        slots(s, next, 0).unwrap_or(0)
                    };
                    chain.indices.push((index, format, each));
                    Target { ty: next, within: t.within }
                }
            };
        }
        self.targets.insert(k.result(op), t);
        Ok(chain)
    }

    /// How what a pointer leads to is read and written.
    pub(super) fn access(&mut self, t: Target) -> Rc<Access> {
        let s = self.s;
        let found = self.accesses.entry(t).or_insert_with(|| {
            let slots = slots(s, t.ty, 0).unwrap_or(0) as usize;
            Rc::new(Access { layout: member_scalars(s, t.ty, t.within), slots })
        });
        found.clone()
    }

    /// Reads what lies at a pointer, into `to`.
    pub(super) fn read(
        &mut self,
        m: &Executor<'_>,
        pointer: u64,
        what: &Access,
        lane: usize,
        launch: &Launch,
        to: &mut Vec<u64>,
    ) -> Result<(), String> {
        let (home, place) = ((pointer >> PLACE) as usize, (pointer & ((1 << PLACE) - 1)) as usize);
        let strayed = &mut self.strayed;
        self.moved += what.slots.saturating_sub(1) as u64;
        to.clear();
        match self.homes.get(home) {
            Some(&Storage::Buffer(b)) => {
                let layout = what.layout.as_ref().ok_or("a type without a layout")?;
                let found = layout.iter().map(|&(at, n)| get(&self.buffers[b], place + at as usize, n));
                to.extend(found.map(|x| or_zero(x, strayed)));
            }
            Some(Storage::Input(b)) => {
                let all = input(m, *b, lane, launch).ok_or_else(|| format!("the input {b:?}"))?;
                to.extend(all.iter().skip(place).take(what.slots).map(|&x| u64::from(x)));
            }
            Some(Storage::Shared(v)) => {
                to.extend((0..what.slots).map(|i| or_zero(v.get(place + i).copied(), strayed)));
            }
            Some(Storage::Own(v, size)) => {
                let own = &v[lane * size..(lane + 1) * size];
                to.extend((0..what.slots).map(|i| or_zero(own.get(place + i).copied(), strayed)));
            }
            None => return Err("a pointer that leads nowhere".to_owned()),
        }
        Ok(())
    }

    /// `OpLoad` for all active invocations.
    pub(super) fn load(&mut self, m: &mut Executor<'_>, op: OpId, mask: Mask, launch: &Launch) -> Result<(), Stop> {
        let k = m.kernel();
        let pointer = k.args(op)[0];
        let Some(first) = mask.lanes().next() else { return Ok(()) };
        let t = self.target(k, pointer).ok_or_else(|| Stop(op, first, "a pointer that leads nowhere".to_owned()))?;
        let (what, mut value) = (self.access(t), Vec::new());
        for lane in mask.lanes() {
            let read = self.read(m, m.get(pointer, lane), &what, lane, launch, &mut value);
            read.map_err(|p| Stop(op, lane, p))?;
            m.give(k.result(op), lane, &value);
        }
        Ok(())
    }

    /// `OpStore` for all active invocations.
    pub(super) fn store(&mut self, m: &Executor<'_>, op: OpId, mask: Mask) -> Result<(), Stop> {
        let k = m.kernel();
        let (pointer, value) = (k.args(op)[0], k.args(op)[1]);
        let Some(first) = mask.lanes().next() else { return Ok(()) };
        let t = self.target(k, pointer).ok_or_else(|| Stop(op, first, "a pointer that leads nowhere".to_owned()))?;
        let (what, mut scalars) = (self.access(t), Vec::new());
        for lane in mask.lanes() {
            m.read(value, lane, &mut scalars);
            let written = self.write(m.get(pointer, lane), &what, lane, &scalars);
            written.map_err(|p| Stop(op, lane, p))?;
        }
        Ok(())
    }

    /// Writes to where a pointer leads.
    pub(super) fn write(&mut self, pointer: u64, what: &Access, lane: usize, value: &[u64]) -> Result<(), String> {
        let (home, place) = ((pointer >> PLACE) as usize, (pointer & ((1 << PLACE) - 1)) as usize);
        self.moved += value.len().saturating_sub(1) as u64;
        match self.homes.get_mut(home) {
            Some(&mut Storage::Buffer(b)) => {
                let layout = what.layout.as_ref().ok_or("a type without a layout")?;
                let bytes = &mut self.buffers[b];
                for (&(at, n), &x) in layout.iter().zip(value) {
                    self.strayed |= !put(bytes, place + at as usize, n, x);
                }
                Ok(())
            }
            Some(Storage::Shared(v)) => {
                v.iter_mut().skip(place).zip(value).for_each(|(to, &x)| *to = x);
                self.strayed |= place + value.len() > v.len();
                Ok(())
            }
            Some(Storage::Own(v, size)) => {
                let own = &mut v[lane * *size..(lane + 1) * *size];
                own.iter_mut().skip(place).zip(value).for_each(|(to, &x)| *to = x);
                self.strayed |= place + value.len() > own.len();
                Ok(())
            }
            _ => Err("a pointer that leads nowhere that can be written".to_owned()),
        }
    }

    /// Elements of the array at the end of a buffer.
    pub(super) fn length(&self, pointer: u64, ty: u32, member: u32) -> Option<u64> {
        let Some(&Storage::Buffer(b)) = self.homes.get((pointer >> PLACE) as usize) else { return None };
        let offset = self.s.member_decoration(ty, member, Decoration::Offset)?;
        let stride = self.s.decoration(self.s.member(ty, member)?, Decoration::ArrayStride)?;
        (self.buffers[b].len() as u64).checked_sub(offset.into())?.checked_div(stride.into())
    }
}

impl ForeignExecutor for ModuleMemory<'_> {
    fn begin_workgroup(&mut self, lanes: usize) -> Result<(), String> {
        self.begin();
        self.start_values(lanes)
    }

    fn run(&mut self, m: &mut Executor<'_>, op: OpId, mask: Mask, launch: &Launch) -> Result<(), Stop> {
        let k = m.kernel();
        let kind = k.kind(op);
        let foreign = Foreign::of(k);
        match kind {
            OpKind::Load(_) => return self.load(m, op, mask, launch),
            OpKind::Store(_) => return self.store(m, op, mask),
            _ => {}
        }
        if let OpKind::Foreign(n, _) = kind {
            let Some(i) = foreign.and_then(|f| f.instructions.get(n as usize)) else { return Ok(()) };
            let code = self.codes[n as usize];
            return Instructions { outside: self, m, op, code, words: &i.words }.run(mask, launch);
        }
        let Some(first) = mask.lanes().next() else { return Ok(()) };
        let value = match kind {
            OpKind::Undef => vec![0; m.values(k.result(op), first).len()],
            OpKind::ForeignConst(n) => match foreign.and_then(|f| f.constant(n)) {
                Some(Constant::Outside(id)) => self.constant(id, 0).map_err(|p| Stop(op, first, p))?,
                Some(Constant::Local(n)) => vec![(self.locals[n as usize] as u64) << PLACE],
                None => return Ok(()),
            },
            _ => return Ok(()),
        };
        mask.lanes().for_each(|lane| m.give(k.result(op), lane, &value));
        Ok(())
    }

    fn watched(&self) -> Vec<bool> {
        self.observer.watched.clone()
    }

    fn observe(&mut self, m: &Executor<'_>, op: OpId, active: Mask) {
        self.observer.observe(m, op, active);
    }
}

fn instruction(i: &Instruction) -> S {
    S::from_u32(i.opcode.into()).unwrap_or(S::Nop)
}

/// What a module calls the place of an invocation.
fn input(m: &Executor<'_>, b: BuiltIn, lane: usize, launch: &Launch) -> Option<Vec<u32>> {
    let own = |b: Builtin| (0..if b.has_axes() { 3 } else { 1 }).map(|axis| m.builtin(b, axis, lane, launch)).collect();
    Some(match b {
        BuiltIn::GlobalInvocationId => own(Builtin::GlobalId),
        BuiltIn::LocalInvocationId => own(Builtin::LocalId),
        BuiltIn::WorkgroupId => own(Builtin::WorkgroupId),
        BuiltIn::NumWorkgroups => own(Builtin::NumWorkgroups),
        BuiltIn::LocalInvocationIndex => own(Builtin::LocalIndex),
        BuiltIn::SubgroupSize => own(Builtin::SubgroupSize),
        BuiltIn::SubgroupLocalInvocationId => own(Builtin::SubgroupLane),
        BuiltIn::SubgroupId => own(Builtin::SubgroupId),
        BuiltIn::NumSubgroups => vec![(m.lanes() as u32).div_ceil(launch.subgroup)],
        BuiltIn::WorkgroupSize => m.kernel().workgroup.to_vec(),
        BuiltIn::DeviceIndex => vec![0],
        _ => return None,
    })
}

/// Numbers that are neither zero nor one, for the scalars of a type that is made of these; whether there are `n` of them.
fn arbitrary(s: &Source, ty: u32, n: usize, to: &mut Vec<u64>) -> bool {
    let mut inner = ty;
    while let Some((S::TypeArray | S::TypeVector | S::TypeMatrix, w)) = s.made(inner) {
        inner = w[1];
    }
    match s.made(inner) {
        Some((S::TypeInt | S::TypeFloat, _)) => {
            to.resize(n, ARBITRARY & numbers::mask(number(s, inner)));
            true
        }
        _ => false,
    }
}

/// The number that a scalar is, or the scalars of a composite are; a bool counts as a word.
pub(super) fn number(s: &Source, ty: u32) -> ScalarFormat {
    let mut ty = ty;
    for _ in 0..4 {
        match s.made(ty) {
            Some((S::TypeInt, &[_, bits, sign])) => return ScalarFormat::Int { bits, signed: sign == 1 },
            Some((S::TypeFloat, &[_, bits, ..])) => return ScalarFormat::Float(bits),
            Some((S::TypeVector | S::TypeMatrix, &[_, of, _])) => ty = of,
            _ => break,
        }
    }
    ScalarFormat::Int { bits: 32, signed: false }
}

/// The element that an index names; one that is negative names none.
fn integer(n: ScalarFormat, bits: u64) -> u64 {
    let negative = matches!(n, ScalarFormat::Int { signed: true, .. }) && numbers::signed(n, bits) < 0;
    if negative { u32::MAX.into() } else { bits }
}

fn or_zero(x: Option<u64>, strayed: &mut bool) -> u64 {
    *strayed |= x.is_none();
    x.unwrap_or(0)
}

fn get(bytes: &[u8], at: usize, n: ScalarFormat) -> Option<u64> {
    let found = bytes.get(at..at + n.bytes() as usize)?;
    Some(found.iter().rev().fold(0, |a, &b| a << 8 | u64::from(b)))
}

/// Whether there is such a place.
fn put(bytes: &mut [u8], at: usize, n: ScalarFormat, x: u64) -> bool {
    let to = bytes.get_mut(at..at + n.bytes() as usize);
    to.map(|to| to.copy_from_slice(&x.to_le_bytes()[..n.bytes() as usize])).is_some()
}
