//! Ops without regions as instructions. What the op table defines and SPIR-V leaves undefined is guarded here.

use rspirv::spirv::{self, Op as S};

use super::control::Emit;
use impasto_kernel::ir::{
    Atomic, BinaryOp, Compare, MemoryId, OpId, OpKind, Scalar, Shape, Space, Subgroup, Ty, UnaryOp, Value,
};

/// The instruction of a comparison.
pub(super) fn compare(c: Compare, s: Scalar) -> S {
    let pick = |float: S, signed: S, unsigned: S| match s {
        _ if s.is_float() => float,
        _ if s.is_signed() => signed,
        _ => unsigned,
    };
    match c {
        Compare::Eq if s == Scalar::Bool => S::LogicalEqual,
        Compare::Ne if s == Scalar::Bool => S::LogicalNotEqual,
        Compare::Eq => pick(S::FOrdEqual, S::IEqual, S::IEqual),
        Compare::Ne => pick(S::FUnordNotEqual, S::INotEqual, S::INotEqual),
        Compare::Lt => pick(S::FOrdLessThan, S::SLessThan, S::ULessThan),
        Compare::Le => pick(S::FOrdLessThanEqual, S::SLessThanEqual, S::ULessThanEqual),
        Compare::Gt => pick(S::FOrdGreaterThan, S::SGreaterThan, S::UGreaterThan),
        Compare::Ge => pick(S::FOrdGreaterThanEqual, S::SGreaterThanEqual, S::UGreaterThanEqual),
    }
}

fn scalar_of(ty: Ty) -> Scalar {
    ty.lanes().map_or(Scalar::U32, |l| l.0)
}

