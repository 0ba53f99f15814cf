//! Arithmetic of single lanes, on bits.

use half::{bf16, f16};

use super::Done;
use super::parse::bits;

fn f(x: u64) -> f32 {
    f32::from_bits(x as u32)
}

fn h(x: u64) -> f16 {
    f16::from_bits(x as u16)
}

fn mask(ty: &str) -> Done<u64> {
    Ok(match bits(ty)? {
        64 => u64::MAX,
        n => (1 << n) - 1,
    })
}

/// The integer that the bits stand for.
fn int(ty: &str, x: u64) -> i128 {
    match ty {
        "s32" => i128::from(x as u32 as i32),
        "s64" => i128::from(x as i64),
        "u32" | "b32" => i128::from(x as u32),
        _ => i128::from(x),
    }
}

pub fn binary(f_name: &str, ty: &str, a: u64, b: u64) -> Done<u64> {
    match ty {
        "f32" => {
            let (x, y) = (f(a), f(b));
            let z = match f_name {
                "add" => x + y,
                "sub" => x - y,
                "mul" => x * y,
                "div" => x / y,
                _ => return Err(format!("no {f_name} of f32")),
            };
            return Ok(z.to_bits().into());
        }
        "f16" => {
            let (x, y) = (h(a).to_f32(), h(b).to_f32());
            let z = match f_name {
                "add" => x + y,
                "sub" => x - y,
                "mul" => x * y,
                _ => return Err(format!("no {f_name} of f16")),
            };
            return Ok(f16::from_f32(z).to_bits().into());
        }
        "f16x2" => {
            let low = binary(f_name, "f16", a & 0xFFFF, b & 0xFFFF)?;
            let high = binary(f_name, "f16", a >> 16 & 0xFFFF, b >> 16 & 0xFFFF)?;
            return Ok(low | high << 16);
        }
        "pred" => {
            return Ok(match f_name {
                "and" => a & b,
                "or" => a | b,
                "xor" => a ^ b,
                _ => return Err(format!("no {f_name} of predicates")),
            });
        }
        _ => {}
    }
    let (x, y) = (int(ty, a), int(ty, b));
    let z = match f_name {
        "add" => x + y,
        "sub" => x - y,
        "mul" => (a.wrapping_mul(b)) as i128,
        "min" => x.min(y),
        "max" => x.max(y),
        "and" => (a & b) as i128,
        "or" => (a | b) as i128,
        "xor" => (a ^ b) as i128,
        "div" | "rem" => {
            if y == 0 || y == -1 && x == -(1 << (bits(ty)? - 1)) {
                return Err(format!("{x} and {y} have no {f_name}"));
            }
            if f_name == "div" { x / y } else { x % y }
        }
        _ => return Err(format!("no {f_name}")),
    };
    Ok(z as u64 & mask(ty)?)
}

fn compare(how: &str, ty: &str, a: u64, b: u64) -> Done<bool> {
    use std::cmp::Ordering::{Equal, Greater, Less};
    let order = match ty {
        "f32" => f(a).partial_cmp(&f(b)),
        "f16" => h(a).partial_cmp(&h(b)),
        _ => Some(int(ty, a).cmp(&int(ty, b))),
    };
    Ok(match how {
        "eq" => order == Some(Equal),
        "ne" => !matches!(order, Some(Equal) | None),
        "neu" => order != Some(Equal),
        "lt" => order == Some(Less),
        "le" => matches!(order, Some(Less | Equal)),
        "gt" => order == Some(Greater),
        "ge" => matches!(order, Some(Greater | Equal)),
        _ => return Err(format!("no comparison {how}")),
    })
}

fn round(how: &str, x: f32) -> Done<f32> {
    Ok(match how {
        "rmi" => x.floor(),
        "rpi" => x.ceil(),
        "rzi" => x.trunc(),
        "rni" => x.round_ties_even(),
        _ => return Err(format!("no rounding {how}")),
    })
}

/// A float to an integer: it saturates; a NaN is 0 at 32 bits, and only its highest bit at 64.
fn saturated(ty: &str, x: f32) -> u64 {
    match ty {
        "s32" => x as i32 as u32 as u64,
        "u32" => u64::from(x as u32),
        _ if x.is_nan() => 1 << 63,
        "s64" => x as i64 as u64,
        _ => x as u64,
    }
}

