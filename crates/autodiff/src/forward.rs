//! Forward mode: each value that varies has a tangent, which is computed beside it by the lines of the table. Control flow stays as it is;
//! what carries a value carries its tangent. Cost: linear.

use impasto_kernel::KernelError;
use impasto_kernel::hash::Map;
use impasto_kernel::ir::{
    Access, Assembler, Atomic, Builtin, Compare, Kernel, MemoryId, OpId, OpKind, RegionId, Space, Subgroup, Ty, Value,
};
use impasto_kernel::verify;

use super::activity::{Activity, Places};
use super::parts::{BufferScalars, base};
use super::table::{self, OpWriter};
use super::write::{F32, U32};
use super::{Jvp, Purpose, Refusal, buffer_numbers, check, declare, is_f32, prepared, refused};
use impasto_kernel::passes::clean;

struct Forward<'a> {
    k: &'a Kernel,
    parts: &'a BufferScalars,
    /// What was stored to the scalars of an element, until all are known.
    stored: Vec<Value>,
    places: &'a Places,
    /// Which values have tangents.
    varied: Vec<bool>,
    asm: Assembler,
    map: Vec<Value>,
    tangents: Vec<Option<Value>>,
    targets: Vec<RegionId>,
    memories: Vec<Option<MemoryId>>,
    params: Option<MemoryId>,
    owner: Map<RegionId, OpId>,
}

pub(super) fn jvp(primal: &Kernel, wrt: &dyn Fn(&str) -> bool) -> Result<Jvp, KernelError> {
    if primal.gradient().is_some() {
        let problem = "it has a gradient of its own, which says nothing about forward mode: differentiate it backwards, or give derivatives to \
                       what it calls with `#[kernel_fn(grad = ..)]`";
        return Err(KernelError::Build { kernel: primal.name.clone(), problem: problem.to_owned() });
    }
    let (flat, parts) = prepared(&*super::as_written(primal)?, false)?;
    let wrt = &|name: &str| wrt(base(name));
    let k = &flat;
    let places = Places::new(k);
    let activity = Activity::new(k, &places, wrt);
    if let Some(op) = activity.through_numbers(k, &places) {
        return Err(refused(k, (op, check::THROUGH_NUMBERS.to_owned())));
    }
    let mut header = parts.header(k);
    header.name = format!("{}_jvp", k.name);
    let numbers = buffer_numbers(k, &parts);
    let mut purposes: Vec<Purpose> =
        numbers[..header.memories().len()].iter().flatten().map(|&n| Purpose::Primal(n)).collect();
    let mut memories = Vec::new();
    for (i, m) in k.memories().iter().enumerate() {
        let id = MemoryId(i as u32);
        if !activity.memory_varies(id) {
            memories.push(None);
            continue;
        }
        if let Some(shared) = parts.shared(id, &memories) {
            memories.push(Some(shared));
            continue;
        }
        let (name, ty) = if parts.has(id) { (base(&m.name), F32) } else { (m.name.as_str(), m.ty) };
        memories.push(Some(declare(&mut header, &format!("t_{name}"), ty, m.space)));
        if let Some(of) = numbers[i] {
            purposes.push(Purpose::Derivative { of, read: m.space == Space::Buffer(Access::Read) });
        }
    }
    let varies = |op: &OpId| matches!(k.kind(*op), OpKind::Param(_)) && activity.varies(k.result(*op));
    let params = places.ops.iter().any(varies).then(|| {
        purposes.push(Purpose::Params);
        declare(&mut header, "t_params", F32, Space::Buffer(Access::Read))
    });
    let mut varied: Vec<bool> = (0..k.value_count()).map(|v| activity.varies(Value(v as u32))).collect();
    for &op in places.ops.iter().filter(|&&op| matches!(k.kind(op), OpKind::For(_))) {
        // What a `for` carries and what it gives are one thing; a `break` may be what makes it vary.
        for (arg, result) in k.region_args(k.regions(op)[0]).skip(1).zip(k.results(op)) {
            let either = varied[arg.index()] || varied[result.index()];
            (varied[arg.index()], varied[result.index()]) = (either, either);
        }
    }
    let mut f = Forward {
        k,
        parts: &parts,
        stored: Vec::new(),
        places: &places,
        varied,
        asm: Assembler::new(header),
        map: vec![Value(u32::MAX); k.value_count()],
        tangents: vec![None; k.value_count()],
        targets: vec![RegionId(u32::MAX); k.region_count()],
        memories,
        params,
        owner: Map::default(),
    };
    f.region(k.body()).map_err(|r| refused(k, r))?;
    let mut kernel = clean(&f.asm.finish())?;
    kernel.follow_sources(false);
    verify(&kernel)?;
    Ok(Jvp { kernel, purposes })
}

