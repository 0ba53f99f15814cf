//! The instructions that this compiler writes, and what each takes. What is not here is refused.

use crate::target::PtxTarget;

/// The sizes of registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Size {
    Pred,
    B16,
    B32,
    B64,
}

impl Size {
    pub(super) const ALL: [Size; 4] = [Size::Pred, Size::B16, Size::B32, Size::B64];

    pub(super) fn name(self) -> &'static str {
        ["pred", "b16", "b32", "b64"][self as usize]
    }

    pub(super) fn letter(self) -> char {
        ['p', 'h', 'r', 'l'][self as usize]
    }

    fn bytes(self) -> u32 {
        [0, 2, 4, 8][self as usize]
    }

    /// The size of a type.
    fn of(ty: &str) -> Option<Size> {
        Some(match ty {
            "pred" => Size::Pred,
            "b16" | "u16" | "f16" | "bf16" => Size::B16,
            "b32" | "u32" | "s32" | "f32" | "f16x2" => Size::B32,
            "b64" | "u64" | "s64" => Size::B64,
            _ => return None,
        })
    }
}

/// Where an address points, by what it is held in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spot {
    Param,
    Global,
    /// Shared or local memory, whose addresses have 32 bits.
    Inside,
}

impl Spot {
    fn of(space: &str) -> Option<Spot> {
        match space {
            "param" => Some(Spot::Param),
            "global" => Some(Spot::Global),
            "shared" | "local" => Some(Spot::Inside),
            _ => None,
        }
    }
}

/// What an operand is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A register that is written.
    Write(Size),
    WriteList(usize, Size),
    /// Registers of an array, which are read and written.
    UpdateList(usize, Size),
    /// A register.
    Read(Size),
    ReadList(usize, Size),
    /// A register or an integer.
    Any(Size),
    AnyList(usize, Size),
    /// A register or the bits of a float.
    Float(Size),
    /// An address that is aligned for so many bytes.
    Address(Spot, u32),
    /// A special register or the address of an array.
    Special,
    Number,
}

use Kind::{Address, Any, AnyList, Float, Number, Read, ReadList, Special, UpdateList, Write, WriteList};
use Size::{B16, B32, B64, Pred};

/// `op d, a, ..` on one type: integers and f32 may be numbers, small floats and predicates are registers.
fn same(ty: &str, sources: usize) -> Option<Vec<Kind>> {
    let size = Size::of(ty)?;
    let source = match ty {
        "f32" => Float(size),
        "f16" | "f16x2" | "pred" => Read(size),
        _ => Any(size),
    };
    Some(std::iter::once(Write(size)).chain(std::iter::repeat_n(source, sources)).collect())
}

/// What an instruction with so many operands takes on a target, if it is one of ours.
pub(super) fn signature(op: &str, target: PtxTarget, operands: usize) -> Option<Vec<Kind>> {
    let parts: Vec<&str> = op.split('.').collect();
    arithmetic(&parts)
        .or_else(|| moves(&parts, target))
        .or_else(|| memory(&parts))
        .or_else(|| warp(&parts, target))
        .or_else(|| asynchronous(&parts, target, operands))
}

fn arithmetic(parts: &[&str]) -> Option<Vec<Kind>> {
    match *parts {
        ["add" | "sub", ty @ ("u32" | "s32" | "u64" | "s64")]
        | ["mul", "lo", ty @ ("u32" | "s32" | "u64" | "s64")]
        | ["div" | "rem" | "min" | "max", ty @ ("u32" | "s32" | "u64" | "s64")]
        | ["add" | "sub" | "mul", "rn", ty @ ("f32" | "f16" | "f16x2")]
        | ["div", "full", ty @ "f32"]
        | ["and" | "or" | "xor", ty @ ("b32" | "b64" | "pred")] => same(ty, 2),
        ["fma", "rn", ty @ ("f32" | "f16")] | ["mad", "lo", ty @ "u32"] => same(ty, 3),
        ["mad", "wide", "u32"] => Some(vec![Write(B64), Any(B32), Any(B32), Any(B64)]),
        ["neg" | "abs", ty @ ("s32" | "s64" | "f32" | "f16")]
        | ["not", ty @ ("b32" | "b64" | "pred")]
        | ["popc" | "brev" | "clz", ty @ "b32"]
        | ["sqrt" | "rsqrt" | "ex2" | "lg2" | "sin" | "cos" | "rcp", "approx", ty @ "f32"] => same(ty, 1),
        // How far is always a number of 32 bits.
        ["shl", ty @ ("b32" | "b64")] | ["shr", ty @ ("u32" | "s32" | "u64" | "s64")] => {
            Some(vec![Write(Size::of(ty)?), Any(Size::of(ty)?), Any(B32)])
        }
        ["setp", "eq" | "ne" | "lt" | "le" | "gt" | "ge", ty @ ("u32" | "s32" | "u64" | "s64")] => {
            Some(vec![Write(Pred), Any(Size::of(ty)?), Any(Size::of(ty)?)])
        }
        ["setp", "eq" | "neu" | "lt" | "le" | "gt" | "ge", ty @ ("f32" | "f16")] => {
            let source = if ty == "f32" { Float(B32) } else { Read(B16) };
            Some(vec![Write(Pred), source, source])
        }
        ["selp", "b16"] => Some(vec![Write(B16), Read(B16), Read(B16), Read(Pred)]),
        ["selp", ty @ ("b32" | "b64")] => {
            Some(vec![Write(Size::of(ty)?), Any(Size::of(ty)?), Any(Size::of(ty)?), Read(Pred)])
        }
        _ => None,
    }
}

