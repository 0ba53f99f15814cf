//! Arithmetic on the bits of scalars: what each op of the table means. The executor and constant folding both compute with it, and the
//! tests on devices hold it to what drivers compute.

use half::{bf16, f16};

use crate::ir::{BinaryOp, Compare, OpKind, Scalar, UnaryOp};

fn to_f32(s: Scalar, a: u64) -> f32 {
    match s {
        Scalar::F16 => f16::from_bits(a as u16).to_f32(),
        Scalar::Bf16 => bf16::from_bits(a as u16).to_f32(),
        _ => f32::from_bits(a as u32),
    }
}

fn from_f32(s: Scalar, x: f32) -> u64 {
    match s {
        Scalar::F16 => f16::from_f32(x).to_bits().into(),
        Scalar::Bf16 => bf16::from_f32(x).to_bits().into(),
        _ => x.to_bits().into(),
    }
}

/// The integer that the bits stand for.
pub fn to_int(s: Scalar, a: u64) -> i128 {
    match s {
        Scalar::I32 => i128::from(a as u32 as i32),
        Scalar::I64 => i128::from(a as i64),
        _ => i128::from(a),
    }
}

/// `f(a)` on floats. The sums and products of f16 are rounded from f32, which is exact: f32 has more than twice the bits.
fn unary_float(f: UnaryOp, s: Scalar, a: u64) -> u64 {
    let sign = 1u64 << (s.bits() - 1);
    let x = to_f32(s, a);
    let y = match f {
        UnaryOp::Neg => return a ^ sign,
        UnaryOp::Abs => return a & !sign,
        UnaryOp::Floor => x.floor(),
        UnaryOp::Ceil => x.ceil(),
        UnaryOp::Trunc => x.trunc(),
        UnaryOp::RoundEven => x.round_ties_even(),
        UnaryOp::Sqrt => x.sqrt(),
        UnaryOp::InverseSqrt => (1.0 / f64::from(x).sqrt()) as f32,
        UnaryOp::Exp => f64::from(x).exp() as f32,
        UnaryOp::Exp2 => f64::from(x).exp2() as f32,
        UnaryOp::Log => f64::from(x).ln() as f32,
        UnaryOp::Sin => f64::from(x).sin() as f32,
        UnaryOp::Cos => f64::from(x).cos() as f32,
        UnaryOp::Tanh => f64::from(x).tanh() as f32,
        UnaryOp::Not | UnaryOp::CountOnes | UnaryOp::ReverseBits => x,
    };
    from_f32(s, y)
}

/// A function of one number.
pub fn unary(f: UnaryOp, s: Scalar, a: u64) -> u64 {
    if s.is_float() {
        return unary_float(f, s, a);
    }
    let y = match f {
        UnaryOp::Neg => a.wrapping_neg(),
        UnaryOp::Not => !a,
        UnaryOp::Abs => to_int(s, a).unsigned_abs() as u64,
        UnaryOp::CountOnes => a.count_ones().into(),
        UnaryOp::ReverseBits => (a as u32).reverse_bits().into(),
        _ => a,
    };
    y & s.mask()
}

/// A function of two numbers.
pub fn binary(f: BinaryOp, s: Scalar, a: u64, b: u64) -> u64 {
    match f {
        BinaryOp::Min => return if compare(Compare::Lt, s, b, a) { b } else { a },
        BinaryOp::Max => return if compare(Compare::Lt, s, a, b) { b } else { a },
        _ => {}
    }
    if s.is_float() {
        let (x, y) = (to_f32(s, a), to_f32(s, b));
        return from_f32(
            s,
            match f {
                BinaryOp::Add => x + y,
                BinaryOp::Sub => x - y,
                BinaryOp::Mul => x * y,
                BinaryOp::Div => x / y,
                BinaryOp::Pow => f64::from(x).powf(f64::from(y)) as f32,
                _ => x,
            },
        );
    }
    let shift = (b % u64::from(s.bits())) as u32;
    let (x, y) = (to_int(s, a), to_int(s, b));
    let z = match f {
        BinaryOp::Add => a.wrapping_add(b),
        BinaryOp::Sub => a.wrapping_sub(b),
        BinaryOp::Mul => a.wrapping_mul(b),
        BinaryOp::Div if y == 0 => a,
        BinaryOp::Rem if y == 0 => 0,
        BinaryOp::Div => (x / y) as u64,
        BinaryOp::Rem => (x % y) as u64,
        BinaryOp::And => a & b,
        BinaryOp::Or => a | b,
        BinaryOp::Xor => a ^ b,
        BinaryOp::Shl => a << shift,
        BinaryOp::Shr => (x >> shift) as u64,
        BinaryOp::Min | BinaryOp::Max | BinaryOp::Pow => a,
    };
    z & s.mask()
}

