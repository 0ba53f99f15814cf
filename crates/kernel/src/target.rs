//! What a device offers, and what a kernel needs of it. One walk over a kernel finds all that it needs, with the op that asks for it
//! first; what the device lacks is an error.

use std::fmt;

use crate::error::KernelError;
use crate::ir::{
    Builtin, Kernel, Matrix, MatrixShape, MemoryId, OpId, OpKind, RegionId, Scalar, Space, Subgroup, Ty, Value,
};
use crate::text::op_text;

macro_rules! features {
    ($($(#[$doc:meta])* $name:ident $text:literal,)*) => {
        /// What a device may have and kernels may need.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Feature { $($(#[$doc])* $name),* }

        impl Feature {
            /// All of them.
            pub const ALL: &'static [Feature] = &[$(Feature::$name),*];
        }

        impl fmt::Display for Feature {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $(Feature::$name => $text),* })
            }
        }
    };
}

features! {
    /// Values of f16 that are computed with, not only converted.
    F16 "arithmetic on 16-bit floats",
    /// Values of 16 bits that are no floats: bf16 in workgroup memory, and its bits.
    I16 "16-bit integers",
    /// Values of i64 and u64.
    I64 "64-bit integers",
    /// Elements of 16 bits in buffers.
    Storage16 "16-bit elements in buffers",
    /// Scalar parameters of 16 bits.
    Constants16 "16-bit scalar parameters",
    /// Sizes and lanes of subgroups.
    Subgroup "subgroups",
    /// `all` and `any`.
    SubgroupVote "votes of a subgroup",
    /// Sums, minimum and maximum.
    SubgroupArithmetic "sums over a subgroup",
    /// The value of the first lane.
    SubgroupBallot "broadcasts in a subgroup",
    /// Values from lane to lane.
    SubgroupShuffle "shuffles in a subgroup",
    /// A memory model with scopes, which matrices need.
    MemoryModel "a memory model with scopes",
    /// Matrices of a subgroup.
    Matrix "matrices of a subgroup",
    /// Matrices of bf16.
    MatrixBf16 "matrices of bf16",
    /// f16 keeps the signs of zeros, infinities and NaN. Kernels can do without: a driver may then compute `-0` as `0`, and assume that
    /// there is neither infinity nor NaN; with it, `+ - x` give the bits of the reference.
    SignedZerosF16 "signed zeros of f16",
    /// The same of f32.
    SignedZerosF32 "signed zeros of f32",
    /// Copies to workgroup memory that go on while other ops run.
    AsyncCopy "asynchronous copies",
    /// Products of four subgroups from workgroup memory.
    Warpgroup "products of warpgroups",
}

impl Feature {
    fn bit(self) -> u32 {
        1 << self as u32
    }

    /// Whether kernels do without it where it is missing.
    pub fn is_optional(self) -> bool {
        matches!(self, Feature::SignedZerosF16 | Feature::SignedZerosF32)
    }
}

/// How large a kernel may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TargetLimits {
    /// Invocations in a workgroup along x, y and z.
    pub workgroup: [u32; 3],
    /// Invocations in a workgroup.
    pub invocations: u32,
    /// Bytes of the arrays that a workgroup shares.
    pub shared: u32,
    /// Bytes of scalar parameters.
    pub constants: u32,
    /// Buffers.
    pub buffers: u32,
}

/// The device that a module is for, in the terms of kernels; emitters translate from what their API says.
///
/// ```
/// use impasto_kernel::{Feature, Target};
/// let target = Target::LEAST.with(Feature::I64);
/// assert!(target.has(Feature::I64) && !target.has(Feature::F16));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    /// How large a kernel may be.
    pub limits: TargetLimits,
    /// The products of matrices that a subgroup computes; `None` where all are taken for granted. For others there is
    /// [`lower_matrices`](crate::lower_matrices).
    pub products: Option<Vec<MatrixShape>>,
    features: u32,
}

