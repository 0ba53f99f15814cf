//! Arithmetic on scalars. What the op table defines and PTX leaves open is guarded here. Rounding is always named, since `add.rn` is not contracted
//! and `add` may be; nothing is flushed to zero.

use impasto_kernel::{BinaryOp, Compare, Scalar, UnaryOp};

use super::Emit;
use super::text::{Class, Operand, imm};

const LOG2_E: Operand = Operand::Imm(Class::B32, 0x3FB8_AA3B);
const LN_2: Operand = Operand::Imm(Class::B32, 0x3F31_7218);
const ONE: Operand = Operand::Imm(Class::B32, 0x3F80_0000);
/// One over a turn, and minus a turn in two parts.
const TURN: [Operand; 3] = [
    Operand::Imm(Class::B32, 0x3E22_F983),
    Operand::Imm(Class::B32, 0xC0C9_0FDB),
    Operand::Imm(Class::B32, 0x343B_BD2E),
];

/// The type of an instruction that cares for signs.
fn typed(s: Scalar) -> &'static str {
    match s {
        Scalar::Bool => "pred",
        Scalar::I32 => "s32",
        Scalar::U32 => "u32",
        Scalar::I64 => "s64",
        Scalar::U64 => "u64",
        Scalar::F16 => "f16",
        Scalar::Bf16 => "b16",
        Scalar::F32 => "f32",
    }
}

