//! Ops without regions: which instructions each becomes, scalar by scalar.

use impasto_kernel::Builtin;
use impasto_kernel::ir::{OpId, OpKind, Scalar, Ty, Value};

use super::Emit;
use super::text::{Class, Operand, imm, show};

impl Emit<'_> {
    /// An op without regions.
    pub(super) fn plain(&mut self, op: OpId) {
        let k = self.k;
        let kind = k.kind(op);
        let args = k.args(op);
        let is_matrix = |v: Value| k.matrix(k.ty(v)).is_some();
        let made = match kind {
            kind if kind.is_matrix() => self.matrix_op(op),
            OpKind::Binary(_) | OpKind::Convert if is_matrix(args[0]) => self.matrix_op(op),
            OpKind::Const(c) => {
                let class = Class::of(k.ty(k.result(op)).as_scalar().unwrap_or(Scalar::U32));
                vec![Operand::Imm(class, k.const_bits(c))]
            }
            OpKind::Param(p) => vec![self.param(p)],
            OpKind::Builtin(b, axis) => vec![self.builtin(b, axis)],
            OpKind::Custom => self.value(args[0]).to_vec(),
            OpKind::Make => self.all_of(args),
            OpKind::Extract(i) => {
                let (at, n) = self.member(k.ty(args[0]), i);
                self.value(args[0])[at..at + n].to_vec()
            }
            OpKind::Insert(i) => {
                let (at, n) = self.member(k.ty(args[0]), i);
                let mut whole = self.value(args[0]).to_vec();
                whole[at..at + n].copy_from_slice(self.value(args[1]));
                whole
            }
            OpKind::Pack(half) => {
                let two = [args[1], args[0]].map(|v| self.scalar(v));
                let two = two.map(|o| self.t.in_reg(o));
                let op = if half == Scalar::F16 { "cvt.rn.f16x2.f32" } else { "cvt.rn.bf16x2.f32" };
                vec![self.t.make(Class::B32, op, &two)]
            }
            OpKind::Load(m) => self.load(m, args[0]),
            OpKind::Store(m) => {
                self.store(m, args[0], args[1]);
                Vec::new()
            }
            OpKind::Atomic(m, f) => vec![self.atomic(m, f, args)],
            OpKind::Len(m) => vec![self.len(m)],
            OpKind::AsyncCopy(..)
            | OpKind::AsyncCommit
            | OpKind::AsyncWait(_)
            | OpKind::WarpgroupMulAdd(_)
            | OpKind::WarpgroupWait(_) => {
                self.asynchronous(op);
                Vec::new()
            }
            OpKind::Barrier => {
                self.fence_tiles();
                self.t.line(format_args!("bar.sync 0"));
                Vec::new()
            }
            // Only whole subgroups come here.
            OpKind::SubgroupBarrier => {
                self.t.line(format_args!("bar.warp.sync -1"));
                Vec::new()
            }
            OpKind::Subgroup(f) => vec![self.subgroup(f, args)],
            OpKind::Var(v) | OpKind::Set(v) => {
                let (to, from) = (self.vars[v.index()].clone(), self.value(args[0]).to_vec());
                self.t.mov_all(&to, &from);
                Vec::new()
            }
            OpKind::Get(v) => {
                let from = self.vars[v.index()].clone();
                let to: Vec<Operand> = from.iter().map(|o| self.t.reg(o.class())).collect();
                self.t.mov_all(&to, &from);
                to
            }
            _ => self.elementwise(op, kind),
        };
        if k.results(op).len() > 0 {
            self.values[k.result(op).index()] = made;
        }
    }

    /// Where a member of a composite begins among its scalars, and how many it has.
    fn member(&self, ty: Ty, i: u32) -> (usize, usize) {
        let k = self.k;
        let count = |j: u32| k.member(ty, j).map_or(0, |t| k.scalars(t) as usize);
        ((0..i).map(count).sum(), count(i))
    }

    /// An op that computes each scalar of its result from those of its operands.
    fn elementwise(&mut self, op: OpId, kind: OpKind) -> Vec<Operand> {
        let k = self.k;
        let args = k.args(op);
        let scalar = |v: Value| k.scalar_of(k.ty(v)).unwrap_or(Scalar::U32);
        let (from, to) = (scalar(args[0]), scalar(k.result(op)));
        if kind == OpKind::Select {
            let (c, a, b) = (self.value(args[0]).to_vec(), self.value(args[1]).to_vec(), self.value(args[2]).to_vec());
            let condition = |i: usize| if c.len() == 1 { c[0] } else { c[i] };
            return (0..a.len()).map(|i| self.select(condition(i), a[i], b[i])).collect();
        }
        let n = self.value(args[0]).len();
        let mut made = Vec::with_capacity(n);
        for i in 0..n {
            let x: [Operand; 3] = std::array::from_fn(|a| match args.get(a) {
                Some(&v) => self.value(v)[i],
                None => imm(0),
            });
            made.push(match kind {
                OpKind::Unary(f) => self.unary(f, from, x[0]),
                OpKind::Binary(f) => self.binary(f, from, x[0], x[1]),
                OpKind::Compare(c) => self.compare(c, from, x[0], x[1]),
                OpKind::Fma => self.fma(from, x),
                OpKind::Convert => self.convert(from, to, x[0]),
                _ => x[0],
            });
        }
        made
    }

    fn special(&mut self, name: &str, axis: u8) -> Operand {
        let d = self.t.reg(Class::B32);
        let axis = ["x", "y", "z"][usize::from(axis).min(2)];
        self.t.line(format_args!("mov.u32 {}, %{name}.{axis}", show(d)));
        d
    }

    fn builtin(&mut self, b: Builtin, axis: u8) -> Operand {
        let size = self.k.workgroup[usize::from(axis).min(2)];
        match b {
            Builtin::LocalId => self.special("tid", axis),
            Builtin::WorkgroupId => self.special("ctaid", axis),
            Builtin::NumWorkgroups => self.special("nctaid", axis),
            Builtin::GlobalId => {
                let (local, group) = (self.special("tid", axis), self.special("ctaid", axis));
                self.t.make(Class::B32, "mad.lo.u32", &[group, imm(size), local])
            }
            Builtin::LocalIndex => self.local_index(),
            Builtin::SubgroupSize => imm(32),
            Builtin::SubgroupLane => self.lane(),
            Builtin::SubgroupId => {
                let index = self.local_index();
                self.t.make(Class::B32, "shr.u32", &[index, imm(5)])
            }
        }
    }

    fn local_index(&mut self) -> Operand {
        let [x, y, z] = self.k.workgroup;
        let mut index = self.special("tid", 0);
        if y > 1 {
            let row = self.special("tid", 1);
            index = self.t.make(Class::B32, "mad.lo.u32", &[row, imm(x), index]);
        }
        if z > 1 {
            let plane = self.special("tid", 2);
            index = self.t.make(Class::B32, "mad.lo.u32", &[plane, imm(x * y), index]);
        }
        index
    }

    /// The place within the subgroup: warps are made of invocations in the order of their local index.
    pub(super) fn lane(&mut self) -> Operand {
        let index = self.local_index();
        self.t.make(Class::B32, "and.b32", &[index, imm(31)])
    }
}
