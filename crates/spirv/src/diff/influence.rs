//! What of a module's inputs an instruction depends on: the push constants, buffers and workgroup ids that its operands are computed of, and those
//! that decide whether it runs. Told by form alone, without running anything; some dependences are left out (those through control of what is
//! stored), since this only says which inputs are worth changing.

use std::collections::HashMap;

use impasto_kernel::ir::{Kernel, OpId, OpKind, RegionId, Value};
use rspirv::spirv::{BuiltIn, Decoration, Op as S, StorageClass};

use crate::import::foreign::{Constant, Foreign, Word};
use crate::import::{ModuleInterface, pointee};
use crate::run::ModuleProgram;

/// Rounds in which dependences spread; more are rare.
const ROUNDS: usize = 6;

/// An input that a search may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum InputPlace {
    /// A number of the uniform buffers and push constants, by their order.
    Number(usize),
    /// The contents of a buffer.
    Buffer(usize),
    /// Workgroups of an axis.
    Groups(usize),
    /// A specialisation constant, by its `constant_id`.
    Specialisation(u32),
}

/// A set of inputs, by their numbers: first the numbers, then buffers, then axes, then specialisation constants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct InputSet([u64; 6]);

/// A set of no inputs that stands for the results of the marked instruction.
const MARK: InputSet = InputSet([0, 0, 0, 0, 0, 1]);

/// How many numbers and buffers are told apart.
const NUMBERS: usize = 192;
const BUFFERS: usize = 48;

impl InputSet {
    fn of(place: InputPlace) -> InputSet {
        let i = match place {
            InputPlace::Number(i) => i.min(NUMBERS - 1),
            InputPlace::Buffer(i) => NUMBERS + i.min(BUFFERS - 1),
            InputPlace::Groups(axis) => NUMBERS + BUFFERS + axis.min(2),
            InputPlace::Specialisation(id) => 256 + id.min(63) as usize,
        };
        let mut set = InputSet::default();
        set.0[i / 64] |= 1 << (i % 64);
        set
    }

    fn is_marked(self) -> bool {
        self.0[5] != 0
    }

    fn or(&mut self, other: InputSet) {
        self.0.iter_mut().zip(other.0).for_each(|(a, b)| *a |= b);
    }

    fn places(self) -> Vec<InputPlace> {
        let all = (0..320).filter(|i| self.0[i / 64] >> (i % 64) & 1 == 1);
        all.map(|i| match i {
            i if i < NUMBERS => InputPlace::Number(i),
            i if i < NUMBERS + BUFFERS => InputPlace::Buffer(i - NUMBERS),
            i if i < 256 => InputPlace::Groups(i - NUMBERS - BUFFERS),
            i => InputPlace::Specialisation(i as u32 - 256),
        })
        .collect()
    }
}

/// What an instruction depends on.
#[derive(Clone, Debug, Default)]
pub(super) struct Influence {
    /// What each of its operands is computed of.
    pub(super) operands: Vec<Vec<InputPlace>>,
    /// What decides whether it runs.
    pub(super) guards: Vec<InputPlace>,
    /// What else the instructions are given that its results reach: what may hide them.
    pub(super) downstream: Vec<InputPlace>,
}

/// A variable that a pointer leads into.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Root {
    Outside(u32),
    Local(u32),
}

/// What a load through a pointer gives.
#[derive(Clone, Copy, Debug)]
struct PointerInto {
    root: Root,
    /// The member of the block, or the component, if the pointer leads to one.
    member: Option<u64>,
}

impl Influence {
    /// What an instruction of a program depends on.
    pub(super) fn on(program: &ModuleProgram, interface: &ModuleInterface, op: OpId) -> Influence {
        let all = Influences::new(program, interface, op);
        let k = &program.kernel;
        let operands = k.args(op).iter().map(|&v| all.all(&[v]).places()).collect();
        let mut guards = InputSet::default();
        all.guards(k.body(), op, &mut guards);
        let mut downstream = InputSet::default();
        program.ops().map(|o| all.all(k.args(o))).filter(|set| set.is_marked()).for_each(|set| downstream.or(set));
        Influence { operands, guards: guards.places(), downstream: downstream.places() }
    }
}