fn moves(parts: &[&str], target: PtxTarget) -> Option<Vec<Kind>> {
    let convert = |to: Size, from: Size| Some(vec![Write(to), Read(from)]);
    match *parts {
        ["mov", ty @ ("pred" | "b16" | "b32" | "b64")] => Some(vec![Write(Size::of(ty)?), Any(Size::of(ty)?)]),
        ["mov", "u32"] => Some(vec![Write(B32), Special]),
        ["cvta", "to", "global", "u64"] => convert(B64, B64),
        ["cvt", "rmi" | "rpi" | "rzi" | "rni", "f32", "f32"] => convert(B32, B32),
        ["cvt", "rmi" | "rpi" | "rzi" | "rni", "f16", "f16"] => convert(B16, B16),
        ["cvt", "rzi", to @ ("s32" | "u32" | "s64" | "u64"), "f32"] => convert(Size::of(to)?, B32),
        ["cvt", "rn", "f32", from @ ("s32" | "u32" | "s64" | "u64")] => convert(B32, Size::of(from)?),
        ["cvt", "rn", "f16", "f32"] => convert(B16, B32),
        ["cvt", "rn", "bf16", "f32"] if target.is_ampere() => convert(B16, B32),
        ["cvt", "rn", "f16x2" | "bf16x2", "f32"] if target.is_ampere() => Some(vec![Write(B32), Read(B32), Read(B32)]),
        ["cvt", "f32", "f16"] | ["cvt", "u32", "u16"] => convert(B32, B16),
        ["cvt", "u16", "u32"] => convert(B16, B32),
        ["cvt", "u32", "u64"] => convert(B32, B64),
        ["cvt", "s64", "s32"] | ["cvt", "u64", "u32"] => convert(B64, B32),
        _ => None,
    }
}

fn memory(parts: &[&str]) -> Option<Vec<Kind>> {
    let vector = |n: &str| matches!(n, "v2" | "v4").then(|| usize::from(n.as_bytes()[1] - b'0'));
    // Up to 16 bytes at a time.
    let fits = |n: usize, size: Size| (n as u32 * size.bytes() <= 16).then_some(n as u32 * size.bytes());
    match *parts {
        ["ld", "param", ty @ ("u64" | "b16" | "b32" | "b64")] => {
            let size = Size::of(ty)?;
            Some(vec![Write(size), Address(Spot::Param, size.bytes())])
        }
        ["ld", "global", "nc", ref rest @ ..] | ["ld", "global" | "shared" | "local", ref rest @ ..] => {
            let spot = Spot::of(parts[1])?;
            match *rest {
                [ty @ ("b16" | "b32" | "b64")] => {
                    Some(vec![Write(Size::of(ty)?), Address(spot, Size::of(ty)?.bytes())])
                }
                [n, ty @ ("b16" | "b32" | "b64")] => {
                    let (n, size) = (vector(n)?, Size::of(ty)?);
                    Some(vec![WriteList(n, size), Address(spot, fits(n, size)?)])
                }
                _ => None,
            }
        }
        ["st", space @ ("global" | "shared" | "local"), ref rest @ ..] => {
            let spot = Spot::of(space)?;
            match *rest {
                [ty @ ("b16" | "b32" | "b64")] => {
                    let size = Size::of(ty)?;
                    Some(vec![Address(spot, size.bytes()), if size == B16 { Read(size) } else { Any(size) }])
                }
                [n, ty @ ("b16" | "b32" | "b64")] => {
                    let (n, size) = (vector(n)?, Size::of(ty)?);
                    Some(vec![Address(spot, fits(n, size)?), AnyList(n, size)])
                }
                _ => None,
            }
        }
        ["atom", space @ ("global" | "shared"), "cas", "b32"] => {
            Some(vec![Write(B32), Address(Spot::of(space)?, 4), Read(B32), Read(B32)])
        }
        ["atom", space @ ("global" | "shared"), "add", "u32" | "f32"]
        | ["atom", space @ ("global" | "shared"), "min" | "max", "u32" | "s32"]
        | ["atom", space @ ("global" | "shared"), "and" | "or" | "xor" | "exch", "b32"] => {
            Some(vec![Write(B32), Address(Spot::of(space)?, 4), Read(B32)])
        }
        _ => None,
    }
}

