//! Kernels that need too many ids are refused before time is spent on them: a look at a kernel as it was written counts what no pass takes out.
//!
//! A store to memory that others see stays where it can be reached, and so does what it is made of. Of that, an op counts if no pass can make a
//! constant or another value of it: loads of what is only read, and arithmetic on such values, with each other or with constants other than those that
//! vanish (0, 1 and the like). Equal ones count once, and so do places in memory and constants. What is unsure does not count, so
//! the number is at most what emission would take. Cost: linear; kernels that cannot be too large are not looked at.

use std::collections::BTreeMap;

use super::too_many;
use crate::error::KernelError;
use crate::hash::Mix;
use crate::ir::{
    Access, Binary, Builtin, Kernel, MemoryId, OpId, OpKind, RegionId, Scalar, Space, Unary, Value, VarId,
};

/// Regions that nest deeper are not looked at.
const MOST_DEPTH: usize = 32;
/// Bits of the table of what was counted. Two that fall together count as one.
const TABLE_BITS: u32 = 29;

/// Refuses kernels that need more ids than this, if that can be seen at once.
pub(crate) fn refuse_early(kernels: &[Kernel], limit: u32) -> Result<(), KernelError> {
    // An op takes two ids at most here.
    let most: usize = kernels.iter().map(|k| 2 * k.op_count() + 1).sum();
    if most <= limit as usize {
        return Ok(());
    }
    let (counts, tallies) = counted(kernels);
    let count = counts.iter().sum::<u64>() + 1;
    if count <= u64::from(limit) {
        return Ok(());
    }
    let worst = kernels.iter().zip(&counts).max_by_key(|(_, n)| **n).map(|(k, _)| k);
    Err(too_many(worst, "any translation to SPIR-V", count, limit, tallies.into_iter().collect()))
}

/// Ids that a module of these kernels surely needs, however it is optimised. It may need more.
///
/// ```
/// use impasto_kernel::{Builder, compile, least_ids};
/// let kernel = Builder::kernel("chain", [1, 1, 1], |k| {
///     let (x, y) = (k.buffer::<f32>("x"), k.buffer_mut::<f32>("y"));
///     let (a, first) = (x.load(0), x.load(1));
///     y.store(0, (0..100).fold(first, |v, _| v * a + 1.5f32));
/// })?;
/// let least = least_ids(&[kernel.clone()]);
/// assert!(least > 200 && least <= compile(&kernel)?.bound.into());
/// # Ok::<(), impasto_kernel::KernelError>(())
/// ```
pub fn least_ids(kernels: &[Kernel]) -> u64 {
    counted(kernels).0.iter().sum::<u64>() + 1
}

/// The ids of each kernel, and what takes them.
fn counted(kernels: &[Kernel]) -> (Vec<u64>, BTreeMap<String, u64>) {
    let (mut table, mut counts, mut tallies) = (Table::new(), Vec::new(), BTreeMap::new());
    for (number, k) in kernels.iter().enumerate() {
        let of = if kernels.len() == 1 { String::new() } else { format!(" of '{}'", k.name) };
        let found = Look::count(k, &mut table, number as u64 + 1);
        counts.push(found.values().sum::<u64>());
        for (what, n) in found {
            // Constants are the module's.
            let name = if what == CONSTANTS { what.to_owned() } else { format!("{what}{of}") };
            *tallies.entry(name).or_insert(0u64) += n;
        }
    }
    (counts, tallies)
}

const CONSTANTS: &str = "constants";

/// What was counted.
struct Table(Vec<u64>);

impl Table {
    fn new() -> Table {
        Table(vec![0; 1 << (TABLE_BITS - 6)])
    }

    /// Whether this is new.
    fn add(&mut self, hash: u64) -> bool {
        let at = hash >> (64 - TABLE_BITS);
        let (word, bit) = (&mut self.0[at as usize >> 6], 1 << (at & 63));
        let new = *word & bit == 0;
        *word |= bit;
        new
    }
}

fn hash(numbers: &[u64]) -> u64 {
    use std::hash::Hasher;
    let mut mix = Mix::default();
    numbers.iter().for_each(|&n| mix.write_u64(n));
    mix.finish()
}