fn approximate(name: &str, x: f32) -> Done<f32> {
    let x = f64::from(x);
    Ok(match name {
        "sqrt" => x.sqrt(),
        "rsqrt" => 1.0 / x.sqrt(),
        "ex2" => x.exp2(),
        "lg2" => x.log2(),
        "sin" => x.sin(),
        "cos" => x.cos(),
        "rcp" => 1.0 / x,
        _ => return Err(format!("no {name}")),
    } as f32)
}

/// An instruction of one lane.
pub fn compute(parts: &[&str], x: &[u64]) -> Done<u64> {
    Ok(match *parts {
        ["add" | "sub" | "div" | "rem" | "min" | "max" | "and" | "or" | "xor", ty] => binary(parts[0], ty, x[0], x[1])?,
        ["mul", "lo", ty] => binary("mul", ty, x[0], x[1])?,
        ["add" | "sub" | "mul", "rn", ty] | ["div", "full", ty] => binary(parts[0], ty, x[0], x[1])?,
        ["fma", "rn", "f32"] => f(x[0]).mul_add(f(x[1]), f(x[2])).to_bits().into(),
        ["fma", "rn", "f16"] => {
            let exact = f64::from(h(x[0]).to_f32()).mul_add(h(x[1]).to_f32().into(), h(x[2]).to_f32().into());
            f16::from_f64(exact).to_bits().into()
        }
        ["mad", "lo", "u32"] => u64::from((x[0] as u32).wrapping_mul(x[1] as u32).wrapping_add(x[2] as u32)),
        ["mad", "wide", "u32"] => u64::from(x[0] as u32).wrapping_mul(u64::from(x[1] as u32)).wrapping_add(x[2]),
        ["neg", "f32"] => x[0] ^ 1 << 31,
        ["neg", "f16"] => x[0] ^ 1 << 15,
        ["abs", "f32"] => x[0] & !(1 << 31),
        ["abs", "f16"] => x[0] & !(1 << 15),
        ["neg", _] => x[0].wrapping_neg(),
        ["abs", ty] => int(ty, x[0]).unsigned_abs() as u64,
        ["not", _] => !x[0],
        ["popc", _] => (x[0] as u32).count_ones().into(),
        ["brev", _] => (x[0] as u32).reverse_bits().into(),
        ["clz", _] => (x[0] as u32).leading_zeros().into(),
        [name, "approx", "f32"] => approximate(name, f(x[0]))?.to_bits().into(),
        // Amounts above the width are the width.
        ["shl", ty] => (x[0] as u128).checked_shl((x[1] as u32).min(bits(ty)? as u32)).unwrap_or(0) as u64 & mask(ty)?,
        ["shr", ty] => (int(ty, x[0]) >> (x[1] as u32).min(bits(ty)? as u32)) as u64 & mask(ty)?,
        ["setp", how, ty] => compare(how, ty, x[0], x[1])?.into(),
        ["selp", _] => {
            if x[2] != 0 {
                x[0]
            } else {
                x[1]
            }
        }
        ["cvt", how, "f32", "f32"] => round(how, f(x[0]))?.to_bits().into(),
        ["cvt", how, "f16", "f16"] => f16::from_f32(round(how, h(x[0]).to_f32())?).to_bits().into(),
        ["cvt", "rzi", ty, "f32"] => saturated(ty, f(x[0])),
        ["cvt", "rn", "f16", "f32"] => f16::from_f32(f(x[0])).to_bits().into(),
        ["cvt", "rn", "bf16", "f32"] => bf16::from_f32(f(x[0])).to_bits().into(),
        ["cvt", "rn", "f16x2", "f32"] => {
            u64::from(f16::from_f32(f(x[1])).to_bits()) | u64::from(f16::from_f32(f(x[0])).to_bits()) << 16
        }
        ["cvt", "rn", "f32", ty] => (int(ty, x[0]) as f32).to_bits().into(),
        ["cvt", "f32", "f16"] => h(x[0]).to_f32().to_bits().into(),
        ["cvt", _, ty] => int(ty, x[0]) as u64,
        _ => return Err("unknown".into()),
    })
}