impl Target {
    /// The least that every supported device has.
    pub const LEAST: Target = Target {
        limits: TargetLimits { workgroup: [128, 128, 64], invocations: 128, shared: 16384, constants: 128, buffers: 4 },
        products: Some(Vec::new()),
        features: 1 << Feature::Subgroup as u32,
    };

    /// A device that has whatever a kernel needs, and nothing that it can do without: for looking at modules and measuring them.
    pub const ANY: Target = Target {
        limits: TargetLimits {
            workgroup: [u32::MAX; 3],
            invocations: u32::MAX,
            shared: u32::MAX,
            constants: u32::MAX,
            buffers: u32::MAX,
        },
        products: None,
        features: (1 << Feature::SignedZerosF16 as u32) - 1,
    };

    /// A device with these limits and products of matrices, and no features.
    pub fn new(limits: TargetLimits, products: Vec<MatrixShape>) -> Target {
        Target { limits, products: Some(products), features: 0 }
    }

    /// Whether the device has it.
    pub fn has(&self, feature: Feature) -> bool {
        self.features & feature.bit() != 0
    }

    /// The same device, with this.
    #[must_use]
    pub fn with(&self, feature: Feature) -> Target {
        Target { features: self.features | feature.bit(), ..self.clone() }
    }

    /// The same device, with these products of matrices and no others.
    #[must_use]
    pub fn with_products(&self, products: Vec<MatrixShape>) -> Target {
        Target { products: Some(products), ..self.clone() }
    }

    /// The same device, without this.
    #[must_use]
    pub fn without(&self, feature: Feature) -> Target {
        Target { features: self.features & !feature.bit(), ..self.clone() }
    }

    /// Refuses a kernel that is too large for the device.
    fn check_limits(&self, k: &Kernel) -> Result<(), KernelError> {
        let limits = &self.limits;
        let refuse = |what: String, needs: u64, limit: u32| {
            let error = KernelError::TooLarge { kernel: k.name.clone(), what, needs, limit: limit.into() };
            if needs > u64::from(limit) { Err(error) } else { Ok(()) }
        };
        for (axis, (&n, &limit)) in ["x", "y", "z"].iter().zip(k.workgroup.iter().zip(&limits.workgroup)) {
            refuse(format!("invocations in a workgroup along {axis}"), n.into(), limit)?;
        }
        refuse(
            "invocations in a workgroup".into(),
            k.workgroup.iter().map(|&n| u64::from(n)).product(),
            limits.invocations,
        )?;
        let shared = |m: &crate::ir::MemoryDecl| match m.space {
            Space::Workgroup(n) => u64::from(n) * u64::from(k.lay_out(m.ty).stride()),
            _ => 0,
        };
        refuse("bytes shared by a workgroup".into(), k.memories().iter().map(shared).sum(), limits.shared)?;
        let buffers = k.memories().iter().filter(|m| matches!(m.space, Space::Buffer(_))).count();
        refuse("buffers".into(), buffers as u64, limits.buffers)?;
        refuse("bytes of scalar parameters".into(), crate::params::param_size(k).into(), limits.constants)
    }

    /// Refuses matrices that the device does not know.
    fn check_products(&self, k: &Kernel) -> Result<(), KernelError> {
        let Some(products) = self.products.as_ref().filter(|_| k.knows_matrices()) else { return Ok(()) };
        let refuse = |needs: String| {
            let offers: Vec<String> = products.iter().map(MatrixShape::to_string).collect();
            let offers = if offers.is_empty() { "none".to_owned() } else { offers.join(", ") };
            Err(KernelError::NoMatrix { kernel: k.name.clone(), needs, offers })
        };
        // A product says more than a part of it.
        let mut part = None;
        let mut open = vec![k.body()];
        while let Some(r) = open.pop() {
            for &op in k.region_ops(r) {
                open.extend_from_slice(k.regions(op));
                let matrix = |v: Value| k.matrix(k.ty(v));
                if let (OpKind::MatrixMulAdd, &[a, b, c]) = (k.kind(op), k.args(op)) {
                    let three = matrix(a).zip(matrix(b)).zip(matrix(c));
                    let shape = three.and_then(|((a, b), c)| MatrixShape::of(a, b, c));
                    if let Some(shape) = shape.filter(|s| !products.contains(s)) {
                        return refuse(format!("products {shape}"));
                    }
                }
                let unknown = |m: &Matrix| !products.iter().any(|s| s.has(*m));
                part = part.or_else(|| k.results(op).filter_map(matrix).find(unknown));
            }
        }
        part.map_or(Ok(()), |m| refuse(format!("products with {m}")))
    }

