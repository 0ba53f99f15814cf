//! The one table of derivatives: for each op that works component by component, what its result changes by when an operand changes. Forward
//! mode multiplies tangents of operands with it, reverse mode adjoints of results.
//!
//! The table is written against [`Primal`], so that the same lines write ops and, before that, say which values they will need.
//! Where a function has a kink, a masked derivative takes one side of it; a mask is a select, so that what it hides may be NaN.

use impasto_kernel::ir::{Assembler, BinaryOp, Compare, OpKind, Ty, UnaryOp, Value};

/// A derivative by one operand.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Partial<V> {
    Zero,
    One,
    MinusOne,
    Times(V),
    /// One over this.
    Over(V),
    /// One where this is true, zero elsewhere.
    Where(V),
    /// Zero where this is true, one elsewhere.
    Unless(V),
}

/// The operands and the result of an op, and ops on them.
pub(super) trait Primal {
    type V: Copy;
    fn arg(&mut self, i: usize) -> Self::V;
    fn result(&mut self) -> Self::V;
    fn number(&mut self, x: f32) -> Self::V;
    fn unary(&mut self, f: UnaryOp, a: Self::V) -> Self::V;
    fn binary(&mut self, f: BinaryOp, a: Self::V, b: Self::V) -> Self::V;
    fn compare(&mut self, c: Compare, a: Self::V, b: Self::V) -> Self::V;
    fn select(&mut self, c: Self::V, a: Self::V, b: Self::V) -> Self::V;
}

/// The derivative of an op by an operand. Ops that are not in the table are linear, and their rules stand in the two modes.
pub(super) fn partial<P: Primal>(p: &mut P, kind: OpKind, i: usize) -> Partial<P::V> {
    use Partial::{MinusOne, One, Over, Times, Unless, Where, Zero};
    match kind {
        OpKind::Unary(f) => unary(p, f),
        OpKind::Binary(f) => match (f, i) {
            (BinaryOp::Add, _) | (BinaryOp::Sub, 0) => One,
            (BinaryOp::Sub, _) => MinusOne,
            (BinaryOp::Mul, _) => Times(p.arg(1 - i)),
            (BinaryOp::Div, 0) => Over(p.arg(1)),
            (BinaryOp::Div, _) => {
                let (r, b) = (p.result(), p.arg(1));
                let q = p.binary(BinaryOp::Div, r, b);
                Times(p.unary(UnaryOp::Neg, q))
            }
            (BinaryOp::Min | BinaryOp::Max, _) => {
                let (a, b) = (p.arg(0), p.arg(1));
                let (a, b) = if f == BinaryOp::Min { (b, a) } else { (a, b) };
                let second = p.compare(Compare::Lt, a, b);
                if i == 1 { Where(second) } else { Unless(second) }
            }
            (BinaryOp::Pow, 0) => {
                // b a^(b-1), and 0 where b is: a^-1 may be infinite.
                let (a, b, one, zero) = (p.arg(0), p.arg(1), p.number(1.0), p.number(0.0));
                let less = p.binary(BinaryOp::Sub, b, one);
                let power = p.binary(BinaryOp::Pow, a, less);
                let d = p.binary(BinaryOp::Mul, b, power);
                let constant = p.compare(Compare::Eq, b, zero);
                Times(p.select(constant, zero, d))
            }
            (BinaryOp::Pow, _) => {
                // a^b log a; at a = 0 the limit for positive b.
                let (a, r, zero) = (p.arg(0), p.result(), p.number(0.0));
                let log = p.unary(UnaryOp::Log, a);
                let d = p.binary(BinaryOp::Mul, r, log);
                let is_zero = p.compare(Compare::Eq, a, zero);
                Times(p.select(is_zero, zero, d))
            }
            _ => Zero,
        },
        OpKind::Fma if i == 2 => One,
        OpKind::Fma => Times(p.arg(1 - i)),
        OpKind::Select if i == 1 => Where(p.arg(0)),
        OpKind::Select if i == 2 => Unless(p.arg(0)),
        OpKind::Custom if i % 2 == 1 => Times(p.arg(i + 1)),
        _ => Zero,
    }
}

