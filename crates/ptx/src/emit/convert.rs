//! Conversions of scalars. Floats to integers saturate by themselves, and NaN is 0 at 32 bits; integers become small floats by way of f32, as on the
//! executor.

use impasto_kernel::Scalar;
use impasto_kernel::eval;

use super::Emit;
use super::text::{Class, Operand, imm};

impl Emit<'_> {
    pub(super) fn convert(&mut self, from: Scalar, to: Scalar, a: Operand) -> Operand {
        if from == to {
            return a;
        }
        if let Some(bits) = a.constant() {
            return Operand::Imm(Class::of(to), eval::convert(from, to, bits));
        }
        match (from, to) {
            (Scalar::Bool, _) => {
                let one = Operand::Imm(Class::of(to), eval::convert(Scalar::Bool, to, 1));
                self.select(a, one, Operand::Imm(Class::of(to), 0))
            }
            (_, Scalar::Bool) => self.truth(from, a),
            // The bits of a bf16 are the upper half of those of the f32.
            (Scalar::Bf16, _) => {
                let low = self.t.make(Class::B32, "cvt.u32.u16", &[a]);
                let wide = self.t.make(Class::B32, "shl.b32", &[low, imm(16)]);
                self.convert(Scalar::F32, to, wide)
            }
            (Scalar::F32, Scalar::Bf16) if self.ptx.is_ampere() => self.t.make(Class::B16, "cvt.rn.bf16.f32", &[a]),
            (Scalar::F32, Scalar::Bf16) => self.narrow(a),
            (Scalar::F32, Scalar::F16) => self.t.make(Class::B16, "cvt.rn.f16.f32", &[a]),
            (Scalar::F16, Scalar::F32) => self.t.make(Class::B32, "cvt.f32.f16", &[a]),
            (Scalar::F16, _) | (_, Scalar::F16 | Scalar::Bf16) => {
                let wide = self.convert(from, Scalar::F32, a);
                self.convert(Scalar::F32, to, wide)
            }
            (Scalar::F32, Scalar::I32) => self.t.make(Class::B32, "cvt.rzi.s32.f32", &[a]),
            (Scalar::F32, Scalar::U32) => self.t.make(Class::B32, "cvt.rzi.u32.f32", &[a]),
            (Scalar::F32, _) => {
                let op = if to.is_signed() { "cvt.rzi.s64.f32" } else { "cvt.rzi.u64.f32" };
                let number = self.t.make(Class::B64, op, &[a]);
                // A NaN is no 0 at this width.
                let nan = self.t.make(Class::Pred, "setp.neu.f32", &[a, a]);
                self.select(nan, Operand::Imm(Class::B64, 0), number)
            }
            (_, Scalar::F32) => {
                let op = format!("cvt.rn.f32.{}{}", if from.is_signed() { 's' } else { 'u' }, from.bits());
                self.t.make(Class::B32, &op, &[a])
            }
            _ if from.bits() == to.bits() => a,
            _ if to.bits() == 32 => self.t.make(Class::B32, "cvt.u32.u64", &[a]),
            _ if from.is_signed() => self.t.make(Class::B64, "cvt.s64.s32", &[a]),
            _ => self.t.make(Class::B64, "cvt.u64.u32", &[a]),
        }
    }

    /// Floats that are not 0, and the lowest bit of integers.
    fn truth(&mut self, from: Scalar, a: Operand) -> Operand {
        if from.is_float() {
            let wide = self.convert(from, Scalar::F32, a);
            return self.t.make(Class::Pred, "setp.neu.f32", &[wide, imm(0)]);
        }
        let low = self.convert(from, Scalar::U32, a);
        let bit = self.t.make(Class::B32, "and.b32", &[low, imm(1)]);
        self.t.make(Class::Pred, "setp.ne.u32", &[bit, imm(0)])
    }

    /// f32 to bf16 by integers: to the nearest, ties to even; NaN stays NaN.
    fn narrow(&mut self, a: Operand) -> Operand {
        let make = |e: &mut Self, op: &str, x: &[Operand]| e.t.make(Class::B32, op, x);
        let upper = make(self, "shr.u32", &[a, imm(16)]);
        let odd = make(self, "and.b32", &[upper, imm(1)]);
        let sum = make(self, "add.u32", &[a, imm(0x7FFF)]);
        let sum = make(self, "add.u32", &[sum, odd]);
        let rounded = make(self, "shr.u32", &[sum, imm(16)]);
        let quiet = make(self, "or.b32", &[upper, imm(0x40)]);
        let nan = self.t.make(Class::Pred, "setp.neu.f32", &[a, a]);
        let bits = self.select(nan, quiet, rounded);
        self.t.make(Class::B16, "cvt.u16.u32", &[bits])
    }
}