/// What is known of a value: a number that equal values share, and what it is.
#[derive(Clone, Copy, PartialEq)]
struct Class(u64);

impl Class {
    const UNSURE: Class = Class(0);
    /// A constant; one that may make an op vanish; a value that stays.
    const PLAIN: u64 = 1;
    const SPECIAL: u64 = 2;
    const STAYS: u64 = 3;
    /// A whole number plus a constant: another constant may come to nothing with it.
    const SUM: u64 = 4;

    fn new(hash: u64, tag: u64) -> Class {
        Class(hash & !7 | tag)
    }

    fn is(self, tag: u64) -> bool {
        self.0 & 3 == tag
    }
}

struct Look<'a> {
    k: &'a Kernel,
    classes: Vec<Class>,
    /// The value that each variable has now, and that was read from one.
    vars: Vec<u32>,
    sources: Vec<u32>,
    /// Variables that were assigned in the regions that are open, and what they were.
    undo: Vec<(VarId, u32)>,
    /// What is surely reached, in order.
    order: Vec<OpId>,
    live: Vec<u64>,
}

/// No value.
const NONE: u32 = u32::MAX;

impl Look<'_> {
    /// Ids by what takes them.
    fn count(k: &Kernel, table: &mut Table, salt: u64) -> BTreeMap<&'static str, u64> {
        let sources = if k.vars.is_empty() { Vec::new() } else { vec![NONE; k.value_count()] };
        let mut look = Look {
            k,
            classes: vec![Class::UNSURE; k.value_count()],
            vars: vec![NONE; k.vars.len()],
            sources,
            undo: Vec::new(),
            order: Vec::with_capacity(k.op_count()),
            live: vec![0; k.value_count().div_ceil(64)],
        };
        look.region(k.body(), 0);
        let mut found = BTreeMap::new();
        let order = std::mem::take(&mut look.order);
        for &op in order.iter().rev() {
            look.op_back(op, table, salt, &mut found);
        }
        found
    }

    fn class(&self, v: Value) -> Class {
        self.classes[v.index()]
    }

    /// Goes through a region that is surely reached; whether its end is.
    fn region(&mut self, r: RegionId, depth: usize) -> bool {
        let k = self.k;
        for &op in k.region_ops(r) {
            let kind = k.kind(op);
            let args = k.args(op);
            match kind {
                OpKind::Var(v) | OpKind::Set(v) => self.assign(v, args[0].0),
                OpKind::Get(v) => {
                    let from = self.vars[v.index()];
                    self.sources[k.result(op).index()] = from;
                    if from != NONE {
                        self.classes[k.result(op).index()] = self.classes[from as usize];
                        self.order.push(op);
                    }
                }
                OpKind::Store(m) | OpKind::Atomic(m, _) if seen(k, m) => self.order.push(op),
                _ if kind.is_structure() => {
                    let goes_on = self.structure(op, depth);
                    if !goes_on {
                        return false;
                    }
                }
                _ if kind.is_terminator() => return kind == OpKind::Yield,
                _ if k.results(op).len() == 1 => {
                    let class = self.class_of(op, kind);
                    self.classes[k.result(op).index()] = class;
                    if class.is(Class::STAYS) {
                        self.order.push(op);
                    }
                }
                _ => {}
            }
        }
        false
    }

    fn assign(&mut self, v: VarId, to: u32) {
        self.undo.push((v, std::mem::replace(&mut self.vars[v.index()], to)));
    }

    /// Whether what stands behind it is surely reached.
    fn structure(&mut self, op: OpId, depth: usize) -> bool {
        let k = self.k;
        let (kind, args) = (k.kind(op), k.args(op));
        let stays = |v: &Value| self.class(*v).is(Class::STAYS);
        let known = |v: &Value| self.class(*v) != Class::UNSURE;
        let ends = args.get(..2).unwrap_or_default();
        let runs = match kind {
            OpKind::If => args.first().is_some_and(stays),
            // One of which both ends are constants may be unrolled.
            OpKind::For(_) => ends.iter().all(known) && ends.iter().any(stays),
            _ => false,
        };
        if !runs || depth >= MOST_DEPTH {
            self.forget(op);
            return simple(k, op);
        }
        let repeats = kind != OpKind::If;
        if let (true, Some(index)) = (repeats, k.regions(op).first().and_then(|&r| k.region_args(r).next())) {
            self.forget(op);
            self.classes[index.index()] = Class::new(hash(&[0xF0, op.0.into()]), Class::STAYS);
        }
        let (before, mark) = (self.order.len(), self.undo.len());
        let mut goes_on = repeats;
        let mut assigned = Vec::new();
        for &r in k.regions(op) {
            goes_on |= self.region(r, depth + 1);
            for (v, old) in self.undo.drain(mark..).rev() {
                self.vars[v.index()] = old;
                assigned.push(v);
            }
        }
        assigned.into_iter().for_each(|v| self.assign(v, NONE));
        let stores = |op: &OpId| matches!(k.kind(*op), OpKind::Store(_) | OpKind::Atomic(..));
        if kind == OpKind::If && self.order[before..].iter().any(stores) {
            self.order.push(op);
        }
        goes_on
    }

    /// Variables that are assigned in an op are unsure.
    fn forget(&mut self, op: OpId) {
        if self.vars.is_empty() {
            return;
        }
        let k = self.k;
        let mut open = k.regions(op).to_vec();
        while let Some(r) = open.pop() {
            for &inner in k.region_ops(r) {
                if let OpKind::Set(v) = k.kind(inner) {
                    self.assign(v, NONE);
                }
                open.extend_from_slice(k.regions(inner));
            }
        }
    }

    fn class_of(&self, op: OpId, kind: OpKind) -> Class {
        let k = self.k;
        let args = k.args(op);
        let ty = k.ty(k.result(op));
        let Some(s) = ty.as_scalar() else { return Class::UNSURE };
        let made = |words: &[u64]| Class::new(hash(words), Class::STAYS);
        let of = |i: usize| self.class(args[i]);
        let word = |i: usize| of(i).0;
        let each = || args.iter().map(|&v| self.class(v));
        let steady = || each().all(|c| c.is(Class::STAYS) || c.is(Class::PLAIN)) && each().any(|c| c.is(Class::STAYS));
        match kind {
            OpKind::Const(c) => number(s, k.const_bits(c)),
            OpKind::Param(p) => made(&[0xA0, p.into()]),
            OpKind::Builtin(b @ (Builtin::GlobalId | Builtin::WorkgroupId), axis) => {
                made(&[0xB0, b as u64, axis.into()])
            }
            OpKind::Load(m) if k.memory(m).space == Space::Buffer(Access::Read) => {
                let at = of(0);
                if at == Class::UNSURE { at } else { made(&[0xD0, m.0.into(), at.0]) }
            }
            OpKind::Binary(f) => self.binary(f, s, of(0), of(1)),
            OpKind::Unary(
                f
                @ (Unary::Sqrt | Unary::InverseSqrt | Unary::Exp | Unary::Log | Unary::Sin | Unary::Cos | Unary::Tanh),
            ) if steady() => made(&[0xE1, f as u64, s as u64, word(0)]),
            OpKind::Compare(c) if steady() && of(0) != of(1) => {
                made(&[0xE2, c as u64, word(0).min(word(1)), word(0).max(word(1))])
            }
            OpKind::Fma if each().all(|c| c.is(Class::STAYS)) => made(&[0xE3, s as u64, word(0), word(1), word(2)]),
            _ => Class::UNSURE,
        }
    }

    fn binary(&self, f: Binary, s: Scalar, a: Class, b: Class) -> Class {
        use Binary::{Add, And, Div, Mul, Or, Sub, Xor};
        let both = [a, b];
        let constant = |c: Class| c.is(Class::PLAIN) || c.is(Class::SPECIAL);
        let known = both.iter().all(|&c| c != Class::UNSURE) && !(constant(a) && constant(b));
        if !known || a == b || !matches!(f, Add | And | Div | Mul | Or | Sub | Xor) {
            return Class::UNSURE;
        }
        if let Some(at) = both.iter().position(|c| c.is(Class::SPECIAL)) {
            let zero = [0, sign(s)].iter().any(|&bits| both[at] == number(s, bits));
            match f {
                Add | Sub if zero && !s.is_float() && (at == 1 || f == Add) => return both[1 - at],
                Add | Sub | Xor if !zero => {}
                _ => return Class::UNSURE,
            }
        }
        let sum = f == Add && !s.is_float() && both.iter().any(|&c| constant(c));
        if sum && both.iter().any(|c| c.is(Class::STAYS) && c.0 & Class::SUM != 0) {
            return Class::UNSURE;
        }
        let (a, b) = if f.commutes() { (a.0.min(b.0), a.0.max(b.0)) } else { (a.0, b.0) };
        let class = Class::new(hash(&[0xE0, f as u64, s as u64, a, b]), Class::STAYS);
        Class(class.0 | if sum { Class::SUM } else { 0 })
    }

    fn mark(&mut self, v: Value) {
        self.live[v.index() >> 6] |= 1 << (v.index() & 63);
    }

    fn op_back(&mut self, op: OpId, table: &mut Table, salt: u64, found: &mut BTreeMap<&'static str, u64>) {
        let k = self.k;
        let (kind, args) = (k.kind(op), k.args(op));
        let mut count = |what: &'static str, hash: u64| {
            if table.add(hash) {
                *found.entry(what).or_insert(0) += 1;
            }
        };
        let place = |m: MemoryId, at: Class| hash(&[salt, 0x51, m.0.into(), at.0]);
        let live = |v: Value| self.live[v.index() >> 6] >> (v.index() & 63) & 1 == 1;
        match kind {
            OpKind::Store(m) | OpKind::Atomic(m, _) => {
                let at = self.class(args[0]);
                if at != Class::UNSURE {
                    count(kind.name(), place(m, at));
                }
                if !at.is(Class::STAYS) && at != Class::UNSURE {
                    count(CONSTANTS, hash(&[0x52, at.0]));
                }
            }
            OpKind::If => {
                count("blocks", hash(&[salt, 0x53, op.0.into()]));
                count("blocks", hash(&[salt, 0x54, op.0.into()]));
            }
            _ if !live(k.result(op)) => return,
            OpKind::Get(_) => {
                let from = self.sources[k.result(op).index()];
                return self.mark(Value(from));
            }
            OpKind::Param(_) | OpKind::Builtin(..) => return,
            _ => {
                count(kind.name(), hash(&[salt, 0x50, self.class(k.result(op)).0]));
                if let OpKind::Load(m) = kind {
                    count(kind.name(), place(m, self.class(args[0])));
                }
                // A product may become a shift, by another constant.
                if !matches!(kind, OpKind::Binary(Binary::Mul)) {
                    for c in args.iter().map(|&v| self.class(v)).filter(|c| c.is(Class::PLAIN)) {
                        count(CONSTANTS, hash(&[0x52, c.0]));
                    }
                }
            }
        }
        args.iter().for_each(|&v| self.mark(v));
    }
}

