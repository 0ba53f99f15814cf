//! The arithmetic of a run: that of the language, or with every f32 as an f64. The second is what derivatives by differences are taken with.

use half::{bf16, f16};

use crate::eval;
use crate::ir::{BinaryOp, Compare, Scalar, UnaryOp};

#[derive(Clone, Copy, Debug)]
pub(super) struct Arithmetic {
    pub(super) wide: bool,
}

fn of(a: u64) -> f64 {
    f64::from_bits(a)
}

impl Arithmetic {
    fn is_wide(self, s: Scalar) -> bool {
        self.wide && s == Scalar::F32
    }

    pub(super) fn constant(self, s: Scalar, bits: u64) -> u64 {
        if self.is_wide(s) { f64::from(f32::from_bits(bits as u32)).to_bits() } else { bits }
    }

    pub(super) fn unary(self, f: UnaryOp, s: Scalar, a: u64) -> u64 {
        if !self.is_wide(s) {
            return eval::unary(f, s, a);
        }
        let x = of(a);
        let y = match f {
            UnaryOp::Neg => -x,
            UnaryOp::Abs => x.abs(),
            UnaryOp::Floor => x.floor(),
            UnaryOp::Ceil => x.ceil(),
            UnaryOp::Trunc => x.trunc(),
            UnaryOp::RoundEven => x.round_ties_even(),
            UnaryOp::Sqrt => x.sqrt(),
            UnaryOp::InverseSqrt => 1.0 / x.sqrt(),
            UnaryOp::Exp => x.exp(),
            UnaryOp::Exp2 => x.exp2(),
            UnaryOp::Log => x.ln(),
            UnaryOp::Sin => x.sin(),
            UnaryOp::Cos => x.cos(),
            UnaryOp::Tanh => x.tanh(),
            UnaryOp::Not | UnaryOp::CountOnes | UnaryOp::ReverseBits => x,
        };
        y.to_bits()
    }

    pub(super) fn binary(self, f: BinaryOp, s: Scalar, a: u64, b: u64) -> u64 {
        if !self.is_wide(s) {
            return eval::binary(f, s, a, b);
        }
        let (x, y) = (of(a), of(b));
        let z = match f {
            BinaryOp::Add => x + y,
            BinaryOp::Sub => x - y,
            BinaryOp::Mul => x * y,
            BinaryOp::Div => x / y,
            BinaryOp::Pow => x.powf(y),
            BinaryOp::Min if y < x => y,
            BinaryOp::Max if x < y => y,
            _ => x,
        };
        z.to_bits()
    }

    pub(super) fn compare(self, c: Compare, s: Scalar, a: u64, b: u64) -> bool {
        if !self.is_wide(s) {
            return eval::compare(c, s, a, b);
        }
        let (x, y) = (of(a), of(b));
        match c {
            Compare::Eq => x == y,
            Compare::Ne => x != y,
            Compare::Lt => x < y,
            Compare::Le => x <= y,
            Compare::Gt => x > y,
            Compare::Ge => x >= y,
        }
    }

    pub(super) fn fma(self, s: Scalar, a: u64, b: u64, c: u64) -> u64 {
        if self.is_wide(s) { of(a).mul_add(of(b), of(c)).to_bits() } else { eval::fma(s, a, b, c) }
    }

    pub(super) fn convert(self, from: Scalar, to: Scalar, a: u64) -> u64 {
        match (self.is_wide(from), self.is_wide(to)) {
            (false, false) => eval::convert(from, to, a),
            (true, true) => a,
            (true, false) => match to {
                Scalar::I32 => of(a) as i32 as u32 as u64,
                Scalar::U32 => (of(a) as u32).into(),
                Scalar::I64 => of(a) as i64 as u64,
                Scalar::U64 => of(a) as u64,
                _ => eval::convert(Scalar::F32, to, u64::from((of(a) as f32).to_bits())),
            },
            (false, true) => {
                let x = match from {
                    Scalar::F16 => f16::from_bits(a as u16).to_f64(),
                    Scalar::Bf16 => bf16::from_bits(a as u16).to_f64(),
                    _ => eval::to_int(from, a) as f64,
                };
                x.to_bits()
            }
        }
    }

    /// The bits of an f32 are those of the f64, rounded.
    pub(super) fn bitcast(self, from: Scalar, to: Scalar, a: u64) -> u64 {
        match (self.is_wide(from), self.is_wide(to)) {
            (true, false) => u64::from((of(a) as f32).to_bits()),
            (false, true) => f64::from(f32::from_bits(a as u32)).to_bits(),
            _ => a,
        }
    }
}
