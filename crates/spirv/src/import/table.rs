//! What instructions of modules are to us: ops of our table, or foreign with a known effect, or foreign with any.

use rspirv::spirv::{Decoration, Op as S, StorageClass};

use super::body::{SHARED, Target, WORKGROUP};
use super::module::Source;
use crate::emit::opcode;
use impasto_kernel::ir::{BinaryOp, Compare, Effect, OpKind, Scalar, Ty, UnaryOp};

/// The op that an instruction is, on operands of these types. Only where it is the same instruction that we would write for the op: signs of
/// operands that do not go together make it another.
pub(super) fn plain(op: S, args: &[Ty], ty: Ty) -> Option<OpKind> {
    use OpKind::{Binary as B, Compare as C, Unary as U};
    let kind = match op {
        S::FNegate | S::SNegate => U(UnaryOp::Neg),
        S::Not | S::LogicalNot => U(UnaryOp::Not),
        S::BitCount => U(UnaryOp::CountOnes),
        S::BitReverse => U(UnaryOp::ReverseBits),
        S::FAdd | S::IAdd => B(BinaryOp::Add),
        S::FSub | S::ISub => B(BinaryOp::Sub),
        S::FMul | S::IMul => B(BinaryOp::Mul),
        S::FDiv | S::SDiv | S::UDiv => B(BinaryOp::Div),
        S::UMod | S::SRem => B(BinaryOp::Rem),
        S::BitwiseAnd | S::LogicalAnd => B(BinaryOp::And),
        S::BitwiseOr | S::LogicalOr => B(BinaryOp::Or),
        S::BitwiseXor => B(BinaryOp::Xor),
        S::ShiftLeftLogical => B(BinaryOp::Shl),
        S::ShiftRightLogical | S::ShiftRightArithmetic => B(BinaryOp::Shr),
        S::IEqual | S::FOrdEqual | S::LogicalEqual => C(Compare::Eq),
        S::INotEqual | S::FUnordNotEqual | S::LogicalNotEqual => C(Compare::Ne),
        S::SLessThan | S::ULessThan | S::FOrdLessThan => C(Compare::Lt),
        S::SLessThanEqual | S::ULessThanEqual | S::FOrdLessThanEqual => C(Compare::Le),
        S::SGreaterThan | S::UGreaterThan | S::FOrdGreaterThan => C(Compare::Gt),
        S::SGreaterThanEqual | S::UGreaterThanEqual | S::FOrdGreaterThanEqual => C(Compare::Ge),
        S::Select => OpKind::Select,
        S::ConvertFToS | S::ConvertFToU | S::ConvertSToF | S::ConvertUToF | S::SConvert | S::UConvert | S::FConvert => {
            OpKind::Convert
        }
        S::Bitcast => OpKind::Bitcast,
        _ => return None,
    };
    let (s, n) = args.first()?.lanes()?;
    let (to, m) = ty.lanes()?;
    let fits = match kind {
        U(f) => args == [ty] && (!matches!(f, UnaryOp::CountOnes | UnaryOp::ReverseBits) || s.bits() == 32),
        B(_) => args == [ty, ty],
        C(_) => args.len() == 2 && args[0] == args[1] && to == Scalar::Bool && n == m,
        OpKind::Select => args.len() == 3 && s == Scalar::Bool && args[1..] == [ty, ty] && (n == m || n == 1),
        // A change of sign alone is written as another instruction.
        OpKind::Convert => args.len() == 1 && n == m && !(s.is_int() && to.is_int() && s.bits() == to.bits()),
        _ => args.len() == 1 && n == m && s.bits() == to.bits(),
    };
    (fits && opcode(kind, s, to) == Some(op)).then_some(kind)
}

