//! Arithmetic of instructions that the op table does not have, on the bits of numbers of any width.

use half::f16;
use rspirv::spirv::{GlslStd450Op as G, Op as S};

use crate::import::ScalarFormat;

/// The float that bits are.
pub(super) fn float(n: ScalarFormat, bits: u64) -> f64 {
    match n.bytes() {
        2 => f16::from_bits(bits as u16).to_f64(),
        4 => f32::from_bits(bits as u32).into(),
        _ => f64::from_bits(bits),
    }
}

/// The bits of a float. Sums, products, quotients and roots of two floats, computed as f64, round here as if they were computed at once.
pub(super) fn bits(n: ScalarFormat, x: f64) -> u64 {
    match n.bytes() {
        2 => f16::from_f64(x).to_bits().into(),
        4 => (x as f32).to_bits().into(),
        _ => x.to_bits(),
    }
}

fn width(n: ScalarFormat) -> u32 {
    8 * n.bytes()
}

pub(super) fn mask(n: ScalarFormat) -> u64 {
    if width(n) >= 64 { u64::MAX } else { (1 << width(n)) - 1 }
}

/// The integer that bits are, with sign.
pub(super) fn signed(n: ScalarFormat, bits: u64) -> i64 {
    let unused = (64 - width(n).min(64)).min(63);
    ((bits << unused) as i64) >> unused
}