/// Buffers that the results of instructions meet, and that neither decide whether these run nor what they are given.
pub(super) fn data_buffers(all: &[Influence]) -> Vec<usize> {
    let steering = |b: usize| {
        let place = InputPlace::Buffer(b);
        all.iter().any(|i| i.guards.contains(&place) || i.operands.iter().flatten().any(|p| *p == place))
    };
    let met = all
        .iter()
        .flat_map(|i| &i.downstream)
        .filter_map(|p| if let InputPlace::Buffer(b) = p { Some(*b) } else { None });
    met.filter(|&b| !steering(b)).collect()
}

/// The influence of inputs on all values of a program.
struct Influences<'a> {
    program: &'a ModuleProgram,
    interface: &'a ModuleInterface,
    /// The instruction whose results are followed.
    marked: OpId,
    foreign: Option<&'a Foreign>,
    values: Vec<InputSet>,
    variables: HashMap<u32, InputSet>,
    stored: HashMap<Root, InputSet>,
    pointers: HashMap<Value, PointerInto>,
    /// Values that are all axes of a builtin.
    axes: HashMap<Value, BuiltIn>,
    changed: bool,
}

impl<'a> Influences<'a> {
    fn new(program: &'a ModuleProgram, interface: &'a ModuleInterface, marked: OpId) -> Influences<'a> {
        let k = &program.kernel;
        let mut found = Influences {
            program,
            interface,
            marked,
            foreign: Foreign::of(k),
            values: vec![InputSet::default(); k.value_count()],
            variables: HashMap::new(),
            stored: HashMap::new(),
            pointers: HashMap::new(),
            axes: HashMap::new(),
            changed: false,
        };
        for _ in 0..ROUNDS {
            found.changed = false;
            found.region(k.body(), None);
            if !found.changed {
                break;
            }
        }
        found
    }

    fn all(&self, values: &[Value]) -> InputSet {
        let mut set = InputSet::default();
        values.iter().for_each(|v| set.or(self.values[v.index()]));
        set
    }

    fn add(&mut self, v: Value, set: InputSet) {
        let before = self.values[v.index()];
        self.values[v.index()].or(set);
        self.changed |= self.values[v.index()] != before;
    }

    fn region(&mut self, r: RegionId, parent: Option<OpId>) {
        let k = &self.program.kernel;
        for &op in k.region_ops(r) {
            self.op(op, parent);
        }
    }

    fn op(&mut self, op: OpId, parent: Option<OpId>) {
        let k = &self.program.kernel;
        let args = k.args(op);
        let of_args = self.all(args);
        match k.kind(op) {
            OpKind::Const(_) | OpKind::Undef => {}
            OpKind::ForeignConst(n) => {
                let root = match self.foreign.and_then(|f| f.constant(n)) {
                    Some(Constant::Outside(id)) => Root::Outside(id),
                    Some(Constant::Local(n)) => Root::Local(n),
                    None => return,
                };
                if let Root::Outside(id) = root {
                    self.add(k.result(op), self.specialisation(id, 0));
                }
                self.pointers.insert(k.result(op), PointerInto { root, member: None });
            }
            OpKind::Var(v) | OpKind::Set(v) => {
                let known = self.variables.entry(v.0).or_default();
                let before = *known;
                known.or(of_args);
                self.changed |= *known != before;
            }
            OpKind::Get(v) => self.add(k.result(op), self.variables.get(&v.0).copied().unwrap_or_default()),
            OpKind::Load(_) => self.load(op),
            OpKind::Store(_) => self.store(op),
            OpKind::Foreign(n, _) => self.foreign(op, n, of_args),
            OpKind::Extract(i) if self.axes.contains_key(&args[0]) => {
                let set = self.builtin(self.axes[&args[0]], Some(i.into()));
                self.add(k.result(op), set);
            }
            OpKind::Yield => {
                parent.into_iter().for_each(|p| self.flow(args, k.results(p)));
            }
            OpKind::Continue(target) => self.flow_back(args, target),
            OpKind::Break(target) => {
                if let Some(to) = self.loop_of(target) {
                    self.flow(args, k.results(to));
                }
            }
            _ => k.results(op).for_each(|v| self.add(v, of_args)),
        }
        if op == self.marked {
            k.results(op).for_each(|v| self.add(v, MARK));
        }
        for &r in k.regions(op) {
            k.region_args(r).for_each(|v| self.add(v, of_args));
            self.region(r, Some(op));
        }
    }

    fn flow(&mut self, from: &[Value], to: impl Iterator<Item = Value>) {
        for (&v, to) in from.iter().zip(to) {
            self.add(to, self.values[v.index()]);
        }
    }

    /// Carried values of the next iteration; the index of a counted loop is none of them.
    fn flow_back(&mut self, from: &[Value], target: RegionId) {
        let k = &self.program.kernel;
        let skip = k.region_args(target).len().saturating_sub(from.len());
        self.flow(from, k.region_args(target).skip(skip));
    }

    fn loop_of(&self, target: RegionId) -> Option<OpId> {
        let k = &self.program.kernel;
        self.program.ops().find(|&op| k.regions(op).contains(&target))
    }

    fn foreign(&mut self, op: OpId, n: u32, of_args: InputSet) {
        let k = &self.program.kernel;
        let instruction = self.foreign.and_then(|f| f.instructions.get(n as usize));
        let code = instruction.and_then(|i| S::from_u32(i.opcode.into()));
        match code {
            Some(S::AccessChain | S::InBoundsAccessChain) => self.chain(op),
            Some(S::Load) => self.load(op),
            Some(S::Store) => self.store(op),
            Some(S::CompositeExtract) if k.args(op).first().is_some_and(|v| self.axes.contains_key(v)) => {
                let literal = instruction.and_then(|i| {
                    i.words.iter().find_map(|w| if let Word::Literal(n) = w { Some(u64::from(*n)) } else { None })
                });
                let set = self.builtin(self.axes[&k.args(op)[0]], literal);
                k.results(op).for_each(|v| self.add(v, set));
            }
            _ => k.results(op).for_each(|v| self.add(v, of_args)),
        }
    }

    fn chain(&mut self, op: OpId) {
        let k = &self.program.kernel;
        let args = k.args(op);
        let set = self.all(args);
        k.results(op).for_each(|v| self.add(v, set));
        let Some(&base) = args.first().and_then(|v| self.pointers.get(v)) else { return };
        let member = base.member.or_else(|| self.integer(*args.get(1)?));
        self.pointers.insert(k.result(op), PointerInto { member, ..base });
    }

    fn integer(&self, v: Value) -> Option<u64> {
        match self.program.constants.get(&v)? {
            &OpKind::Const(c) => Some(self.program.kernel.const_bits(c)),
            _ => None,
        }
    }

    fn load(&mut self, op: OpId) {
        let k = &self.program.kernel;
        let Some(&pointer) = k.args(op).first() else { return };
        let mut set = self.values[pointer.index()];
        if let Some(&PointerInto { root, member }) = self.pointers.get(&pointer) {
            set.or(self.stored.get(&root).copied().unwrap_or_default());
            if let Root::Outside(id) = root {
                set.or(self.outside(id, member));
                if let (Some(b), None) = (self.builtin_of(id), member) {
                    self.axes.insert(k.result(op), b);
                }
            }
        }
        k.results(op).for_each(|v| self.add(v, set));
    }

    fn store(&mut self, op: OpId) {
        let k = &self.program.kernel;
        let set = self.all(k.args(op));
        let Some(at) = k.args(op).first().and_then(|v| self.pointers.get(v)) else { return };
        let known = self.stored.entry(at.root).or_default();
        let before = *known;
        known.or(set);
        self.changed |= *known != before;
    }

    /// The specialisation constants that a constant is computed of.
    fn specialisation(&self, id: u32, level: u32) -> InputSet {
        let s = &self.program.source;
        let mut set = InputSet::default();
        match s.made(id) {
            Some((S::SpecConstant | S::SpecConstantTrue | S::SpecConstantFalse, _)) => {
                if let Some(n) = s.decoration(id, Decoration::SpecId) {
                    set.or(InputSet::of(InputPlace::Specialisation(n)));
                }
            }
            Some((S::SpecConstantOp | S::SpecConstantComposite, w)) if level < 16 => {
                w.iter().skip(2).for_each(|&id| set.or(self.specialisation(id, level + 1)));
            }
            _ => {}
        }
        set
    }

    fn builtin_of(&self, id: u32) -> Option<BuiltIn> {
        let s = &self.program.source;
        match s.made(id)? {
            (S::Variable, w) if w[2] == StorageClass::Input as u32 => {
                s.decoration(id, Decoration::BuiltIn).and_then(BuiltIn::from_u32)
            }
            _ => None,
        }
    }

    /// The workgroups that a builtin depends on.
    fn builtin(&self, b: BuiltIn, axis: Option<u64>) -> InputSet {
        let mut set = InputSet::default();
        if matches!(b, BuiltIn::WorkgroupId | BuiltIn::GlobalInvocationId | BuiltIn::NumWorkgroups) {
            (0..3)
                .filter(|&a| axis.is_none_or(|n| n == a))
                .for_each(|a| set.or(InputSet::of(InputPlace::Groups(a as usize))));
        }
        set
    }

    /// What a variable outside of functions holds.
    fn outside(&self, id: u32, member: Option<u64>) -> InputSet {
        if let Some(b) = self.builtin_of(id) {
            return self.builtin(b, member);
        }
        let i = self.interface;
        let mut before = 0;
        for (n, b) in i.buffers.iter().enumerate() {
            match (b.variable == id, b.uniform) {
                (true, false) => return InputSet::of(InputPlace::Buffer(n)),
                (true, true) => return self.numbers(id, member, before, &b.layout.scalars),
                (false, true) => before += b.layout.scalars.len(),
                (false, false) => {}
            }
        }
        match i.constants_variable == Some(id) {
            true => self.numbers(id, member, before, &i.constants.scalars),
            false => InputSet::default(),
        }
    }

    /// The numbers of a member of a block, of which the first has the number `before`.
    fn numbers(
        &self,
        id: u32,
        member: Option<u64>,
        before: usize,
        scalars: &[(u32, crate::import::ScalarFormat)],
    ) -> InputSet {
        let s = &self.program.source;
        let block = s.made(id).and_then(|(_, w)| pointee(s, w[0]));
        let offset = |m: u64| s.member_decoration(block?, u32::try_from(m).ok()?, Decoration::Offset);
        let (begin, end) = match member {
            Some(m) => (offset(m).unwrap_or(0), offset(m + 1).unwrap_or(u32::MAX)),
            None => (0, u32::MAX),
        };
        let mut set = InputSet::default();
        let within = scalars.iter().enumerate().filter(|(_, s)| (begin..end).contains(&s.0));
        within.for_each(|(n, _)| set.or(InputSet::of(InputPlace::Number(before + n))));
        set
    }

    /// Adds what decides whether an op in or below a region runs; whether it is there.
    fn guards(&self, r: RegionId, op: OpId, guards: &mut InputSet) -> bool {
        let k = &self.program.kernel;
        let Some(at) = k.region_ops(r).iter().position(|&o| contains(k, o, op)) else { return false };
        // What may leave before.
        for &o in &k.region_ops(r)[..=at] {
            let decides = o == k.region_ops(r)[at] && o != op || k.regions(o).iter().any(|&r| leaves(k, r));
            if decides {
                guards.or(self.all(k.args(o)));
            }
        }
        let inner = k.region_ops(r)[at];
        if inner != op {
            k.regions(inner).iter().any(|&r| self.guards(r, op, guards));
        }
        true
    }
}

fn contains(k: &Kernel, o: OpId, op: OpId) -> bool {
    o == op || k.regions(o).iter().any(|&r| k.region_ops(r).iter().any(|&o| contains(k, o, op)))
}

/// Whether an invocation may leave a region for another place than the end of the op around it.
fn leaves(k: &Kernel, r: RegionId) -> bool {
    k.region_ops(r).iter().any(|&o| {
        matches!(k.kind(o), OpKind::Return | OpKind::Break(_) | OpKind::Continue(_))
            || k.regions(o).iter().any(|&r| leaves(k, r))
    })
}