    /// The features that a kernel needs, or a refusal of a kernel that needs what the device lacks. `known_as` says what the API of the device
    /// calls a feature.
    pub fn check(&self, k: &Kernel, known_as: impl Fn(Feature) -> &'static str) -> Result<Vec<Feature>, KernelError> {
        self.check_limits(k)?;
        self.check_products(k)?;
        let needs = needs(k);
        match needs.iter().find(|&&(feature, _)| !self.has(feature)) {
            Some(&(feature, op)) => Err(KernelError::Lacks {
                kernel: k.name.clone(),
                op: op_text(k, op),
                feature,
                known_as: known_as(feature),
            }),
            None => Ok(needs.into_iter().map(|(feature, _)| feature).collect()),
        }
    }
}

/// What a kernel needs, each with the first op that asks for it. Cost: linear.
fn needs(k: &Kernel) -> Vec<(Feature, OpId)> {
    let mut found = Vec::new();
    let mut seen = 0u32;
    let mut converted = None;
    // Most types ask for nothing, and there are few types.
    let asks = |i: usize| {
        let ty = Ty(i as u32);
        k.matrix(ty).is_some() || k.any_scalar(ty, |s| is_long(s) || s.bits() == 16)
    };
    let asking: Vec<bool> = (0..k.type_count()).map(asks).collect();
    region_needs(k, k.body(), &asking, &mut |feature, op| {
        if seen & feature.bit() == 0 {
            seen |= feature.bit();
            found.push((feature, op));
        }
    });
    if seen & (Feature::F16.bit() | Feature::Storage16.bit() | Feature::Constants16.bit()) == 0 {
        // The type is there with memory of 16 bits, or with arithmetic on it.
        first_convert(k, k.body(), &mut converted);
        found.extend(converted.map(|op| (Feature::F16, op)));
    }
    found
}

/// The first conversion from or to f16.
fn first_convert(k: &Kernel, r: RegionId, found: &mut Option<OpId>) {
    for &op in k.region_ops(r) {
        let mut types = k.args(op).iter().copied().chain(k.results(op)).map(|v| k.ty(v));
        if found.is_none() && k.kind(op) == OpKind::Convert && types.any(|t| k.any_scalar(t, is_f16)) {
            *found = Some(op);
        }
        k.regions(op).iter().for_each(|&r| first_convert(k, r, found));
    }
}

fn region_needs(k: &Kernel, r: RegionId, asking: &[bool], need: &mut dyn FnMut(Feature, OpId)) {
    for &op in k.region_ops(r) {
        op_needs(k, op, asking, &mut |feature| need(feature, op));
        k.regions(op).iter().for_each(|&r| region_needs(k, r, asking, need));
    }
}

fn is_long(s: Scalar) -> bool {
    s.bits() == 64
}

fn is_f16(s: Scalar) -> bool {
    s == Scalar::F16
}

fn is_bf16(s: Scalar) -> bool {
    s == Scalar::Bf16
}