/// A comparison.
pub fn compare(c: Compare, s: Scalar, a: u64, b: u64) -> bool {
    use std::cmp::Ordering;
    let order =
        if s.is_float() { to_f32(s, a).partial_cmp(&to_f32(s, b)) } else { Some(to_int(s, a).cmp(&to_int(s, b))) };
    match c {
        Compare::Eq => order == Some(Ordering::Equal),
        Compare::Ne => order != Some(Ordering::Equal),
        Compare::Lt => order == Some(Ordering::Less),
        Compare::Le => matches!(order, Some(Ordering::Less | Ordering::Equal)),
        Compare::Gt => order == Some(Ordering::Greater),
        Compare::Ge => matches!(order, Some(Ordering::Greater | Ordering::Equal)),
    }
}

/// `a * b + c`.
pub fn fma(s: Scalar, a: u64, b: u64, c: u64) -> u64 {
    from_f32(s, to_f32(s, a).mul_add(to_f32(s, b), to_f32(s, c)))
}

/// The number as another scalar.
pub fn convert(from: Scalar, to: Scalar, a: u64) -> u64 {
    match (from.is_float(), to.is_float()) {
        (true, true) if from == to => a,
        (true, true) => from_f32(to, to_f32(from, a)),
        (true, false) => {
            let x = to_f32(from, a);
            // `as` saturates and takes NaN to 0.
            match to {
                Scalar::I32 => x as i32 as u32 as u64,
                Scalar::U32 => (x as u32).into(),
                Scalar::I64 => x as i64 as u64,
                Scalar::U64 => x as u64,
                _ => u64::from(x != 0.0),
            }
        }
        (false, true) => from_f32(
            to,
            match from {
                Scalar::I32 | Scalar::I64 => to_int(from, a) as i64 as f32,
                _ => a as f32,
            },
        ),
        (false, false) => to_int(from, a) as u64 & to.mask(),
    }
}

/// How often a `for` with these ends and this step runs.
pub fn trip_count(s: Scalar, from: u64, to: u64, step: u32) -> u64 {
    u64::try_from(to_int(s, to) - to_int(s, from)).unwrap_or(0).div_ceil(step.max(1).into())
}

/// What an op gives, from a scalar to a scalar, if the operands that it takes for that are known.
pub fn op(kind: OpKind, from: Scalar, to: Scalar, known: impl Fn(usize) -> Option<u64>) -> Option<u64> {
    Some(match kind {
        OpKind::Unary(f) => unary(f, from, known(0)?),
        OpKind::Binary(f) => binary(f, from, known(0)?, known(1)?),
        OpKind::Compare(x) => compare(x, from, known(0)?, known(1)?).into(),
        OpKind::Fma => fma(from, known(0)?, known(1)?, known(2)?),
        OpKind::Convert => convert(from, to, known(0)?),
        OpKind::Bitcast => known(0)?,
        OpKind::Select => match known(0) {
            Some(c) => known(if c != 0 { 1 } else { 2 })?,
            None => known(1).filter(|_| known(1) == known(2))?,
        },
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_leave_undefined_has_the_values_of_the_table() {
        let min = i32::MIN as u32 as u64;
        let minus_one = u64::from(u32::MAX);
        assert_eq!(binary(BinaryOp::Div, Scalar::I32, 7, 0), 7);
        assert_eq!(binary(BinaryOp::Rem, Scalar::U32, 7, 0), 0);
        assert_eq!(binary(BinaryOp::Div, Scalar::I32, min, minus_one), min);
        assert_eq!(binary(BinaryOp::Rem, Scalar::I32, min, minus_one), 0);
        assert_eq!(binary(BinaryOp::Div, Scalar::I64, 1 << 63, u64::MAX), 1 << 63);
        assert_eq!(binary(BinaryOp::Shl, Scalar::U32, 1, 33), 2);
        assert_eq!(binary(BinaryOp::Shr, Scalar::I32, min, 31), minus_one);
        assert_eq!(unary(UnaryOp::Abs, Scalar::I32, min), min);
        let nan = u64::from(f32::NAN.to_bits());
        let one = u64::from(1f32.to_bits());
        assert_eq!(binary(BinaryOp::Min, Scalar::F32, one, nan), one);
        assert_eq!(binary(BinaryOp::Min, Scalar::F32, nan, one), nan);
        assert_eq!(convert(Scalar::F32, Scalar::I32, nan), 0);
        assert_eq!(convert(Scalar::F32, Scalar::U32, u64::from((-1f32).to_bits())), 0);
        assert_eq!(convert(Scalar::F32, Scalar::I32, u64::from(1e20f32.to_bits())), i32::MAX as u64);
        assert_eq!(convert(Scalar::I32, Scalar::U64, minus_one), u64::MAX);
    }
}