impl Forward<'_> {
    fn args(&self, op: OpId) -> Vec<Value> {
        self.k.args(op).iter().map(|v| self.map[v.index()]).collect()
    }

    fn tangent(&mut self, v: Value) -> Value {
        match self.tangents[v.index()] {
            Some(t) => t,
            None => self.asm.zero(self.k.ty(v)),
        }
    }

    /// The values, of those given to these, that take a tangent along.
    fn tangents_for(&mut self, given: &[Value], to: &[Value]) -> Vec<Value> {
        let mut all = Vec::new();
        for (&v, &t) in given.iter().zip(to) {
            if self.varied[t.index()] {
                all.push(self.tangent(v));
            }
        }
        all
    }

    fn types(&self, values: &[Value]) -> Vec<Ty> {
        let varied = values.iter().filter(|v| self.varied[v.index()]);
        values.iter().chain(varied).map(|&v| self.k.ty(v)).collect()
    }

    /// Values, and after them the tangents of those that vary.
    fn bind(&mut self, old: &[Value], new: &[Value]) {
        let mut tangents = new[old.len()..].iter();
        for (&v, &n) in old.iter().zip(new) {
            self.map[v.index()] = n;
            if self.varied[v.index()] {
                self.tangents[v.index()] = tangents.next().copied();
            }
        }
    }

    fn region(&mut self, r: RegionId) -> Result<(), Refusal> {
        let k = self.k;
        k.region_ops(r).iter().try_for_each(|&op| self.op(op))
    }

    fn structure(&mut self, op: OpId) -> Result<(), Refusal> {
        let k = self.k;
        let fixed = match k.kind(op) {
            OpKind::For(_) => 2,
            OpKind::Loop => 0,
            _ => k.args(op).len(),
        };
        let mut args = self.args(op);
        let index = usize::from(fixed == 2);
        let mut regions = Vec::new();
        for &r in k.regions(op) {
            self.owner.insert(r, op);
            let inner: Vec<Value> = k.region_args(r).collect();
            args.extend(self.tangents_for(&k.args(op)[fixed..], inner.get(index..).unwrap_or_default()));
            let new = self.asm.open(&self.types(&inner));
            self.targets[r.index()] = new;
            let given: Vec<Value> = self.asm.kernel.region_args(new).collect();
            self.bind(&inner, &given);
            self.region(r)?;
            regions.push(self.asm.close());
        }
        let results: Vec<Value> = k.results(op).collect();
        let (kind, types) = (self.asm.kind_of(self.k, op, &self.targets), self.types(&results));
        let new = self.asm.push_structure(kind, &args, &types, &regions);
        let given: Vec<Value> = self.asm.kernel.results(new).collect();
        self.bind(&results, &given);
        Ok(())
    }

    fn op(&mut self, op: OpId) -> Result<(), Refusal> {
        let k = self.k;
        let kind = k.kind(op);
        self.asm.stands_for(k, op);
        if kind.is_structure() {
            return self.structure(op);
        }
        let args = self.args(op);
        let given = k.args(op);
        if kind.is_terminator() {
            let to = match kind {
                OpKind::Yield => self.places.owner[self.places.home[op.index()].index()],
                OpKind::Break(r) | OpKind::Continue(r) => self.owner.get(&r).copied(),
                _ => None,
            };
            let targets: Vec<Value> = match (to, kind) {
                (Some(p), OpKind::Continue(r)) => {
                    k.region_args(r).skip(usize::from(matches!(k.kind(p), OpKind::For(_)))).collect()
                }
                (Some(p), _) => k.results(p).collect(),
                _ => Vec::new(),
            };
            let all: Vec<Value> = args.into_iter().chain(self.tangents_for(given, &targets)).collect();
            let kind = self.asm.kind_of(self.k, op, &self.targets);
            self.asm.push(kind, &all, &[]);
            return Ok(());
        }
        match kind {
            OpKind::Load(m) if self.parts.has(m) => {
                if let Some(v) = self.parts.load(&mut self.asm, m, args[0]) {
                    self.map[k.result(op).index()] = v;
                }
                return self.follow(op, kind, &args);
            }
            OpKind::Store(m) if self.parts.has(m) => {
                self.stored.push(args[1]);
                if self.parts.is_last(m) {
                    let scalars = std::mem::take(&mut self.stored);
                    self.parts.store(&mut self.asm, m, args[0], scalars);
                }
                return self.follow(op, kind, &args);
            }
            _ => {}
        }
        let types: Vec<Ty> = k.results(op).map(|v| k.ty(v)).collect();
        let new_kind = self.asm.kind_of(self.k, op, &self.targets);
        let new = self.asm.push(new_kind, &args, &types);
        for (v, n) in k.results(op).zip(self.asm.kernel.results(new)) {
            self.map[v.index()] = n;
        }
        self.follow(op, kind, &args)
    }

    /// The place of an element among tangents, which are as the elements, or f32 for those of composites.
    fn element(&mut self, m: MemoryId, index: Value) -> Value {
        if self.parts.has(m) { self.parts.place(&mut self.asm, self.k, m, index) } else { index }
    }

    /// The tangent of what an op gives, or puts into memory.
    fn follow(&mut self, op: OpId, kind: OpKind, args: &[Value]) -> Result<(), Refusal> {
        let k = self.k;
        let given = k.args(op);
        match kind {
            OpKind::Store(m) => {
                if let Some(to) = self.memories[m.index()] {
                    let (t, at) = (self.tangent(given[1]), self.element(m, args[0]));
                    self.asm.push(OpKind::Store(to), &[at, t], &[]);
                }
                return Ok(());
            }
            OpKind::Atomic(m, f) => {
                let Some(to) = self.memories[m.index()] else { return Ok(()) };
                if !is_f32(k.memory(m).ty) {
                    return Ok(());
                }
                let zero = self.asm.as_const(args[1]) == Some(0);
                if f != Atomic::Add && !(f == Atomic::Exchange && zero) {
                    let problem = format!("{} has no derivative here: use an atomic sum", f.name());
                    return Err((op, problem));
                }
                let t = self.tangent(given[1]);
                let got = self.asm.value(OpKind::Atomic(to, f), &[args[0], t], F32);
                self.tangents[k.result(op).index()] = Some(got);
                return Ok(());
            }
            _ => {}
        }
        if k.results(op).len() == 0 || !self.varied[k.result(op).index()] {
            return Ok(());
        }
        let result = k.result(op);
        let ty = k.ty(result);
        let t = match kind {
            OpKind::Load(m) => {
                let at = self.element(m, args[0]);
                self.memories[m.index()].map(|from| self.asm.value(OpKind::Load(from), &[at], ty))
            }
            OpKind::Param(p) => self.params.map(|from| {
                let at = self.asm.number(p);
                self.asm.value(OpKind::Load(from), &[at], F32)
            }),
            OpKind::Make | OpKind::Extract(_) | OpKind::Insert(_) | OpKind::Convert => {
                let tangents: Vec<Value> = given.iter().map(|&v| self.tangent(v)).collect();
                Some(self.asm.value(kind, &tangents, ty))
            }
            OpKind::Subgroup(f) => Some(self.subgroup(op, f, args)),
            kind => self.by_table(op, kind, args),
        };
        self.tangents[result.index()] = t;
        Ok(())
    }

    fn by_table(&mut self, op: OpId, kind: OpKind, args: &[Value]) -> Option<Value> {
        let k = self.k;
        let (result, ty) = (self.map[k.result(op).index()], k.ty(k.result(op)));
        let mut sum = None;
        for (i, v) in k.args(op).iter().enumerate() {
            let Some(t) = self.tangents[v.index()] else { continue };
            let mut primal = OpWriter { asm: &mut self.asm, args, result, ty };
            let partial = table::partial(&mut primal, kind, i);
            if let Some(more) = partial.times(&mut self.asm, t) {
                sum = Some(match sum {
                    Some(before) => self.asm.plus(before, more),
                    None => more,
                });
            }
        }
        sum
    }

    fn subgroup(&mut self, op: OpId, f: Subgroup, args: &[Value]) -> Value {
        let k = self.k;
        let t = self.tangent(k.args(op)[0]);
        let result = self.map[k.result(op).index()];
        let ty = k.ty(k.result(op));
        if !matches!(f, Subgroup::Min | Subgroup::Max) {
            let all: Vec<Value> = std::iter::once(t).chain(args[1..].iter().copied()).collect();
            return self.asm.value(OpKind::Subgroup(f), &all, ty);
        }
        // The tangent of the first of the lanes that have it.
        let asm = &mut self.asm;
        let has = asm.compare(Compare::Eq, args[0], result);
        let lane = asm.value(OpKind::Builtin(Builtin::SubgroupLane, 0), &[], U32);
        let last = asm.number(u32::MAX);
        let own = asm.select(has, lane, last);
        let first = asm.value(OpKind::Subgroup(Subgroup::Min), &[own], U32);
        let here = asm.compare(Compare::Eq, lane, first);
        let zero = asm.zero(ty);
        let part = asm.select(here, t, zero);
        asm.value(OpKind::Subgroup(Subgroup::Add), &[part], ty)
    }
}
