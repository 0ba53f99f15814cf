//! Arrays and structs as values become their members, and private arrays become variables: after this there are scalars and vectors
//! only, and every change is an assignment, which SSA construction then takes out. Cost: linear in members; an access to a private array at a
//! computed place costs its elements.

use impasto_kernel::ir::{
    Assembler, Compare, Kernel, MemoryId, OpId, OpKind, RegionId, Shape, Space, Ty, Value, VarId,
};

/// Private arrays of more elements stay in memory.
pub(super) const MOST_ELEMENTS: u32 = 64;

struct Flatten<'a> {
    old: &'a Kernel,
    asm: Assembler,
    map: Vec<Vec<Value>>,
    targets: Vec<RegionId>,
    /// The first variable of each private array that has become some, and their number.
    arrays: Vec<Option<(u32, u32)>>,
}

fn leaves(k: &Kernel, ty: Ty, out: &mut Vec<Ty>) {
    match k.shape(ty) {
        Shape::Scalar(_) | Shape::Vector(..) | Shape::Matrix(_) | Shape::Foreign(..) => out.push(ty),
        Shape::Array(t, n) => (0..n).for_each(|_| leaves(k, t, out)),
        Shape::Struct(members) => members.into_iter().for_each(|t| leaves(k, t, out)),
    }
}

/// The kernel on scalars and vectors, with variables for private arrays if `arrays` is set.
pub(super) fn flatten(k: &Kernel, arrays: bool) -> Kernel {
    let mut header = k.header();
    let mut first = Vec::new();
    for m in k.memories() {
        first.push(match m.space {
            Space::Private(n) if arrays && n <= MOST_ELEMENTS => {
                for _ in 0..n {
                    header.add_var(m.ty);
                }
                Some((header.vars().len() as u32 - n, n))
            }
            _ => None,
        });
    }
    let mut f = Flatten {
        old: k,
        asm: Assembler::new(header),
        map: vec![Vec::new(); k.value_count()],
        targets: vec![RegionId(u32::MAX); k.region_count()],
        arrays: first,
    };
    for v in 0..f.asm.kernel.vars().len() {
        let zero = f.asm.zero(f.asm.kernel.vars()[v]);
        f.asm.push(OpKind::Var(VarId(v as u32)), &[zero], &[]);
    }
    f.region(k.body());
    f.asm.finish()
}

