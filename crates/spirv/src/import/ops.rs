//! Instructions as ops.

use rspirv::spirv::{MemoryAccess, Op as S};

use super::body::{Import, Place, Pointer, SHARED, Slot, Step, Stop, Target};
use super::facts::pointee;
use super::foreign::{Instruction, Word};
use super::grammar::{self, Role};
use super::module::{At, text};
use super::table;
use impasto_kernel::ir::{BinaryOp, Effect, OpKind, Scalar, Ty, Value};

impl Import<'_> {
    /// One instruction that is no terminator. What it gives is of the type that it says.
    pub(super) fn instruction(&mut self, at: At) -> Result<(), Stop> {
        self.translate(at)?;
        let (op, w) = (self.s.op(at), self.s.operands(at));
        if !grammar::has_type(op as u32) || self.asm.ended() {
            return Ok(());
        }
        let ty = match self.slot(w[1]) {
            Slot::Value { value, .. } => self.asm.kernel.ty(*value),
            Slot::Variable(var) => self.asm.kernel.vars()[var.index()],
            Slot::Place(_) | Slot::Nothing => return Ok(()),
        };
        if self.ty(w[0])? != ty {
            return Err(self.refuse(at, "its result is of another type than it says"));
        }
        Ok(())
    }

    fn translate(&mut self, at: At) -> Result<(), Stop> {
        let s = self.s;
        let (op, w) = (s.op(at), s.operands(at));
        // What stands after the end of a call that does not return is never reached.
        if self.asm.ended() {
            return Ok(());
        }
        match op {
            S::Nop | S::Line | S::NoLine | S::SamplerImageAddressingModeNV => Ok(()),
            S::Variable => self.local(w),
            S::Undef => {
                let ty = self.ty(w[0])?;
                let v = self.asm.value(OpKind::Undef, &[], ty);
                self.define(w[1], v);
                Ok(())
            }
            S::CopyObject if !self.is_decorated(w[1]) => {
                if let Slot::Place(p) = self.slot(w[2]).clone() {
                    self.set_slot(w[1], Slot::Place(p));
                    return Ok(());
                }
                let v = self.value(w[2])?;
                if let Some(p) = self.pointers.get(&w[2]).cloned() {
                    self.pointers.insert(w[1], p);
                }
                self.define(w[1], v);
                Ok(())
            }
            S::Load => self.load(at, w),
            S::Store => self.store(at, w),
            S::AccessChain | S::InBoundsAccessChain => self.access(at, w),
            S::CompositeExtract
            | S::CompositeInsert
            | S::CompositeConstruct
            | S::VectorShuffle
            | S::VectorExtractDynamic
                if !self.is_decorated(w[1]) =>
            {
                match self.composite(op, w)? {
                    Some(v) => {
                        self.define(w[1], v);
                        Ok(())
                    }
                    None => self.generic(at, table::does(op)),
                }
            }
            S::FunctionCall => match self.inline(w)? {
                true => Ok(()),
                false => self.generic(at, Effect::Anything),
            },
            S::ExtInst => self.extended(at, w),
            _ => self.arithmetic(at, op, w),
        }
    }

    fn is_decorated(&self, id: u32) -> bool {
        self.s.is_decorated[id as usize]
    }

    fn arithmetic(&mut self, at: At, op: S, w: &[u32]) -> Result<(), Stop> {
        if let Some(orders) = table::atomic_orders(op) {
            let relaxed = orders.iter().all(|&i| w.get(i).and_then(|&id| self.s.constant(id)) == Some(0));
            let place = if op == S::AtomicStore { w[0] } else { w[2] };
            let does = match self.target_of(place) {
                Target::Memory(m) if relaxed && !self.facts.coherent => Effect::Writes(m),
                _ => Effect::Anything,
            };
            return self.generic(at, does);
        }
        if !grammar::has_type(op as u32) || self.is_decorated(w[1]) {
            return self.generic(at, table::does(op));
        }
        let ty = self.ty(w[0])?;
        let does = table::does(op);
        let known = !matches!(does, Effect::Anything | Effect::Together | Effect::Reads(_)) && w.len() <= 5;
        if known && w[2..].iter().all(|id| self.s.type_of(*id).is_some()) {
            let args: Vec<Value> = w[2..].iter().map(|&id| self.value(id)).collect::<Result<_, _>>()?;
            let types: Vec<Ty> = args.iter().map(|&v| self.asm.kernel.ty(v)).collect();
            if let Some(kind) = table::plain(op, &types, ty).filter(|&kind| self.is_safe(kind, &args, ty)) {
                let v = self.asm.value(kind, &args, ty);
                self.define(w[1], v);
                return Ok(());
            }
        }
        self.generic(at, does)
    }

    /// Whether the op is defined wherever it may be moved to: a division by what may be zero is not.
    fn is_safe(&self, kind: OpKind, args: &[Value], ty: Ty) -> bool {
        let Some((s, n)) = ty.lanes() else { return false };
        if !matches!(kind, OpKind::Binary(BinaryOp::Div | BinaryOp::Rem)) || !s.is_int() {
            return true;
        }
        let fits = |v: Value| self.asm.as_const(v).is_some_and(|c| c != 0 && c != s.mask());
        match self.asm.made_by(args[1]) {
            Some((OpKind::Make, parts)) if n > 1 => parts.iter().all(|&p| fits(p)),
            _ => n == 1 && fits(args[1]),
        }
    }

    fn extended(&mut self, at: At, w: &[u32]) -> Result<(), Stop> {
        let set = match self.s.made(w[2]) {
            Some((S::ExtInstImport, name)) => text(&name[1..]),
            _ => String::new(),
        };
        match set.as_str() {
            "GLSL.std.450" if table::writes_through_pointer(w[3]) => self.generic(at, Effect::Anything),
            "GLSL.std.450" => self.generic(at, Effect::Pure),
            "NonSemantic.DebugPrintf" => self.generic(at, Effect::Anything),
            name if self.s.is_void(w[0]) && (name.starts_with("NonSemantic.") || name.contains("DebugInfo")) => Ok(()),
            _ => self.generic(at, Effect::Anything),
        }
    }

    /// An instruction as it is, with the values of its operands.
    fn generic(&mut self, at: At, does: Effect) -> Result<(), Stop> {
        let s = self.s;
        let words = s.instruction(at);
        let mut roles = Vec::with_capacity(words.len());
        let walked = grammar::walk(words, |id| s.case_words(id), |i, role| roles.push((words[i], role)));
        if walked.is_err() {
            return Err(self.refuse(at, "an instruction that is not understood"));
        }
        let (mut ty, mut result, mut template, mut args) = (None, None, Vec::new(), Vec::new());
        for (word, role) in roles {
            match role {
                Role::Type => ty = Some(word),
                Role::Result => result = Some(word),
                Role::Literal => template.push(Word::Literal(word)),
                Role::Use if s.type_of(word).is_none() || s.function_of.contains_key(&word) => {
                    template.push(Word::Id(word))
                }
                Role::Use => {
                    template.push(Word::Operand);
                    args.push(self.value(word)?);
                }
            }
        }
        let decorations = result.map_or(Vec::new(), |id| self.decorations(id));
        let void = ty.filter(|&ty| matches!(s.made(ty), Some((S::TypeVoid, _)))).unwrap_or(0);
        let n =
            self.foreign.number(Instruction { opcode: (words[0] & 0xFFFF) as u16, words: template, decorations, void });
        let kind = OpKind::Foreign(n, does);
        match (ty, result) {
            (Some(ty), Some(id)) => {
                if void != 0 {
                    // Its result is no value, but it must have an id.
                    let unit = Ty::scalar(Scalar::U32);
                    self.asm.push(kind, &args, &[unit]);
                    return Ok(());
                }
                let ty = self.ty(ty)?;
                let v = self.asm.value(kind, &args, ty);
                self.pointers.remove(&id);
                self.define(id, v);
            }
            (None, None) => {
                self.asm.push(kind, &args, &[]);
            }
            _ => return Err(self.refuse(at, "an instruction that is not understood")),
        }
        Ok(())
    }

    /// The decorations of a value, without its id.
    fn decorations(&self, id: u32) -> Vec<Vec<u32>> {
        let all = self.s.decorations.get(&id).into_iter().flatten();
        all.filter(|&&at| self.s.op(at) == S::Decorate).map(|&at| self.s.operands(at)[1..].to_vec()).collect()
    }

    fn composite(&mut self, op: S, w: &[u32]) -> Result<Option<Value>, Stop> {
        let ty = self.ty(w[0])?;
        match op {
            S::CompositeExtract => {
                let from = self.value(w[2])?;
                self.extract(from, &w[3..])
            }
            S::CompositeInsert => {
                let (part, into) = (self.value(w[2])?, self.value(w[3])?);
                self.insert(into, part, &w[4..])
            }
            S::CompositeConstruct => {
                let members = self.asm.kernel.members(ty) as usize;
                let mut parts = Vec::new();
                for &id in &w[2..] {
                    let v = self.value(id)?;
                    // Vectors may be made of vectors.
                    let whole = self.asm.kernel.member(ty, parts.len() as u32) == Some(self.asm.kernel.ty(v));
                    if whole {
                        parts.push(v);
                        continue;
                    }
                    // No vector has more members; what else stands here is left as it is.
                    let n = self.asm.kernel.members(self.asm.kernel.ty(v));
                    if n > 16 {
                        return Ok(None);
                    }
                    for i in 0..n {
                        parts.extend(self.extract(v, &[i])?);
                    }
                }
                let fits = parts.len() == members
                    && (0..).zip(&parts).all(|(i, &p)| self.asm.kernel.member(ty, i) == Some(self.asm.kernel.ty(p)));
                Ok((fits && members > 0).then(|| self.asm.value(OpKind::Make, &parts, ty)))
            }
            S::VectorExtractDynamic => {
                let (from, i) = (self.value(w[2])?, self.value(w[3])?);
                match self.asm.as_const(i) {
                    Some(i) if i < u64::from(self.asm.kernel.members(self.asm.kernel.ty(from))) => {
                        self.extract(from, &[i as u32])
                    }
                    _ => Ok(None),
                }
            }
            _ => {
                let (a, b) = (self.value(w[2])?, self.value(w[3])?);
                let n = self.asm.kernel.members(self.asm.kernel.ty(a));
                let Some(of) = self.asm.kernel.member(ty, 0) else { return Ok(None) };
                let mut parts = Vec::new();
                for &i in &w[4..] {
                    let part = match i {
                        u32::MAX => Some(self.asm.value(OpKind::Undef, &[], of)),
                        i if i < n => self.extract(a, &[i])?,
                        i => self.extract(b, &[i - n])?,
                    };
                    let Some(part) = part else { return Ok(None) };
                    parts.push(part);
                }
                Ok((parts.len() == self.asm.kernel.members(ty) as usize)
                    .then(|| self.asm.value(OpKind::Make, &parts, ty)))
            }
        }
    }

    /// A member of a member of a composite, if numbers name it.
    fn extract(&mut self, from: Value, path: &[u32]) -> Result<Option<Value>, Stop> {
        let mut v = from;
        for &i in path {
            let Some(ty) = self.asm.kernel.member(self.asm.kernel.ty(v), i) else { return Ok(None) };
            v = self.asm.value(OpKind::Extract(i), &[v], ty);
        }
        Ok(Some(v))
    }

    fn insert(&mut self, into: Value, part: Value, path: &[u32]) -> Result<Option<Value>, Stop> {
        let Some((&i, rest)) = path.split_first() else { return Ok(Some(part)) };
        let ty = self.asm.kernel.ty(into);
        let Some(member) = self.asm.kernel.member(ty, i) else { return Ok(None) };
        let mut inner = part;
        if !rest.is_empty() {
            let old = self.asm.value(OpKind::Extract(i), &[into], member);
            match self.insert(old, part, rest)? {
                Some(v) => inner = v,
                None => return Ok(None),
            }
        }
        if self.asm.kernel.ty(inner) != member {
            return Ok(None);
        }
        Ok(Some(self.asm.value(OpKind::Insert(i), &[into, inner], ty)))
    }

    fn access(&mut self, at: At, w: &[u32]) -> Result<(), Stop> {
        if let Slot::Place(place) = self.slot(w[2]).clone() {
            let mut place = place;
            for &index in &w[3..] {
                let step = match self.s.constant(index) {
                    Some(n) => Step::Member(n),
                    None => Step::Computed(self.value(index)?),
                };
                place.path.push(step);
            }
            self.set_slot(w[1], Slot::Place(place));
            return Ok(());
        }
        let Some(mut p) = self.pointer_of(w[2]) else { return self.generic(at, Effect::Pure) };
        for &index in &w[3..] {
            let v = self.value(index)?;
            p.indices.push(v);
        }
        let ty = self.ty(w[0])?;
        // A pointer of this region, made of one whose region has ended, is made of what that was made of.
        if self.is_decorated(w[1]) {
            self.generic(at, Effect::Pure)?;
        } else {
            let v = self.chain(&p, ty)?;
            self.define(w[1], v);
        }
        self.pointers.insert(w[1], p);
        Ok(())
    }

    fn load(&mut self, at: At, w: &[u32]) -> Result<(), Stop> {
        if let Slot::Place(place) = self.slot(w[2]) {
            let place = place.clone();
            let v = self.read(&place)?;
            self.define(w[1], v);
            return Ok(());
        }
        self.leads_to(at, w[2], w[0])?;
        let simple = w.len() == 3 && !self.is_decorated(w[1]);
        match self.target_of(w[2]) {
            Target::Constant => {
                let fixed = |p: &Pointer| p.indices.iter().all(|&i| self.asm.as_const(i).is_some());
                let fixed = self.pointers.get(&w[2]).is_none_or(fixed);
                self.generic(at, if fixed { Effect::Pure } else { Effect::Partial })
            }
            Target::Memory(m) if simple && !self.is_watched(m) => {
                let (ty, pointer) = (self.ty(w[0])?, self.value(w[2])?);
                let v = self.asm.value(OpKind::Load(m), &[pointer], ty);
                self.define(w[1], v);
                Ok(())
            }
            Target::Memory(m) if self.is_private(w.get(3)) && !self.is_watched(m) => self.generic(at, Effect::Reads(m)),
            _ => self.generic(at, Effect::Anything),
        }
    }

    fn store(&mut self, at: At, w: &[u32]) -> Result<(), Stop> {
        if let Slot::Place(place) = self.slot(w[0]) {
            let place = place.clone();
            let v = self.value(w[1])?;
            return self.write(&place, v);
        }
        self.leads_to(at, w[0], self.s.type_of(w[1]).unwrap_or(0))?;
        match self.target_of(w[0]) {
            Target::Memory(m) if w.len() == 2 && !self.is_watched(m) => {
                let (pointer, v) = (self.value(w[0])?, self.value(w[1])?);
                self.asm.push(OpKind::Store(m), &[pointer, v], &[]);
                Ok(())
            }
            Target::Memory(m) if self.is_private(w.get(2)) && !self.is_watched(m) => {
                self.generic(at, Effect::Writes(m))
            }
            _ => self.generic(at, Effect::Anything),
        }
    }

    /// What is read or written through a pointer is of the type that it leads to.
    fn leads_to(&self, at: At, pointer: u32, ty: u32) -> Result<(), Stop> {
        match self.s.type_of(pointer).and_then(|p| pointee(self.s, p)) {
            Some(to) if to == ty => Ok(()),
            _ => Err(self.refuse(at, "a pointer leads to another type than what is read or written")),
        }
    }

    /// Whether an access says no more than how its place is aligned.
    fn is_private(&self, access: Option<&u32>) -> bool {
        let harmless = MemoryAccess::ALIGNED | MemoryAccess::NONTEMPORAL;
        access.is_none_or(|&m| m & !harmless.bits() == 0)
    }

    /// Whether others watch every access to a memory.
    fn is_watched(&self, m: impasto_kernel::ir::MemoryId) -> bool {
        m == SHARED && self.facts.coherent
    }

    fn read(&mut self, place: &Place) -> Result<Value, Stop> {
        let mut v = self.get(place.var);
        for step in &place.path {
            let of = self.asm.kernel.ty(v);
            v = match *step {
                Step::Member(i) => match self.asm.kernel.member(of, i) {
                    Some(ty) => self.asm.value(OpKind::Extract(i), &[v], ty),
                    None => return Err(self.refuse(self.here, "an index is out of bounds")),
                },
                Step::Computed(i) => {
                    let Some(ty) = self.asm.kernel.member(of, 0) else {
                        return Err(self.refuse(self.here, "an index into what has no members"));
                    };
                    let n = self.dynamic(S::VectorExtractDynamic, 2);
                    self.asm.value(OpKind::Foreign(n, Effect::Partial), &[v, i], ty)
                }
            };
        }
        Ok(v)
    }

    fn dynamic(&mut self, op: S, operands: usize) -> u32 {
        self.foreign.number(Instruction {
            opcode: op as u16,
            words: vec![Word::Operand; operands],
            decorations: Vec::new(),
            void: 0,
        })
    }

    fn write(&mut self, place: &Place, v: Value) -> Result<(), Stop> {
        let mut new = v;
        if !place.path.is_empty() {
            let whole = self.get(place.var);
            new = self.replaced(whole, &place.path, v)?;
        }
        self.asm.push(OpKind::Set(place.var), &[new], &[]);
        Ok(())
    }

    /// A composite with one place in it changed.
    fn replaced(&mut self, whole: Value, path: &[Step], v: Value) -> Result<Value, Stop> {
        let Some((step, rest)) = path.split_first() else { return Ok(v) };
        let ty = self.asm.kernel.ty(whole);
        match *step {
            Step::Member(i) => {
                let Some(member) = self.asm.kernel.member(ty, i) else {
                    return Err(self.refuse(self.here, "an index is out of bounds"));
                };
                let inner = if rest.is_empty() {
                    v
                } else {
                    let old = self.asm.value(OpKind::Extract(i), &[whole], member);
                    self.replaced(old, rest, v)?
                };
                Ok(self.asm.value(OpKind::Insert(i), &[whole, inner], ty))
            }
            Step::Computed(i) => {
                let n = self.dynamic(S::VectorInsertDynamic, 3);
                Ok(self.asm.value(OpKind::Foreign(n, Effect::Partial), &[whole, v, i], ty))
            }
        }
    }
}