impl Emit<'_> {
    /// Operands as an instruction of this type takes them: there are numbers of 32 and 64 bits only.
    fn taken<const N: usize>(&mut self, x: [Operand; N]) -> [Operand; N] {
        x.map(|o| match o.class() {
            Class::Pred | Class::B16 => self.t.in_reg(o),
            Class::B32 | Class::B64 => o,
        })
    }

    /// An instruction on scalars of one type.
    fn same<const N: usize>(&mut self, op: &str, s: Scalar, x: [Operand; N]) -> Operand {
        let x = self.taken(x);
        self.t.make(Class::of(s), op, &x)
    }

    pub(super) fn select(&mut self, c: Operand, a: Operand, b: Operand) -> Operand {
        if let Some(bits) = c.constant() {
            return if bits != 0 { a } else { b };
        }
        match a.class() {
            // There is no select of predicates.
            Class::Pred => {
                let [a, b] = self.taken([a, b]);
                let yes = self.t.make(Class::Pred, "and.pred", &[c, a]);
                let not = self.t.make(Class::Pred, "not.pred", &[c]);
                let no = self.t.make(Class::Pred, "and.pred", &[not, b]);
                self.t.make(Class::Pred, "or.pred", &[yes, no])
            }
            class => {
                let [a, b] = self.taken([a, b]);
                self.t.make(class, ["", "selp.b16", "selp.b32", "selp.b64"][class as usize], &[a, b, c])
            }
        }
    }

    pub(super) fn compare(&mut self, c: Compare, s: Scalar, a: Operand, b: Operand) -> Operand {
        let [a, b] = self.taken([a, b]);
        if s == Scalar::Bool {
            let differ = self.t.make(Class::Pred, "xor.pred", &[a, b]);
            return if c == Compare::Ne { differ } else { self.t.make(Class::Pred, "not.pred", &[differ]) };
        }
        let name = match c {
            Compare::Eq => "eq",
            // With a NaN this is true.
            Compare::Ne if s.is_float() => "neu",
            Compare::Ne => "ne",
            Compare::Lt => "lt",
            Compare::Le => "le",
            Compare::Gt => "gt",
            Compare::Ge => "ge",
        };
        self.t.make(Class::Pred, &format!("setp.{name}.{}", typed(s)), &[a, b])
    }

    pub(super) fn fma(&mut self, s: Scalar, x: [Operand; 3]) -> Operand {
        self.same(if s == Scalar::F16 { "fma.rn.f16" } else { "fma.rn.f32" }, s, x)
    }

    pub(super) fn unary(&mut self, f: UnaryOp, s: Scalar, a: Operand) -> Operand {
        let a = self.t.in_reg(a);
        let ty = typed(s);
        match f {
            // Signs of integers.
            UnaryOp::Neg | UnaryOp::Abs if s.is_int() => {
                let name = if f == UnaryOp::Neg { "neg" } else { "abs" };
                self.same(&format!("{name}.s{}", s.bits()), s, [a])
            }
            UnaryOp::Neg => self.same(&format!("neg.{ty}"), s, [a]),
            UnaryOp::Abs => self.same(&format!("abs.{ty}"), s, [a]),
            UnaryOp::Not if s == Scalar::Bool => self.same("not.pred", s, [a]),
            UnaryOp::Not => self.same(&format!("not.b{}", s.bits()), s, [a]),
            UnaryOp::CountOnes => self.same("popc.b32", s, [a]),
            UnaryOp::ReverseBits => self.same("brev.b32", s, [a]),
            UnaryOp::Floor => self.same(&format!("cvt.rmi.{ty}.{ty}"), s, [a]),
            UnaryOp::Ceil => self.same(&format!("cvt.rpi.{ty}.{ty}"), s, [a]),
            UnaryOp::Trunc => self.same(&format!("cvt.rzi.{ty}.{ty}"), s, [a]),
            UnaryOp::RoundEven => self.same(&format!("cvt.rni.{ty}.{ty}"), s, [a]),
            UnaryOp::Sqrt
            | UnaryOp::InverseSqrt
            | UnaryOp::Exp
            | UnaryOp::Exp2
            | UnaryOp::Log
            | UnaryOp::Sin
            | UnaryOp::Cos
            | UnaryOp::Tanh => {
                let x = self.convert(s, Scalar::F32, a);
                let y = self.function(f, x);
                self.convert(Scalar::F32, s, y)
            }
        }
    }

    /// A function of f32, within the bounds that Vulkan sets for it.
    fn function(&mut self, f: UnaryOp, x: Operand) -> Operand {
        let t = &mut self.t;
        let mut make = |op: &str, x: &[Operand]| t.make(Class::B32, op, x);
        match f {
            UnaryOp::Sqrt => make("sqrt.approx.f32", &[x]),
            UnaryOp::InverseSqrt => make("rsqrt.approx.f32", &[x]),
            UnaryOp::Exp => {
                let power = make("mul.rn.f32", &[x, LOG2_E]);
                make("ex2.approx.f32", &[power])
            }
            UnaryOp::Exp2 => make("ex2.approx.f32", &[x]),
            UnaryOp::Log => {
                let power = make("lg2.approx.f32", &[x]);
                make("mul.rn.f32", &[power, LN_2])
            }
            // The instructions are meant for angles up to half a turn.
            UnaryOp::Sin | UnaryOp::Cos => {
                let turns = make("mul.rn.f32", &[x, TURN[0]]);
                let whole = make("cvt.rni.f32.f32", &[turns]);
                let rest = make("fma.rn.f32", &[whole, TURN[1], x]);
                let rest = make("fma.rn.f32", &[whole, TURN[2], rest]);
                make(if f == UnaryOp::Sin { "sin.approx.f32" } else { "cos.approx.f32" }, &[rest])
            }
            // 1 - 2 / (e^2x + 1): right at both ends, where the power is infinite or 0.
            _ => {
                let twice = make("add.rn.f32", &[x, x]);
                let power = make("mul.rn.f32", &[twice, LOG2_E]);
                let power = make("ex2.approx.f32", &[power]);
                let sum = make("add.rn.f32", &[power, ONE]);
                let part = make("rcp.approx.f32", &[sum]);
                make("fma.rn.f32", &[part, Operand::Imm(Class::B32, 0xC000_0000), ONE])
            }
        }
    }

    pub(super) fn binary(&mut self, f: BinaryOp, s: Scalar, a: Operand, b: Operand) -> Operand {
        let (ty, bits) = (typed(s), s.bits());
        match f {
            BinaryOp::Add | BinaryOp::Sub | BinaryOp::Mul if s.is_float() => {
                self.same(&format!("{}.rn.{ty}", f.name()), s, [a, b])
            }
            BinaryOp::Add | BinaryOp::Sub => self.same(&format!("{}.{ty}", f.name()), s, [a, b]),
            BinaryOp::Mul => self.same(&format!("mul.lo.{ty}"), s, [a, b]),
            BinaryOp::Div | BinaryOp::Pow if s.is_float() => {
                let (x, y) = (self.convert(s, Scalar::F32, a), self.convert(s, Scalar::F32, b));
                let z =
                    if f == BinaryOp::Div { self.t.make(Class::B32, "div.full.f32", &[x, y]) } else { self.pow(x, y) };
                self.convert(Scalar::F32, s, z)
            }
            BinaryOp::Div | BinaryOp::Rem => self.divide(f, s, a, b),
            BinaryOp::Min | BinaryOp::Max if s.is_int() => self.same(&format!("{}.{ty}", f.name()), s, [a, b]),
            // The instructions take the number where the other is a NaN.
            BinaryOp::Min | BinaryOp::Max => {
                let (x, y) = if f == BinaryOp::Min { (b, a) } else { (a, b) };
                let less = self.compare(Compare::Lt, s, x, y);
                self.select(less, b, a)
            }
            BinaryOp::And | BinaryOp::Or | BinaryOp::Xor if s == Scalar::Bool => {
                self.same(&format!("{}.pred", f.name()), s, [a, b])
            }
            BinaryOp::And | BinaryOp::Or | BinaryOp::Xor => self.same(&format!("{}.b{bits}", f.name()), s, [a, b]),
            BinaryOp::Shl | BinaryOp::Shr => {
                let amount = self.amount(b, bits);
                let op = if f == BinaryOp::Shl { format!("shl.b{bits}") } else { format!("shr.{ty}") };
                self.t.make(Class::of(s), &op, &[a, amount])
            }
            BinaryOp::Pow => a,
        }
    }

    /// How far to shift: always a number of 32 bits, and by PTX no longer taken modulo the width.
    fn amount(&mut self, b: Operand, bits: u32) -> Operand {
        match b {
            Operand::Imm(_, n) => imm((n % u64::from(bits)) as u32),
            b => {
                let low = if bits == 64 { self.t.make(Class::B32, "cvt.u32.u64", &[b]) } else { b };
                self.t.make(Class::B32, "and.b32", &[low, imm(bits - 1)])
            }
        }
    }

    fn pow(&mut self, x: Operand, y: Operand) -> Operand {
        let x = self.t.in_reg(x);
        let power = self.t.make(Class::B32, "lg2.approx.f32", &[x]);
        let power = self.t.make(Class::B32, "mul.rn.f32", &[power, y]);
        self.t.make(Class::B32, "ex2.approx.f32", &[power])
    }

    /// Division with the divisor replaced by 1 where PTX has no result.
    fn divide(&mut self, f: BinaryOp, s: Scalar, a: Operand, b: Operand) -> Operand {
        let class = Class::of(s);
        let (ty, bits) = (typed(s), s.bits());
        let number = |x: u64| Operand::Imm(class, x);
        let safe = b.constant().is_some_and(|c| c != 0 && !(s.is_signed() && c == s.mask()));
        let mut divisor = b;
        if !safe {
            let equal = format!("setp.eq.u{bits}");
            let mut wrong = self.t.make(Class::Pred, &equal, &[b, number(0)]);
            if s.is_signed() {
                let least = self.t.make(Class::Pred, &equal, &[a, number(1 << (bits - 1))]);
                let minus = self.t.make(Class::Pred, &equal, &[b, number(s.mask())]);
                let both = self.t.make(Class::Pred, "and.pred", &[least, minus]);
                wrong = self.t.make(Class::Pred, "or.pred", &[wrong, both]);
            }
            divisor = self.select(wrong, number(1), b);
        }
        self.t.make(class, &format!("{}.{ty}", f.name()), &[a, divisor])
    }
}