impl Flatten<'_> {
    fn types(&self, values: impl Iterator<Item = Value>) -> Vec<Ty> {
        let mut types = Vec::new();
        values.for_each(|v| leaves(self.old, self.old.ty(v), &mut types));
        types
    }

    fn args(&self, op: OpId) -> Vec<Value> {
        self.old.args(op).iter().flat_map(|v| self.map[v.index()].iter().copied()).collect()
    }

    /// Gives new values to old ones, each as many as it has members.
    fn bind(&mut self, old: impl Iterator<Item = Value>, mut new: impl Iterator<Item = Value>) {
        for v in old {
            let n = self.types(std::iter::once(v)).len();
            self.map[v.index()] = new.by_ref().take(n).collect();
        }
    }

    fn region(&mut self, r: RegionId) {
        let old = self.old;
        for &op in old.region_ops(r) {
            self.asm.stands_for(old, op);
            self.op(op);
        }
    }

    fn structure(&mut self, op: OpId) {
        let old = self.old;
        let args = self.args(op);
        let mut regions = Vec::new();
        for &r in old.regions(op) {
            let types = self.types(old.region_args(r));
            let new = self.asm.open(&types);
            self.targets[r.index()] = new;
            self.bind(old.region_args(r), self.asm.kernel.region_args(new));
            self.region(r);
            regions.push(self.asm.close());
        }
        let kind = self.asm.kind_of(self.old, op, &self.targets);
        let types = self.types(old.results(op));
        self.asm.stands_for(old, op);
        let new = self.asm.push_structure(kind, &args, &types, &regions);
        self.bind(old.results(op), self.asm.kernel.results(new));
    }

    /// Where a member stands among the leaves of a composite, and how many it has.
    fn place(&self, ty: Ty, i: u32) -> (usize, usize) {
        let count = |t: Ty| {
            let mut types = Vec::new();
            leaves(self.old, t, &mut types);
            types.len()
        };
        let before = (0..i).filter_map(|j| self.old.member(ty, j)).map(count).sum();
        (before, self.old.member(ty, i).map_or(0, count))
    }

    fn op(&mut self, op: OpId) {
        let old = self.old;
        let kind = old.kind(op);
        if kind.is_structure() {
            return self.structure(op);
        }
        let composite = |v: Value| old.ty(v).lanes().is_none();
        let args = old.args(op);
        let made = match kind {
            OpKind::Load(m) | OpKind::Store(m) if self.arrays[m.index()].is_some() => self.access(op, m, kind),
            OpKind::Make if composite(old.result(op)) => self.args(op),
            OpKind::Extract(i) if composite(args[0]) => {
                let (at, n) = self.place(old.ty(args[0]), i);
                self.map[args[0].index()][at..at + n].to_vec()
            }
            OpKind::Insert(i) if composite(args[0]) => {
                let (at, n) = self.place(old.ty(args[0]), i);
                let mut all = self.map[args[0].index()].clone();
                all[at..at + n].clone_from_slice(&self.map[args[1].index()]);
                all
            }
            OpKind::Select if composite(args[1]) => {
                let c = self.map[args[0].index()][0];
                let pairs: Vec<_> =
                    self.map[args[1].index()].iter().copied().zip(self.map[args[2].index()].clone()).collect();
                pairs.into_iter().map(|(a, b)| self.asm.select(c, a, b)).collect()
            }
            OpKind::Custom if composite(args[0]) => {
                let all = self.map[args[0].index()].clone();
                let stop = |v: Value| self.asm.value(OpKind::Custom, &[v], self.asm.kernel.ty(v));
                all.into_iter().map(stop).collect()
            }
            _ => {
                let (args, kind, types) =
                    (self.args(op), self.asm.kind_of(self.old, op, &self.targets), self.types(old.results(op)));
                let new = self.asm.push(kind, &args, &types);
                self.asm.kernel.results(new).collect()
            }
        };
        for v in old.results(op) {
            self.map[v.index()] = made.clone();
        }
    }

    /// A load or store of an array that is variables now.
    fn access(&mut self, op: OpId, m: MemoryId, kind: OpKind) -> Vec<Value> {
        let (first, n) = self.arrays[m.index()].unwrap_or_default();
        let (args, ty) = (self.args(op), self.old.memory(m).ty);
        let var = |e: u32| VarId(first + e);
        let place = self.asm.as_const(args[0]);
        if let OpKind::Load(_) = kind {
            if let Some(e) = place {
                let e = (e as u32).min(n - 1);
                return vec![self.asm.value(OpKind::Get(var(e)), &[], ty)];
            }
            let mut found = self.asm.value(OpKind::Get(var(0)), &[], ty);
            for e in 1..n {
                let other = self.asm.value(OpKind::Get(var(e)), &[], ty);
                let number = self.asm.number(e);
                let here = self.asm.compare(Compare::Eq, args[0], number);
                found = self.asm.select(here, other, found);
            }
            return vec![found];
        }
        for e in 0..n {
            match place {
                Some(p) if p == u64::from(e) => {
                    self.asm.push(OpKind::Set(var(e)), &[args[1]], &[]);
                }
                Some(_) => {}
                None => {
                    let before = self.asm.value(OpKind::Get(var(e)), &[], ty);
                    let number = self.asm.number(e);
                    let here = self.asm.compare(Compare::Eq, args[0], number);
                    let now = self.asm.select(here, args[1], before);
                    self.asm.push(OpKind::Set(var(e)), &[now], &[]);
                }
            }
        }
        Vec::new()
    }
}