/// The bit of the sign.
fn sign(s: Scalar) -> u64 {
    1u64.checked_shl(s.bits() - 1).unwrap_or(0)
}

/// A constant.
fn number(s: Scalar, bits: u64) -> Class {
    let one = crate::eval::convert(Scalar::U32, s, 1);
    let minus = if s.is_float() { one | sign(s) } else { s.mask() };
    let tag = if [0, one, minus, sign(s)].contains(&bits) { Class::SPECIAL } else { Class::PLAIN };
    Class::new(hash(&[0xC0, s as u64, bits]), tag)
}

/// Whether a store to this memory is seen by others, so that it stays.
fn seen(k: &Kernel, m: MemoryId) -> bool {
    !matches!(k.memory(m).space, Space::Private(_))
}

/// Whether an op surely ends at its end, whatever is decided in it.
fn simple(k: &Kernel, op: OpId) -> bool {
    let mut open = vec![op];
    let mut loops: Vec<RegionId> = Vec::new();
    while let Some(op) = open.pop() {
        match k.kind(op) {
            OpKind::Return | OpKind::Unreachable | OpKind::Loop => return false,
            OpKind::Break(t) | OpKind::Continue(t) if !loops.contains(&t) => return false,
            OpKind::For(_) => loops.extend_from_slice(k.regions(op)),
            _ => {}
        }
        k.regions(op).iter().for_each(|&r| open.extend_from_slice(k.region_ops(r)));
    }
    true
}