/// One instruction on one component of its operands, which are numbers of kind `from`; the result is of kind `to`.
pub(super) fn compute(op: S, from: ScalarFormat, to: ScalarFormat, a: &[u64]) -> Option<u64> {
    let f = |i: usize| float(from, a[i]);
    let (u, s) = (|i: usize| a[i] & mask(from), |i: usize| signed(from, a[i]));
    let real = |x: f64| Some(bits(to, x));
    let int = |x: u64| Some(x & mask(to));
    let truth = |x: bool| Some(u64::from(x));
    let shift = |i: usize| (a[i] % u64::from(width(from).max(1))) as u32;
    let ordered = |i: usize, j: usize| !f(i).is_nan() && !f(j).is_nan();
    match op {
        S::FAdd => real(f(0) + f(1)),
        S::FSub => real(f(0) - f(1)),
        S::FMul => real(f(0) * f(1)),
        S::FDiv => real(f(0) / f(1)),
        S::FRem => real(f(0) % f(1)),
        S::FMod => real(f(0) - f(1) * (f(0) / f(1)).floor()),
        S::FNegate => real(-f(0)),
        S::IAdd => int(u(0).wrapping_add(u(1))),
        S::ISub => int(u(0).wrapping_sub(u(1))),
        S::IMul => int(u(0).wrapping_mul(u(1))),
        S::SNegate => int(u(0).wrapping_neg()),
        S::UDiv => int(u(0).checked_div(u(1)).unwrap_or(u(0))),
        S::UMod => int(u(0).checked_rem(u(1)).unwrap_or(0)),
        S::SDiv => int(if s(1) == 0 { u(0) } else { s(0).wrapping_div(s(1)) as u64 }),
        S::SRem => int(if s(1) == 0 { 0 } else { s(0).wrapping_rem(s(1)) as u64 }),
        S::SMod => int(if s(1) == 0 {
            0
        } else {
            let r = s(0).wrapping_rem(s(1));
            (if r != 0 && (r < 0) != (s(1) < 0) { r.wrapping_add(s(1)) } else { r }) as u64
        }),
        S::BitwiseAnd => int(u(0) & u(1)),
        S::BitwiseOr => int(u(0) | u(1)),
        S::BitwiseXor => int(u(0) ^ u(1)),
        S::Not => int(!u(0)),
        S::ShiftLeftLogical => int(u(0) << shift(1)),
        S::ShiftRightLogical => int(u(0) >> shift(1)),
        S::ShiftRightArithmetic => int((s(0) >> shift(1)) as u64),
        S::BitCount => int(u(0).count_ones().into()),
        S::BitReverse => int(u(0).reverse_bits() >> (64 - width(from).clamp(1, 64))),
        S::BitFieldUExtract | S::BitFieldSExtract => {
            let (offset, count) = (a[1] as u32 & 63, a[2] as u32 & 127);
            if count == 0 {
                return int(0);
            }
            let part = u(0) >> offset;
            let unused = (64 - count.min(64)).min(63);
            int(if op == S::BitFieldSExtract {
                (((part << unused) as i64) >> unused) as u64
            } else {
                part << unused >> unused
            })
        }
        S::BitFieldInsert => {
            let (offset, count) = (a[2] as u32 & 63, a[3] as u32 & 127);
            let ones = (if count >= 64 { u64::MAX } else { (1u64 << count) - 1 }) << offset;
            int(u(0) & !ones | (a[1] << offset) & ones)
        }
        S::IEqual => truth(u(0) == u(1)),
        S::INotEqual => truth(u(0) != u(1)),
        S::ULessThan => truth(u(0) < u(1)),
        S::ULessThanEqual => truth(u(0) <= u(1)),
        S::UGreaterThan => truth(u(0) > u(1)),
        S::UGreaterThanEqual => truth(u(0) >= u(1)),
        S::SLessThan => truth(s(0) < s(1)),
        S::SLessThanEqual => truth(s(0) <= s(1)),
        S::SGreaterThan => truth(s(0) > s(1)),
        S::SGreaterThanEqual => truth(s(0) >= s(1)),
        S::FOrdEqual => truth(f(0) == f(1)),
        S::FOrdNotEqual => truth(ordered(0, 1) && f(0) != f(1)),
        S::FOrdLessThan => truth(f(0) < f(1)),
        S::FOrdLessThanEqual => truth(f(0) <= f(1)),
        S::FOrdGreaterThan => truth(f(0) > f(1)),
        S::FOrdGreaterThanEqual => truth(f(0) >= f(1)),
        S::FUnordEqual => truth(!ordered(0, 1) || f(0) == f(1)),
        S::FUnordNotEqual => truth(f(0) != f(1)),
        S::FUnordLessThan => truth(!ordered(0, 1) || f(0) < f(1)),
        S::FUnordLessThanEqual => truth(!ordered(0, 1) || f(0) <= f(1)),
        S::FUnordGreaterThan => truth(!ordered(0, 1) || f(0) > f(1)),
        S::FUnordGreaterThanEqual => truth(!ordered(0, 1) || f(0) >= f(1)),
        S::IsNan => truth(f(0).is_nan()),
        S::IsInf => truth(f(0).is_infinite()),
        S::LogicalAnd => truth(a[0] & a[1] & 1 == 1),
        S::LogicalOr => truth((a[0] | a[1]) & 1 == 1),
        S::LogicalEqual => truth(a[0] & 1 == a[1] & 1),
        S::LogicalNotEqual => truth(a[0] & 1 != a[1] & 1),
        S::LogicalNot => truth(a[0] & 1 == 0),
        S::ConvertFToU => int(f(0) as u64),
        S::ConvertFToS => int((f(0) as i64) as u64),
        S::ConvertUToF => real(u(0) as f64),
        S::ConvertSToF => real(s(0) as f64),
        S::UConvert => int(u(0)),
        S::SConvert => int(s(0) as u64),
        S::FConvert => real(f(0)),
        S::QuantizeToF16 => real(f16::from_f64(f(0)).to_f64()),
        _ => None,
    }
}