fn warp(parts: &[&str], target: PtxTarget) -> Option<Vec<Kind>> {
    match *parts {
        ["trap"] => Some(Vec::new()),
        ["bar", "sync"] | ["bar", "warp", "sync"] => Some(vec![Number]),
        ["activemask", "b32"] => Some(vec![Write(B32)]),
        ["vote", "sync", "all" | "any", "pred"] => Some(vec![Write(Pred), Read(Pred), Any(B32)]),
        ["shfl", "sync", "idx" | "bfly" | "up", "b32"] => Some(vec![Write(B32), Read(B32), Any(B32), Number, Any(B32)]),
        ["redux", "sync", "add", "u32"] | ["redux", "sync", "min" | "max", "u32" | "s32"] if target.is_ampere() => {
            Some(vec![Write(B32), Read(B32), Any(B32)])
        }
        ["ldmatrix", "sync", "aligned", "m8n8", n @ ("x1" | "x2" | "x4"), ref rest @ ..]
            if matches!(rest, ["shared", "b16"] | ["trans", "shared", "b16"]) =>
        {
            let n = usize::from(n.as_bytes()[1] - b'0');
            Some(vec![WriteList(n, B32), Address(Spot::Inside, 16)])
        }
        ["mma", "sync", "aligned", shape @ ("m16n8k8" | "m16n8k16"), "row", "col", result, factor, other, sum] => {
            let types = matches!((result, factor), ("f32" | "f16", "f16") | ("f32", "bf16"));
            let old = shape == "m16n8k8" && factor == "f16";
            if !types || factor != other || result != sum || !(old || target.is_ampere()) {
                return None;
            }
            let n = if shape == "m16n8k16" { 2 } else { 1 };
            let own = if result == "f32" { 4 } else { 2 };
            Some(vec![WriteList(own, B32), ReadList(2 * n, B32), ReadList(n, B32), ReadList(own, B32)])
        }
        _ => None,
    }
}

/// Copies and products that go on while other instructions run.
fn asynchronous(parts: &[&str], target: PtxTarget, operands: usize) -> Option<Vec<Kind>> {
    let hopper = target == PtxTarget::Sm90a;
    match *parts {
        ["cp", "async", "cg", "shared", "global"] if target.is_ampere() => {
            Some(vec![Address(Spot::Inside, 16), Address(Spot::Global, 16), Number, Any(B32)])
        }
        ["cp", "async", "cg", "shared", "global", "L2::128B"] if target.isa() >= (7, 4) => {
            Some(vec![Address(Spot::Inside, 16), Address(Spot::Global, 16), Number, Any(B32)])
        }
        ["cp", "async", "commit_group"] if target.is_ampere() => Some(Vec::new()),
        ["cp", "async", "wait_group"] if target.is_ampere() => Some(vec![Number]),
        ["fence", "proxy", "async", "shared::cta"] | ["wgmma", "fence" | "commit_group", "sync", "aligned"]
            if hopper =>
        {
            Some(Vec::new())
        }
        ["wgmma", "wait_group", "sync", "aligned"] if hopper => Some(vec![Number]),
        ["wgmma", "mma_async", "sync", "aligned", shape, "f32", a @ ("f16" | "bf16"), b] if hopper && a == b => {
            let n: usize = shape.strip_prefix("m64n")?.strip_suffix("k16")?.parse().ok()?;
            let sums = (8..=256).contains(&n).then_some(UpdateList(n / 2, B32)).filter(|_| n.is_multiple_of(8))?;
            // The left factor is a descriptor, which may be transposed, or four registers.
            let (left, numbers) = if operands == 8 { (Read(B64), 4) } else { (ReadList(4, B32), 3) };
            let rest = std::iter::repeat_n(Number, numbers);
            Some([sums, left, Read(B64), Read(Pred)].into_iter().chain(rest).collect())
        }
        _ => None,
    }
}