fn op_needs(k: &Kernel, op: OpId, asking: &[bool], need: &mut dyn FnMut(Feature)) {
    let kind = k.kind(op);
    match kind {
        OpKind::Load(m) | OpKind::Store(m) | OpKind::Atomic(m, _) | OpKind::Len(m) => memory_needs(k, m, need),
        OpKind::MatrixLoad(m, _) | OpKind::MatrixStore(m, _) => {
            memory_needs(k, m, need);
            // The place in memory is one of 16 bits, which is not converted.
            if is_bf16(k.scalar_of(k.memory(m).ty).unwrap_or(Scalar::F32)) {
                need(Feature::I16);
            }
        }
        OpKind::Param(_) => {
            // All parameters are one block, so one that is read brings the others along.
            if k.params().iter().any(|p| p.ty.bits() == 16) {
                need(Feature::Constants16);
            }
            if k.params().iter().any(|p| is_long(p.ty)) {
                need(Feature::I64);
            }
        }
        OpKind::AsyncCopy(to, from) => {
            need(Feature::AsyncCopy);
            memory_needs(k, to, need);
            memory_needs(k, from, need);
        }
        OpKind::AsyncCommit | OpKind::AsyncWait(_) => need(Feature::AsyncCopy),
        OpKind::WarpgroupMulAdd(_) | OpKind::WarpgroupWait(_) | OpKind::Pack(_) => need(Feature::Warpgroup),
        OpKind::Builtin(Builtin::SubgroupSize | Builtin::SubgroupLane | Builtin::SubgroupId, _) => {
            need(Feature::Subgroup)
        }
        OpKind::Subgroup(f) => need(match f {
            Subgroup::All | Subgroup::Any => Feature::SubgroupVote,
            Subgroup::BroadcastFirst => Feature::SubgroupBallot,
            Subgroup::ShuffleXor => Feature::SubgroupShuffle,
            Subgroup::Add | Subgroup::Min | Subgroup::Max | Subgroup::ExclusiveAdd => Feature::SubgroupArithmetic,
        }),
        _ => {}
    }
    let values = k.args(op).iter().copied().chain(k.results(op));
    let mut types = values.chain(k.regions(op).iter().flat_map(|&r| k.region_args(r))).map(|v| k.ty(v));
    if !types.clone().any(|t| asking[t.number()]) {
        return;
    }
    let any = |is| types.clone().any(|t| k.any_scalar(t, is));
    if any(is_long) {
        need(Feature::I64);
    }
    for m in types.clone().filter_map(|t| k.matrix(t)) {
        need(Feature::MemoryModel);
        need(Feature::Matrix);
        if m.scalar == Scalar::Bf16 {
            need(Feature::MatrixBf16);
        }
    }
    if kind == OpKind::MatrixFill && any(is_bf16) {
        need(Feature::I16);
    }
    if kind == OpKind::Bitcast && any(is_bf16) && any(is_f16) {
        need(Feature::I16);
    }
    // Without arithmetic on f16 its values can be loaded, stored and converted from and to f32, and nothing else.
    let moved = match kind {
        OpKind::Load(_) | OpKind::Store(_) | OpKind::Param(_) => true,
        OpKind::Convert => matches!(k.ty(k.args(op)[0]).lanes(), Some((Scalar::F16 | Scalar::F32, _))),
        _ => false,
    };
    if any(is_f16) && !(moved && types.all(|t| t.lanes().is_some())) {
        need(Feature::F16);
    }
}

fn memory_needs(k: &Kernel, m: MemoryId, need: &mut dyn FnMut(Feature)) {
    let m = k.memory(m);
    let has = |is| k.any_scalar(m.ty, is);
    if has(is_long) {
        need(Feature::I64);
    }
    match m.space {
        Space::Buffer(_) if has(is_f16) || has(is_bf16) => need(Feature::Storage16),
        Space::Workgroup(_) if has(is_bf16) => need(Feature::I16),
        _ => {}
    }
    // Composites are taken apart, and other memory than buffers holds values.
    if has(is_f16) && !(m.ty.lanes().is_some() && matches!(m.space, Space::Buffer(_))) {
        need(Feature::F16);
    }
}
