//! Short forms of what passes and other writers of kernels write most.

use super::{Assembler, BinaryOp, Compare, Kernel, OpId, OpKind, RegionId, Scalar, Shape, Ty, Value};

impl Assembler {
    /// Zero of any type.
    pub fn zero(&mut self, ty: Ty) -> Value {
        if self.kernel.foreign.is_some() {
            return self.value(OpKind::Undef, &[], ty);
        }
        let members: Vec<Ty> = match self.kernel.shape(ty) {
            Shape::Scalar(s) => return self.constant(s, 0),
            Shape::Matrix(m) => {
                let zero = self.constant(m.scalar, 0);
                return self.value(OpKind::MatrixFill, &[zero], ty);
            }
            Shape::Vector(s, n) => vec![Ty::scalar(s); n as usize],
            Shape::Array(t, n) => vec![t; n as usize],
            Shape::Struct(members) => members,
            Shape::Foreign(..) => return self.value(OpKind::Undef, &[], ty),
        };
        let values: Vec<Value> = members.into_iter().map(|t| self.zero(t)).collect();
        self.value(OpKind::Make, &values, ty)
    }

    /// The kind of an op of another kernel here: with constants and cases of this one, and regions as `targets` has them.
    pub fn kind_of(&mut self, from: &Kernel, op: OpId, targets: &[RegionId]) -> OpKind {
        match from.kind(op) {
            OpKind::Const(c) => OpKind::Const(self.const_number(from.const_bits(c))),
            OpKind::Switch(t) => OpKind::Switch(self.case_table(from.switch_cases(t).to_vec())),
            OpKind::Continue(r) => OpKind::Continue(targets[r.index()]),
            OpKind::Break(r) => OpKind::Break(targets[r.index()]),
            kind => kind,
        }
    }

    /// A `u32` constant.
    pub fn number(&mut self, n: u32) -> Value {
        self.constant(Scalar::U32, n.into())
    }

    /// A float in each component.
    pub fn float(&mut self, x: f32, ty: Ty) -> Value {
        let (s, n) = ty.lanes().unwrap_or((Scalar::F32, 1));
        let bits = crate::eval::convert(Scalar::F32, s, x.to_bits().into());
        let one = self.constant(s, bits);
        if n == 1 { one } else { self.value(OpKind::Make, &vec![one; n as usize], ty) }
    }

    /// A binary op of the type of its first operand.
    pub fn binary(&mut self, f: BinaryOp, a: Value, b: Value) -> Value {
        let ty = self.kernel.ty(a);
        self.value(OpKind::Binary(f), &[a, b], ty)
    }

    /// `a + b`.
    pub fn plus(&mut self, a: Value, b: Value) -> Value {
        self.binary(BinaryOp::Add, a, b)
    }

    /// `a * b`.
    pub fn times(&mut self, a: Value, b: Value) -> Value {
        self.binary(BinaryOp::Mul, a, b)
    }

    /// A comparison, component by component.
    pub fn compare(&mut self, c: Compare, a: Value, b: Value) -> Value {
        let ty = self.kernel.ty(a).with_scalar(Scalar::Bool).unwrap_or(Ty::scalar(Scalar::Bool));
        self.value(OpKind::Compare(c), &[a, b], ty)
    }

    /// `if c { a } else { b }`.
    pub fn select(&mut self, c: Value, a: Value, b: Value) -> Value {
        let ty = self.kernel.ty(a);
        self.value(OpKind::Select, &[c, a, b], ty)
    }

    /// One component of a vector, or the scalar itself.
    pub fn component(&mut self, v: Value, i: u32) -> Value {
        match self.kernel.ty(v).lanes() {
            Some((s, n)) if n > 1 => self.value(OpKind::Extract(i), &[v], Ty::scalar(s)),
            _ => v,
        }
    }

    /// A vector of components, or the one scalar.
    pub fn whole(&mut self, components: &[Value], ty: Ty) -> Value {
        match components {
            [one] => *one,
            _ => self.value(OpKind::Make, components, ty),
        }
    }

    /// A region that only gives these values.
    pub fn yielding(&mut self, values: &[Value]) -> RegionId {
        self.open(&[]);
        self.push(OpKind::Yield, values, &[]);
        self.close()
    }

    /// `if c { then() }`
    pub fn when(&mut self, c: Value, then: impl FnOnce(&mut Assembler)) {
        self.open(&[]);
        then(self);
        self.push(OpKind::Yield, &[], &[]);
        let regions = [self.close(), self.yielding(&[])];
        self.push_structure(OpKind::If, &[c], &[], &regions);
    }
}