/// What an instruction without place in our table does, and whether it is known at all.
pub(super) fn does(op: S) -> Effect {
    let n = op as u32;
    let between = |a: S, b: S| (a as u32..=b as u32).contains(&n);
    match op {
        S::UDiv | S::SDiv | S::UMod | S::SRem | S::SMod => Effect::Partial,
        S::VectorExtractDynamic | S::VectorInsertDynamic => Effect::Partial,
        S::ArrayLength | S::CopyObject | S::Transpose | S::CopyLogical | S::Image => Effect::Pure,
        // Its user must stand in the same block.
        S::SampledImage => Effect::Together,
        S::ImageRead => Effect::Reads(SHARED),
        _ if between(S::VectorShuffle, S::CompositeInsert) => Effect::Pure,
        _ if between(S::ConvertFToU, S::Bitcast) && !matches!(op, S::GenericCastToPtrExplicit) => Effect::Pure,
        _ if between(S::SNegate, S::SMulExtended) => Effect::Pure,
        _ if between(S::Any, S::FUnordGreaterThanEqual) => Effect::Pure,
        _ if between(S::ShiftRightLogical, S::BitCount) => Effect::Pure,
        _ if between(S::SDot, S::SUDotAccSat) => Effect::Pure,
        S::ImageSampleExplicitLod
        | S::ImageSampleDrefExplicitLod
        | S::ImageSampleProjExplicitLod
        | S::ImageSampleProjDrefExplicitLod
        | S::ImageFetch
        | S::ImageGather
        | S::ImageDrefGather
        | S::ImageQuerySizeLod
        | S::ImageQuerySize
        | S::ImageQueryLevels
        | S::ImageQuerySamples => Effect::Partial,
        _ if between(S::GroupNonUniformElect, S::GroupNonUniformQuadSwap) => Effect::Together,
        S::CooperativeMatrixLoadKHR | S::CooperativeMatrixMulAddKHR | S::CooperativeMatrixLengthKHR => Effect::Together,
        _ => Effect::Anything,
    }
}

/// Whether an atomic asks for no order, so that only its place matters; and where the ids of its orders stand after type and result.
pub(super) fn atomic_orders(op: S) -> Option<&'static [usize]> {
    Some(match op {
        S::AtomicLoad
        | S::AtomicExchange
        | S::AtomicIIncrement
        | S::AtomicIDecrement
        | S::AtomicIAdd
        | S::AtomicISub
        | S::AtomicSMin
        | S::AtomicUMin
        | S::AtomicSMax
        | S::AtomicUMax
        | S::AtomicAnd
        | S::AtomicOr
        | S::AtomicXor
        | S::AtomicFAddEXT
        | S::AtomicFMinEXT
        | S::AtomicFMaxEXT => &[4],
        S::AtomicStore => &[2],
        S::AtomicCompareExchange => &[4, 5],
        _ => return None,
    })
}

/// Functions of GLSL.std.450 that write through a pointer.
pub(super) fn writes_through_pointer(number: u32) -> bool {
    use rspirv::spirv::GlslStd450Op as G;
    [G::Modf as u32, G::Frexp as u32].contains(&number)
}

/// The memory of a variable of the module, or of whatever has a pointer of this class.
pub(super) fn target(s: &Source, id: u32, class: u32) -> Target {
    let is = |c: StorageClass| class == c as u32;
    if is(StorageClass::Input) || is(StorageClass::UniformConstant) || is(StorageClass::PushConstant) {
        return Target::Constant;
    }
    if is(StorageClass::Workgroup) {
        return Target::Memory(WORKGROUP);
    }
    if is(StorageClass::Uniform) {
        // A storage buffer of the older kind has a struct that says so.
        let block = |ty: u32| {
            let mut ty = ty;
            while let Some(of) = s.element(ty) {
                ty = of;
            }
            ty
        };
        let to = match s.made(id) {
            Some((S::Variable, w)) => super::facts::pointee(s, w[0]).map(block),
            _ => None,
        };
        let old = |ty: u32| {
            s.decorations
                .get(&ty)
                .is_some_and(|d| d.iter().any(|&at| s.operands(at).get(1) == Some(&(Decoration::BufferBlock as u32))))
        };
        return match to {
            Some(ty) if !old(ty) => Target::Constant,
            _ => Target::Memory(SHARED),
        };
    }
    if is(StorageClass::Function) || is(StorageClass::Private) {
        return Target::Unknown;
    }
    Target::Memory(SHARED)
}