impl Emit<'_> {
    /// An instruction with a result.
    pub(super) fn make(&mut self, by: &'static str, op: S, ty: Ty, operands: &[u32]) -> u32 {
        let (t, id) = (self.w.ty(self.k, ty), self.w.id(by));
        self.w.push_parts(op, &[&[t, id], operands]);
        id
    }

    /// An instruction of float arithmetic. It is exact to the source: a driver must not fuse it with another.
    pub(super) fn exact(&mut self, by: &'static str, op: S, ty: Ty, operands: &[u32]) -> u32 {
        let id = self.make(by, op, ty, operands);
        self.w.decorate(id, &[spirv::Decoration::NoContraction as u32]);
        id
    }

    /// A function of the set GLSL.std.450.
    fn glsl(&mut self, by: &'static str, number: spirv::GlslStd450Op, ty: Ty, operands: &[u32]) -> u32 {
        let set = match self.w.glsl {
            Some(id) => id,
            None => {
                let id = self.w.id("interface");
                *self.w.glsl.insert(id)
            }
        };
        self.make(by, S::ExtInst, ty, &[&[set, number as u32][..], operands].concat())
    }

    fn bools(ty: Ty) -> Ty {
        ty.with_scalar(Scalar::Bool).unwrap_or(Ty::scalar(Scalar::Bool))
    }

    fn pick(&mut self, by: &'static str, ty: Ty, c: u32, a: u32, b: u32) -> u32 {
        self.make(by, S::Select, ty, &[c, a, b])
    }

    /// An op without regions.
    pub(super) fn plain(&mut self, op: OpId) {
        // The list is kept: there are many ops.
        let mut args = std::mem::take(&mut self.operands);
        args.clear();
        args.extend(self.k.args(op).iter().map(|&v| self.value(v)));
        self.write(op, &args);
        self.operands = args;
    }

    fn write(&mut self, op: OpId, args: &[u32]) {
        let k = self.k;
        let kind = k.kind(op);
        let by = kind.name();
        let arg_ty = |i: usize| k.ty(k.args(op)[i]);
        let ty = if k.results(op).len() > 0 { k.ty(k.result(op)) } else { Ty::scalar(Scalar::U32) };
        let id = match kind {
            _ if self.foreign.is_some() => self.foreign(op, args, ty),
            OpKind::Const(c) => {
                self.constants[k.result(op).index()] = Some(k.const_bits(c));
                self.w.constant(scalar_of(ty), k.const_bits(c))
            }
            OpKind::Param(p) => self.param(by, p),
            OpKind::Builtin(b, axis) if b.has_axes() => {
                self.make(by, S::CompositeExtract, ty, &[self.inputs[b as usize], axis.into()])
            }
            OpKind::Builtin(b, _) => self.inputs[b as usize],
            kind if kind.is_matrix() => self.matrix_op(op, by, ty, args),
            OpKind::Binary(_) | OpKind::Convert if k.matrix(ty).is_some() => self.matrix_op(op, by, ty, args),
            OpKind::Unary(f) => self.unary(by, f, ty, args[0]),
            OpKind::Binary(f) => {
                let divisor = self.constant_of(k.args(op)[1]);
                self.binary(by, f, ty, args[0], args[1], divisor)
            }
            OpKind::Compare(c) => self.make(by, compare(c, scalar_of(arg_ty(0))), ty, args),
            OpKind::Fma => self.glsl(by, spirv::GlslStd450Op::Fma, ty, args),
            OpKind::Select => self.select(by, ty, arg_ty(0), args[0], args[1], args[2]),
            OpKind::Convert => self.convert(by, arg_ty(0), ty, args[0]),
            OpKind::Bitcast => self.bitcast(by, arg_ty(0), ty, args[0]),
            OpKind::Custom => args[0],
            OpKind::Make => self.make(by, S::CompositeConstruct, ty, args),
            OpKind::Extract(i) => self.make(by, S::CompositeExtract, ty, &[args[0], i]),
            OpKind::Insert(i) => self.make(by, S::CompositeInsert, ty, &[args[1], args[0], i]),
            OpKind::Load(m) => self.load(by, m, args[0]),
            OpKind::Store(m) => {
                self.store(by, m, args[0], args[1]);
                0
            }
            OpKind::Atomic(m, f) => self.atomic(by, m, f, args),
            OpKind::Len(m) => {
                let variable = self.variable(m);
                self.make(by, S::ArrayLength, ty, &[variable, 0])
            }
            OpKind::Barrier => {
                self.barrier(spirv::Scope::Workgroup);
                0
            }
            OpKind::SubgroupBarrier => {
                self.barrier(spirv::Scope::Subgroup);
                0
            }
            OpKind::Subgroup(f) => self.subgroup(by, f, ty, args),
            OpKind::Get(v) => self.make(by, S::Load, ty, &[self.vars[v.index()]]),
            OpKind::Var(v) | OpKind::Set(v) => {
                self.w.push(S::Store, &[self.vars[v.index()], args[0]]);
                0
            }
            _ => 0,
        };
        if k.results(op).len() > 0 {
            self.ids[k.result(op).index()] = id;
        }
    }

    /// The bits of a value that is a constant.
    fn constant_of(&self, v: Value) -> Option<u64> {
        self.constants[v.index()]
    }

    /// One scalar parameter. They are a block, of which only bf16 is narrower than its values.
    fn param(&mut self, by: &'static str, p: u32) -> u32 {
        let s = self.k.params()[p as usize].ty;
        let (block, member) = (self.w.params(self.k), self.w.constant(Scalar::U32, p.into()));
        let laid = if s == Scalar::Bf16 { self.w.short() } else { self.w.scalar(s) };
        let pointer = self.w.pointer(spirv::StorageClass::PushConstant, laid);
        let (at, id) = (self.w.id(by), self.w.id(by));
        self.w.push(S::AccessChain, &[pointer, at, block, member]);
        self.w.push(S::Load, &[laid, id, at]);
        if s == Scalar::Bf16 { self.make(by, S::UConvert, Ty::scalar(s), &[id]) } else { id }
    }

    /// The same bits. Those of bf16 are the lower half of its values.
    fn bitcast(&mut self, by: &'static str, from: Ty, to: Ty, a: u32) -> u32 {
        let n = to.lanes().map_or(1, |l| l.1);
        let short = |e: &mut Self| {
            let of = e.w.short();
            if n == 1 { of } else { e.w.vector(of, n) }
        };
        match (scalar_of(from), scalar_of(to)) {
            (f, t) if f == t => a,
            (Scalar::Bf16, _) => {
                let (t, id) = (short(self), self.w.id(by));
                self.w.push(S::UConvert, &[t, id, a]);
                self.make(by, S::Bitcast, to, &[id])
            }
            (_, Scalar::Bf16) => {
                let (t, id) = (short(self), self.w.id(by));
                self.w.push(S::Bitcast, &[t, id, a]);
                self.make(by, S::UConvert, to, &[id])
            }
            _ => self.make(by, S::Bitcast, to, &[a]),
        }
    }

    fn unary(&mut self, by: &'static str, f: UnaryOp, ty: Ty, a: u32) -> u32 {
        use spirv::GlslStd450Op as G;
        let s = scalar_of(ty);
        let glsl = match f {
            UnaryOp::Neg => return self.make(by, if s.is_float() { S::FNegate } else { S::SNegate }, ty, &[a]),
            UnaryOp::Not => return self.make(by, if s == Scalar::Bool { S::LogicalNot } else { S::Not }, ty, &[a]),
            UnaryOp::CountOnes => return self.make(by, S::BitCount, ty, &[a]),
            UnaryOp::ReverseBits => return self.make(by, S::BitReverse, ty, &[a]),
            UnaryOp::Abs if !s.is_float() => {
                let zero = self.w.splat(ty, 0);
                let below = self.make(by, S::SLessThan, Self::bools(ty), &[a, zero]);
                let other = self.make(by, S::SNegate, ty, &[a]);
                return self.pick(by, ty, below, other, a);
            }
            UnaryOp::Abs => G::FAbs,
            UnaryOp::Floor => G::Floor,
            UnaryOp::Ceil => G::Ceil,
            UnaryOp::Trunc => G::Trunc,
            UnaryOp::RoundEven => G::RoundEven,
            UnaryOp::Sqrt => G::Sqrt,
            UnaryOp::InverseSqrt => G::InverseSqrt,
            UnaryOp::Exp => G::Exp,
            UnaryOp::Exp2 => G::Exp2,
            UnaryOp::Log => G::Log,
            UnaryOp::Sin => G::Sin,
            UnaryOp::Cos => G::Cos,
            UnaryOp::Tanh => G::Tanh,
        };
        self.glsl(by, glsl, ty, &[a])
    }

    fn binary(&mut self, by: &'static str, f: BinaryOp, ty: Ty, a: u32, b: u32, constant: Option<u64>) -> u32 {
        let s = scalar_of(ty);
        let bits = u64::from(s.bits());
        let simple = match f {
            BinaryOp::Add | BinaryOp::Sub | BinaryOp::Mul if s.is_float() => {
                let op = match f {
                    BinaryOp::Add => S::FAdd,
                    BinaryOp::Sub => S::FSub,
                    _ => S::FMul,
                };
                return self.exact(by, op, ty, &[a, b]);
            }
            BinaryOp::Add => S::IAdd,
            BinaryOp::Sub => S::ISub,
            BinaryOp::Mul => S::IMul,
            BinaryOp::Div if s.is_float() => S::FDiv,
            BinaryOp::Div | BinaryOp::Rem => return self.divide(by, f, ty, a, b, constant),
            BinaryOp::Min | BinaryOp::Max => {
                let (x, y) = if f == BinaryOp::Min { (b, a) } else { (a, b) };
                let less = self.make(by, compare(Compare::Lt, s), Self::bools(ty), &[x, y]);
                return self.pick(by, ty, less, b, a);
            }
            BinaryOp::And if s == Scalar::Bool => S::LogicalAnd,
            BinaryOp::Or if s == Scalar::Bool => S::LogicalOr,
            BinaryOp::Xor if s == Scalar::Bool => S::LogicalNotEqual,
            BinaryOp::And => S::BitwiseAnd,
            BinaryOp::Or => S::BitwiseOr,
            BinaryOp::Xor => S::BitwiseXor,
            BinaryOp::Shl | BinaryOp::Shr => {
                let amount = if constant.is_some_and(|c| c < bits) {
                    b
                } else {
                    let mask = self.w.splat(ty, bits - 1);
                    self.make(by, S::BitwiseAnd, ty, &[b, mask])
                };
                let op = match f {
                    BinaryOp::Shl => S::ShiftLeftLogical,
                    _ if s.is_signed() => S::ShiftRightArithmetic,
                    _ => S::ShiftRightLogical,
                };
                return self.make(by, op, ty, &[a, amount]);
            }
            BinaryOp::Pow => return self.glsl(by, spirv::GlslStd450Op::Pow, ty, &[a, b]),
        };
        self.make(by, simple, ty, &[a, b])
    }

    /// Division with the divisor replaced by 1 where SPIR-V has no result. The rest of signed numbers is made from the quotient:
    /// the instruction for it is undefined in Vulkan for negative operands.
    fn divide(&mut self, by: &'static str, f: BinaryOp, ty: Ty, a: u32, b: u32, constant: Option<u64>) -> u32 {
        let s = scalar_of(ty);
        let bools = Self::bools(ty);
        let safe = constant.is_some_and(|c| c != 0 && !(s.is_signed() && c == s.mask()));
        let mut divisor = b;
        if !safe {
            let (zero, one) = (self.w.splat(ty, 0), self.w.splat(ty, 1));
            let mut wrong = self.make(by, S::IEqual, bools, &[b, zero]);
            if s.is_signed() {
                let (least, minus) = (self.w.splat(ty, 1 << (s.bits() - 1)), self.w.splat(ty, s.mask()));
                let x = self.make(by, S::IEqual, bools, &[a, least]);
                let y = self.make(by, S::IEqual, bools, &[b, minus]);
                let both = self.make(by, S::LogicalAnd, bools, &[x, y]);
                wrong = self.make(by, S::LogicalOr, bools, &[wrong, both]);
            }
            divisor = self.pick(by, ty, wrong, one, b);
        }
        match (f, s.is_signed()) {
            (BinaryOp::Div, true) => self.make(by, S::SDiv, ty, &[a, divisor]),
            (BinaryOp::Div, false) => self.make(by, S::UDiv, ty, &[a, divisor]),
            (_, false) => self.make(by, S::UMod, ty, &[a, divisor]),
            (_, true) => {
                let quotient = self.make(by, S::SDiv, ty, &[a, divisor]);
                let product = self.make(by, S::IMul, ty, &[quotient, divisor]);
                self.make(by, S::ISub, ty, &[a, product])
            }
        }
    }

    /// Before version 1.4 a select works on scalars, and on vectors with one condition for each component.
    fn select(&mut self, by: &'static str, ty: Ty, c_ty: Ty, c: u32, a: u32, b: u32) -> u32 {
        match self.k.shape(ty) {
            Shape::Scalar(_) => self.pick(by, ty, c, a, b),
            Shape::Vector(_, n) => {
                let bools = Self::bools(ty);
                let c =
                    if c_ty == bools { c } else { self.make(by, S::CompositeConstruct, bools, &vec![c; n as usize]) };
                self.pick(by, ty, c, a, b)
            }
            shape => {
                let members: Vec<Ty> = match shape {
                    Shape::Array(t, n) => vec![t; n as usize],
                    Shape::Struct(members) => members,
                    _ => Vec::new(),
                };
                let mut parts = Vec::new();
                for (i, t) in members.into_iter().enumerate() {
                    let x = self.make(by, S::CompositeExtract, t, &[a, i as u32]);
                    let y = self.make(by, S::CompositeExtract, t, &[b, i as u32]);
                    parts.push(self.select(by, t, c_ty, c, x, y));
                }
                self.make(by, S::CompositeConstruct, ty, &parts)
            }
        }
    }

    fn convert(&mut self, by: &'static str, from: Ty, to: Ty, a: u32) -> u32 {
        let (f, t) = (scalar_of(from), scalar_of(to));
        let with = |s: Scalar| to.with_scalar(s).unwrap_or(Ty::scalar(s));
        match (f, t) {
            _ if f == t => a,
            (Scalar::Bool, _) => {
                let one = impasto_kernel::eval::convert(Scalar::U32, t, 1);
                let (one, zero) = (self.w.splat(to, one), self.w.splat(to, 0));
                self.pick(by, to, a, one, zero)
            }
            (Scalar::Bf16, _) => {
                // The bits of a bf16 are the upper half of those of the f32.
                let half = self.w.splat(with(Scalar::U32), 16);
                let bits = self.make(by, S::ShiftLeftLogical, with(Scalar::U32), &[a, half]);
                self.make(by, S::Bitcast, to, &[bits])
            }
            (_, Scalar::Bf16) => self.narrow(by, to, a),
            _ if f.is_float() && t.is_float() => self.make(by, S::FConvert, to, &[a]),
            (Scalar::F16, _) => {
                let wide = self.make(by, S::FConvert, with(Scalar::F32), &[a]);
                self.saturate(by, to, wide)
            }
            (Scalar::F32, _) => self.saturate(by, to, a),
            _ if t.is_float() => self.make(by, if f.is_signed() { S::ConvertSToF } else { S::ConvertUToF }, to, &[a]),
            _ if f.bits() == t.bits() => self.make(by, S::Bitcast, to, &[a]),
            _ if f.is_signed() => self.make(by, S::SConvert, to, &[a]),
            _ => {
                // From unsigned to unsigned of the other size, and then to its bits.
                let unsigned = with(if t.bits() == 64 { Scalar::U64 } else { Scalar::U32 });
                let id = self.make(by, S::UConvert, unsigned, &[a]);
                if t.is_signed() { self.make(by, S::Bitcast, to, &[id]) } else { id }
            }
        }
    }

    /// Rounds to the nearest, ties to even; NaN stays NaN.
    fn narrow(&mut self, by: &'static str, to: Ty, a: u32) -> u32 {
        let word = to.with_scalar(Scalar::U32).unwrap_or(Ty::scalar(Scalar::U32));
        let bools = Self::bools(to);
        let c = |e: &mut Self, x: u64| e.w.splat(word, x);
        let bits = self.make(by, S::Bitcast, word, &[a]);
        let sixteen = c(self, 16);
        let upper = self.make(by, S::ShiftRightLogical, word, &[bits, sixteen]);
        let one = c(self, 1);
        let odd = self.make(by, S::BitwiseAnd, word, &[upper, one]);
        let half = c(self, 0x7FFF);
        let sum = self.make(by, S::IAdd, word, &[bits, half]);
        let sum = self.make(by, S::IAdd, word, &[sum, odd]);
        let rounded = self.make(by, S::ShiftRightLogical, word, &[sum, sixteen]);
        let (rest, infinite, quiet) = (c(self, 0x7FFF_FFFF), c(self, 0x7F80_0000), c(self, 0x40));
        let size = self.make(by, S::BitwiseAnd, word, &[bits, rest]);
        let nan = self.make(by, S::UGreaterThan, bools, &[size, infinite]);
        let kept = self.make(by, S::BitwiseOr, word, &[upper, quiet]);
        self.pick(by, word, nan, kept, rounded)
    }

    /// f32 to an integer: saturates, and NaN gives 0.
    fn saturate(&mut self, by: &'static str, to: Ty, a: u32) -> u32 {
        let t = scalar_of(to);
        let float = to.with_scalar(Scalar::F32).unwrap_or(Ty::scalar(Scalar::F32));
        let bools = Self::bools(to);
        let f = |x: f64| u64::from((x as f32).to_bits());
        let power = f64::from(t.bits() - u32::from(t.is_signed())).exp2();
        let op = if t.is_signed() { S::ConvertFToS } else { S::ConvertFToU };
        let id = self.make(by, op, to, &[a]);
        let top = self.w.splat(float, f(power));
        let most = self.w.splat(to, t.mask() >> u32::from(t.is_signed()));
        let above = self.make(by, S::FOrdGreaterThanEqual, bools, &[a, top]);
        let id = self.pick(by, to, above, most, id);
        let zero = self.w.splat(to, 0);
        if !t.is_signed() {
            // Not above zero: negative, zero or NaN.
            let zero_float = self.w.splat(float, 0);
            let some = self.make(by, S::FOrdGreaterThan, bools, &[a, zero_float]);
            return self.pick(by, to, some, id, zero);
        }
        let bottom = self.w.splat(float, f(-power));
        let least = self.w.splat(to, 1 << (t.bits() - 1));
        let below = self.make(by, S::FOrdLessThan, bools, &[a, bottom]);
        let id = self.pick(by, to, below, least, id);
        let nan = self.make(by, S::FUnordNotEqual, bools, &[a, a]);
        self.pick(by, to, nan, zero, id)
    }

    fn atomic(&mut self, by: &'static str, m: MemoryId, f: Atomic, args: &[u32]) -> u32 {
        let ty = self.k.memory(m).ty;
        let signed = scalar_of(ty).is_signed();
        let at = self.element(by, m, args[0]);
        // No order beyond the element. The scope of the device needs a capability of its own under the Vulkan memory model.
        let scope = match self.k.memory(m).space {
            Space::Workgroup(_) => spirv::Scope::Workgroup,
            _ if self.w.vulkan_model => spirv::Scope::QueueFamily,
            _ => spirv::Scope::Device,
        };
        let (scope, relaxed) = (self.w.constant(Scalar::U32, scope as u64), self.w.constant(Scalar::U32, 0));
        let op = match f {
            Atomic::Add => S::AtomicIAdd,
            Atomic::Min if signed => S::AtomicSMin,
            Atomic::Min => S::AtomicUMin,
            Atomic::Max if signed => S::AtomicSMax,
            Atomic::Max => S::AtomicUMax,
            Atomic::And => S::AtomicAnd,
            Atomic::Or => S::AtomicOr,
            Atomic::Xor => S::AtomicXor,
            Atomic::Exchange => S::AtomicExchange,
            Atomic::CompareExchange => {
                return self.make(by, S::AtomicCompareExchange, ty, &[at, scope, relaxed, relaxed, args[2], args[1]]);
            }
        };
        self.make(by, op, ty, &[at, scope, relaxed, args[1]])
    }

    fn subgroup(&mut self, by: &'static str, f: Subgroup, ty: Ty, args: &[u32]) -> u32 {
        let s = scalar_of(ty);
        let pick = |float: S, signed: S, unsigned: S| match s {
            _ if s.is_float() => float,
            _ if s.is_signed() => signed,
            _ => unsigned,
        };
        let (reduce, exclusive) = (spirv::GroupOperation::Reduce as u32, spirv::GroupOperation::ExclusiveScan as u32);
        let (op, group) = match f {
            Subgroup::Add => {
                (pick(S::GroupNonUniformFAdd, S::GroupNonUniformIAdd, S::GroupNonUniformIAdd), Some(reduce))
            }
            Subgroup::ExclusiveAdd => {
                (pick(S::GroupNonUniformFAdd, S::GroupNonUniformIAdd, S::GroupNonUniformIAdd), Some(exclusive))
            }
            Subgroup::Min => {
                (pick(S::GroupNonUniformFMin, S::GroupNonUniformSMin, S::GroupNonUniformUMin), Some(reduce))
            }
            Subgroup::Max => {
                (pick(S::GroupNonUniformFMax, S::GroupNonUniformSMax, S::GroupNonUniformUMax), Some(reduce))
            }
            Subgroup::BroadcastFirst => (S::GroupNonUniformBroadcastFirst, None),
            Subgroup::ShuffleXor => (S::GroupNonUniformShuffleXor, None),
            Subgroup::All => (S::GroupNonUniformAll, None),
            Subgroup::Any => (S::GroupNonUniformAny, None),
        };
        let scope = self.w.constant(Scalar::U32, 3);
        let operands: Vec<u32> = std::iter::once(scope).chain(group).chain(args.iter().copied()).collect();
        self.make(by, op, ty, &operands)
    }
}