fn unary<P: Primal>(p: &mut P, f: UnaryOp) -> Partial<P::V> {
    use Partial::{MinusOne, Over, Times, Zero};
    match f {
        UnaryOp::Neg => MinusOne,
        UnaryOp::Abs => {
            // The sign, 0 at 0.
            let (x, zero, one, minus) = (p.arg(0), p.number(0.0), p.number(1.0), p.number(-1.0));
            let (above, below) = (p.compare(Compare::Gt, x, zero), p.compare(Compare::Lt, x, zero));
            let sign = p.select(below, minus, zero);
            Times(p.select(above, one, sign))
        }
        UnaryOp::Sqrt => {
            let r = p.result();
            Over(p.binary(BinaryOp::Add, r, r))
        }
        UnaryOp::InverseSqrt => {
            let (r, half) = (p.result(), p.number(-0.5));
            let square = p.binary(BinaryOp::Mul, r, r);
            let cube = p.binary(BinaryOp::Mul, square, r);
            Times(p.binary(BinaryOp::Mul, cube, half))
        }
        UnaryOp::Exp => Times(p.result()),
        UnaryOp::Exp2 => {
            let (r, ln2) = (p.result(), p.number(std::f32::consts::LN_2));
            Times(p.binary(BinaryOp::Mul, r, ln2))
        }
        UnaryOp::Log => Over(p.arg(0)),
        UnaryOp::Sin => {
            let x = p.arg(0);
            Times(p.unary(UnaryOp::Cos, x))
        }
        UnaryOp::Cos => {
            let x = p.arg(0);
            let sin = p.unary(UnaryOp::Sin, x);
            Times(p.unary(UnaryOp::Neg, sin))
        }
        UnaryOp::Tanh => {
            let (r, one) = (p.result(), p.number(1.0));
            let square = p.binary(BinaryOp::Mul, r, r);
            Times(p.binary(BinaryOp::Sub, one, square))
        }
        // Steps: flat wherever they have a derivative.
        UnaryOp::Floor | UnaryOp::Ceil | UnaryOp::Trunc | UnaryOp::RoundEven => Zero,
        UnaryOp::Not | UnaryOp::CountOnes | UnaryOp::ReverseBits => Zero,
    }
}

/// Writes the ops of the table.
pub(super) struct OpWriter<'a> {
    pub(super) asm: &'a mut Assembler,
    pub(super) args: &'a [Value],
    pub(super) result: Value,
    pub(super) ty: Ty,
}

impl Primal for OpWriter<'_> {
    type V = Value;

    fn arg(&mut self, i: usize) -> Value {
        self.args[i]
    }
    fn result(&mut self) -> Value {
        self.result
    }
    fn number(&mut self, x: f32) -> Value {
        self.asm.float(x, self.ty)
    }
    fn unary(&mut self, f: UnaryOp, a: Value) -> Value {
        self.asm.value(OpKind::Unary(f), &[a], self.ty)
    }
    fn binary(&mut self, f: BinaryOp, a: Value, b: Value) -> Value {
        self.asm.binary(f, a, b)
    }
    fn compare(&mut self, c: Compare, a: Value, b: Value) -> Value {
        self.asm.compare(c, a, b)
    }
    fn select(&mut self, c: Value, a: Value, b: Value) -> Value {
        self.asm.select(c, a, b)
    }
}

impl Partial<Value> {
    /// This times a tangent or an adjoint.
    pub(super) fn times(self, asm: &mut Assembler, x: Value) -> Option<Value> {
        let ty = asm.kernel.ty(x);
        match self {
            Partial::Zero => None,
            Partial::One => Some(x),
            Partial::MinusOne => Some(asm.value(OpKind::Unary(UnaryOp::Neg), &[x], ty)),
            Partial::Times(d) => Some(asm.times(x, d)),
            Partial::Over(d) => Some(asm.binary(BinaryOp::Div, x, d)),
            Partial::Where(c) => {
                let zero = asm.zero(ty);
                Some(asm.select(c, x, zero))
            }
            Partial::Unless(c) => {
                let zero = asm.zero(ty);
                Some(asm.select(c, zero, x))
            }
        }
    }
}

/// Which operands, and whether the result, a derivative is made of.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Needs {
    /// One bit for each operand.
    pub(super) args: u64,
    pub(super) result: bool,
}

struct RecordNeeds(Needs);

impl Primal for RecordNeeds {
    type V = ();

    fn arg(&mut self, i: usize) {
        self.0.args |= 1 << (i % 64);
    }
    fn result(&mut self) {
        self.0.result = true;
    }
    fn number(&mut self, _: f32) {}
    fn unary(&mut self, _: UnaryOp, (): ()) {}
    fn binary(&mut self, _: BinaryOp, (): (), (): ()) {}
    fn compare(&mut self, _: Compare, (): (), (): ()) {}
    fn select(&mut self, (): (), (): (), (): ()) {}
}

/// What the derivative by an operand needs; none, if it is always zero.
pub(super) fn needs(kind: OpKind, i: usize) -> Option<Needs> {
    let mut recorded = RecordNeeds(Needs::default());
    match partial(&mut recorded, kind, i) {
        Partial::Zero => None,
        _ => Some(recorded.0),
    }
}

/// Whether values of this type can have a derivative.
pub(super) fn is_float(ty: Ty) -> bool {
    ty.lanes().is_some_and(|l| l.0.is_float())
}