/// A function of GLSL.std.450 that works component by component.
pub(super) fn extended(function: u32, from: ScalarFormat, to: ScalarFormat, a: &[u64]) -> Option<u64> {
    let f = |i: usize| float(from, a[i]);
    let (u, s) = (|i: usize| a[i] & mask(from), |i: usize| signed(from, a[i]));
    let real = |x: f64| Some(bits(to, x));
    let int = |x: u64| Some(x & mask(to));
    match G::from_u32(function)? {
        G::Round => real(f(0).round()),
        G::RoundEven => real(f(0).round_ties_even()),
        G::Trunc => real(f(0).trunc()),
        G::FAbs => real(f(0).abs()),
        G::SAbs => int(s(0).wrapping_abs() as u64),
        G::FSign => real(if f(0) > 0.0 {
            1.0
        } else if f(0) < 0.0 {
            -1.0
        } else {
            f(0)
        }),
        G::SSign => int(s(0).signum() as u64),
        G::Floor => real(f(0).floor()),
        G::Ceil => real(f(0).ceil()),
        G::Fract => real(f(0) - f(0).floor()),
        G::Radians => real(f(0).to_radians()),
        G::Degrees => real(f(0).to_degrees()),
        G::Sin => real(f(0).sin()),
        G::Cos => real(f(0).cos()),
        G::Tan => real(f(0).tan()),
        G::Asin => real(f(0).asin()),
        G::Acos => real(f(0).acos()),
        G::Atan => real(f(0).atan()),
        G::Sinh => real(f(0).sinh()),
        G::Cosh => real(f(0).cosh()),
        G::Tanh => real(f(0).tanh()),
        G::Asinh => real(f(0).asinh()),
        G::Acosh => real(f(0).acosh()),
        G::Atanh => real(f(0).atanh()),
        G::Atan2 => real(f(0).atan2(f(1))),
        G::Pow => real(f(0).powf(f(1))),
        G::Exp => real(f(0).exp()),
        G::Log => real(f(0).ln()),
        G::Exp2 => real(f(0).exp2()),
        G::Log2 => real(f(0).log2()),
        G::Sqrt => real(f(0).sqrt()),
        G::InverseSqrt => real(1.0 / f(0).sqrt()),
        G::FMin | G::NMin => real(if f(1) < f(0) || f(0).is_nan() { f(1) } else { f(0) }),
        G::FMax | G::NMax => real(if f(0) < f(1) || f(0).is_nan() { f(1) } else { f(0) }),
        G::UMin => int(u(0).min(u(1))),
        G::UMax => int(u(0).max(u(1))),
        G::SMin => int(s(0).min(s(1)) as u64),
        G::SMax => int(s(0).max(s(1)) as u64),
        G::FClamp | G::NClamp => real(f(0).max(f(1)).min(f(2))),
        G::UClamp => int(u(0).max(u(1)).min(u(2))),
        G::SClamp => int(s(0).max(s(1)).min(s(2)) as u64),
        // As their lowering in drivers: x (1 - a) + y a, rounded at each step.
        G::FMix => {
            let rest = float(to, bits(to, 1.0 - f(2)));
            let (x, y) = (float(to, bits(to, f(0) * rest)), float(to, bits(to, f(1) * f(2))));
            real(x + y)
        }
        G::Step => real(if f(1) < f(0) { 0.0 } else { 1.0 }),
        G::SmoothStep => {
            let t = ((f(2) - f(0)) / (f(1) - f(0))).clamp(0.0, 1.0);
            real(t * t * (3.0 - 2.0 * t))
        }
        G::Fma if to.bytes() == 4 => Some(((f(0) as f32).mul_add(f(1) as f32, f(2) as f32)).to_bits().into()),
        G::Fma => real(f(0).mul_add(f(1), f(2))),
        G::Ldexp => real(f(0) * f64::from(signed(ScalarFormat::Int { bits: 32, signed: true }, a[1]) as i32).exp2()),
        G::FindILsb => int(if u(0) == 0 { u64::MAX } else { u(0).trailing_zeros().into() }),
        G::FindUMsb => int(if u(0) == 0 { u64::MAX } else { u64::from(63 - u(0).leading_zeros()) }),
        G::FindSMsb => {
            let x = if s(0) < 0 { !s(0) } else { s(0) } as u64;
            int(if x == 0 { u64::MAX } else { u64::from(63 - x.leading_zeros()) })
        }
        _ => None,
    }
}
